"""The helper process: does what may take longer than an event loop can wait.

It is started by ``guard.py`` as a module of its own, with a socket as its standard input, and does
one job after the other until that socket ends. A job and its result are messages as told there.

It has nothing to lose, and is killed where it takes too long: by its guard, and if that is gone by
its own timer, whose signal ends the process also while jq holds the interpreter. Its memory is
bounded; who asks for more dies of it.
"""

from __future__ import annotations

import contextlib
import functools
import resource
import signal
import socket
from typing import Literal

import msgspec

from finomw import limits
from finomw.metering import ensured
from finomw.metering.documents import Document
from finomw.metering.guard import Job, Outcomes
from finomw.metering.meter import Meter
from finomw.metering.programs import Program, ProgramFailed, compile_together
from finomw.metering.splits import Split
from finomw.metering.transforms import Transform

_TEXT_MAX = 4096
"""Characters of a text that are told: more than any value that prices are chosen by."""


def main() -> None:
    """Serve the socket that is the standard input."""
    resource.setrlimit(resource.RLIMIT_AS, (limits.HELPER_MEMORY, limits.HELPER_MEMORY))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    with contextlib.suppress(OSError), socket.socket(fileno=0) as guard:
        guard.setblocking(True)
        guard.sendall(b"\0\0\0\0")
        while (begin := _receive(guard, 8)) is not None:
            head = _receive(guard, int.from_bytes(begin[:4], "big"))
            body = _receive(guard, int.from_bytes(begin[4:], "big"))
            if head is None or body is None:
                return
            signal.setitimer(signal.ITIMER_REAL, 2 * limits.HELPER_MILLISECONDS / 1000)
            reply = _do(msgspec.json.decode(head, type=Job), body)
            signal.setitimer(signal.ITIMER_REAL, 0)
            guard.sendall(len(reply).to_bytes(4, "big") + reply)


def _receive(guard: socket.socket, size: int) -> bytes | None:
    """Read exactly ``size`` bytes; None where the socket has ended."""
    got = bytearray(size)
    view = memoryview(got)
    while view:
        count = guard.recv_into(view)
        if not count:
            return None
        view = view[count:]
    return bytes(got)


def _do(job: Job, body: bytes) -> bytes:
    match job.kind:
        case "transform":
            return _transform(str(job.spec[""])).answer(body)
        case "asking":
            return ensured.answer(body)
        case _:
            return msgspec.json.encode(_read(job, body))


def _read(job: Job, body: bytes) -> object:
    if job.kind == "outcomes":
        return outcomes(_programs(tuple(map(str, job.spec.values()))), body)
    meter = _meter(tuple(job.spec.items()), job.merge, job.splits, job.error)
    match job.kind:
        case "json":
            return meter.read_json(body)
        case "tail":
            return meter.read_tail(body)
        case _:
            return meter.tally().look(Document(body))


def outcomes(programs: tuple[Program, ...], body: bytes) -> Outcomes:
    """Run programs on a document; of arrays and objects it is only told that they are some."""
    document = Document(body)
    values: list[object] = []
    failures: list[str | None] = []
    for program in programs:
        try:
            values.append(_shown(program.run(document)))
            failures.append(None)
        except ProgramFailed as error:
            values.append(None)
            failures.append(str(error))
    return Outcomes(document.strict, values, failures)


def _shown(value: object) -> object:
    if isinstance(value, dict | list):
        return type(value)()
    return value[:_TEXT_MAX] if isinstance(value, str) else value


@functools.lru_cache(maxsize=64)
def _meter(
    spec: tuple[tuple[str, int | str], ...],
    merge: Literal["last", "sum", "max"],
    splits: tuple[Split, ...],
    error: str | None,
) -> Meter:
    return Meter(dict(spec), merge, splits=splits, error=error, apart=True)


@functools.lru_cache(maxsize=64)
def _transform(text: str) -> Transform:
    return Transform(text)


@functools.lru_cache(maxsize=64)
def _programs(texts: tuple[str, ...]) -> tuple[Program, ...]:
    return compile_together(texts)


if __name__ == "__main__":
    main()
