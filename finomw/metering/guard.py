"""Keeps the event loop free of what may take long: it is done in a helper process, or not at all.

Programs come from the owner's configuration, documents from anyone, and jq holds the interpreter
for as long as it runs, so a thread would protect nothing. What exceeds an `Allowance` is sent to
one helper process for each worker: started when first needed, killed when it takes longer than
``limits.HELPER_MILLISECONDS`` for a document, and started again. Who waits for it awaits.

A message to the helper: the sizes of head and body, 4 bytes each, then both (JSON, and the
document's bytes). A message from it: the size, 4 bytes, then JSON (of what is rewritten, what
``transforms.py`` and ``ensured.py`` tell); an empty one when it is ready.
No answer (too slow, too much memory, too many waiting) is an outcome: what was asked is not known.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import subprocess
import sys
import weakref
from collections import deque
from collections.abc import Sequence
from typing import Final, Literal, NamedTuple

import msgspec

from finomw import limits
from finomw.metering.documents import Document, Outcome
from finomw.metering.splits import Split

logger = logging.getLogger("finomw")

_REPLY_MAX: Final = 1 * limits.MIB
_REWRITES: Final = frozenset({"transform", "asking"})
"""Jobs whose reply is as large as a body; and nobody is refused because others are faster."""
_HEAD: Final = 4


class Job(msgspec.Struct, frozen=True):
    """What to do with the bytes that follow."""

    kind: Literal["outcomes", "json", "tail", "text", "transform", "asking"]
    spec: dict[str, int | str]
    merge: Literal["last", "sum", "max"] = "last"
    splits: tuple[Split, ...] = ()
    error: str | None = None


class Outcomes(msgspec.Struct, frozen=True):
    """What the programs of a job gave, in their order: a value, or why there is none."""

    strict: bool
    values: list[object]
    failures: list[str | None]


class _Question(NamedTuple):
    message: bytes
    body: bytes
    reply_max: int
    answer: asyncio.Future[bytes | None]


class _Helper(NamedTuple):
    process: subprocess.Popen[bytes]
    link: socket.socket


class Guard:
    """The way to one helper process; belongs to one process and one event loop."""

    def __init__(self) -> None:
        self._questions: deque[_Question] = deque()
        self._worker: asyncio.Task[None] | None = None
        self._helper: _Helper | None = None
        self._closed = False
        _guards.add(self)

    async def ask(self, job: Job, body: bytes) -> bytes | None:
        """Have a job done; return its result as JSON, ``None`` where there is none."""
        rewrites = job.kind in _REWRITES
        backlog = limits.REWRITE_BACKLOG if rewrites else limits.HELPER_BACKLOG
        if self._closed or len(self._questions) >= backlog:
            return None
        reply_max = limits.REWRITTEN_MAX if rewrites else _REPLY_MAX
        answer: asyncio.Future[bytes | None] = asyncio.get_running_loop().create_future()
        self._questions.append(_Question(_message(job, body), body, reply_max, answer))
        if self._worker is None:
            self._worker = asyncio.create_task(self._work())
        return await answer

    async def read(self, programs: Sequence[str], raw: bytes) -> Document:
        """Run programs on a document; it is ``lost`` where that took too long."""
        texts = tuple(dict.fromkeys(programs))
        reply = await self.ask(Job("outcomes", {text: text for text in texts}), raw)
        if reply is None:
            return Document.read_apart(raw, True, {}, lost=True)
        outcomes = msgspec.json.decode(reply, type=Outcomes)
        known = map(Outcome, outcomes.values, outcomes.failures)
        return Document.read_apart(raw, outcomes.strict, dict(zip(texts, known, strict=True)))

    async def _work(self) -> None:
        """Ask one question after the other; who asked may have gone in the meantime."""
        try:
            while self._questions:
                question = self._questions.popleft()
                if question.answer.done():
                    continue
                result = None
                try:
                    result = await self._answer(question)
                finally:
                    if not question.answer.done():
                        question.answer.set_result(result)
        finally:
            self._worker = None

    async def _answer(self, question: _Question) -> bytes | None:
        try:
            if self._helper is None:
                self._helper = _start()
                async with asyncio.timeout(limits.HELPER_START_SECONDS):
                    await _receive(self._helper.link, _REPLY_MAX)
            link = self._helper.link
            async with asyncio.timeout(limits.HELPER_MILLISECONDS / 1000):
                loop = asyncio.get_running_loop()
                await loop.sock_sendall(link, question.message)
                await loop.sock_sendall(link, question.body)
                return await _receive(link, question.reply_max)
        except (OSError, EOFError) as error:  # of which a timeout is one
            logger.warning(
                "a document of %d bytes was not read: the helper process %s",
                len(question.body),
                "took too long" if isinstance(error, TimeoutError) else "failed",
            )
            helper, self._helper = self._helper, None
            if helper is not None:
                helper.process.kill()
                await asyncio.to_thread(helper.process.wait)
                helper.link.close()  # not earlier: the loop still had it in its selector
            return None

    def close(self) -> None:
        """End the helper; questions that are still open get no answer."""
        self._closed = True
        helper, self._helper = self._helper, None
        worker = self._worker
        asking = worker is not None and not worker.get_loop().is_closed()
        for question in self._questions:
            if asking and not question.answer.done():
                question.answer.set_result(None)
        self._questions.clear()
        if worker is not None and asking:
            worker.cancel()
        if helper is None:
            return
        helper.process.kill()
        helper.process.wait()
        if worker is not None and asking:
            worker.add_done_callback(lambda _: helper.link.close())
        else:
            helper.link.close()

    def forget(self) -> None:
        """Let go of a helper that belongs to the process that this one was forked from."""
        helper, self._helper = self._helper, None
        self._closed = True
        if helper is not None:
            helper.link.close()
            helper.process.returncode = 0  # not ours to wait for


def ask_now(job: Job, body: bytes) -> bytes | None:
    """Have one job done by a helper of its own, and wait for it: for where no event loop runs."""
    helper = _start()
    try:
        helper.link.setblocking(True)
        helper.link.settimeout(limits.HELPER_START_SECONDS)
        _receive_now(helper.link)
        helper.link.settimeout(limits.HELPER_MILLISECONDS / 1000)
        helper.link.sendall(_message(job, body) + body)
        return _receive_now(helper.link)
    except (OSError, EOFError):
        return None
    finally:
        helper.link.close()
        helper.process.kill()
        helper.process.wait()


def _message(job: Job, body: bytes) -> bytes:
    head = msgspec.json.encode(job)
    return len(head).to_bytes(_HEAD, "big") + len(body).to_bytes(_HEAD, "big") + head


def _start() -> _Helper:
    """Start a helper: a fresh interpreter, which shares nothing with this one but a socket."""
    ours, theirs = socket.socketpair()
    path = os.pathsep.join(entry or os.getcwd() for entry in sys.path)
    try:
        with theirs:
            process = subprocess.Popen(
                [sys.executable, "-P", "-m", "finomw.metering.helper"],
                stdin=theirs.fileno(),
                stdout=subprocess.DEVNULL,
                env={**os.environ, "PYTHONPATH": path},
                start_new_session=True,
            )
    except OSError:
        ours.close()
        raise
    ours.setblocking(False)
    return _Helper(process, ours)


async def _receive(link: socket.socket, most: int) -> bytes:
    loop = asyncio.get_running_loop()
    got = bytearray()
    while len(got) < _HEAD or len(got) < _HEAD + _size(got, most):
        part = await loop.sock_recv(link, limits.KIB * 64)
        if not part:
            raise EOFError
        got += part
    return bytes(got[_HEAD:])


def _receive_now(link: socket.socket) -> bytes:
    got = bytearray()
    while len(got) < _HEAD or len(got) < _HEAD + _size(got, _REPLY_MAX):
        part = link.recv(limits.KIB * 64)
        if not part:
            raise EOFError
        got += part
    return bytes(got[_HEAD:])


def _size(got: bytearray, most: int) -> int:
    size = int.from_bytes(got[:_HEAD], "big")
    if size > most:
        raise EOFError
    return size


def _forget_all() -> None:
    for guard in tuple(_guards):
        guard.forget()


_guards: weakref.WeakSet[Guard] = weakref.WeakSet()
os.register_at_fork(after_in_child=_forget_all)
