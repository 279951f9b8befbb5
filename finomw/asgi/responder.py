"""The state of one answer: what passes, what waits, and when the call is charged.

Ways an answer goes out, chosen by its own head when it starts:

* one without a body by HTTP is complete with its head, which waits for the charge;
* a JSON answer waits as a whole, is metered, and leaves when its charge is on disk; so does one
  that says it is empty;
* a stream (events, JSON lines, a JSON array in pieces) passes chunk by chunk, is metered, and
  settled in steps that nothing waits for; the message with the end marker, else the last one, waits
  for the settlement. So does the last of anything else, which passes.

A flat price needs no waiting for its settlement: the hold settles by itself after a crash, so
once the hold is on disk the charge cannot be lost. Every call ends once, whatever happened.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Iterable

from starlette.types import Message, Receive, Send

from finomw.asgi.bill import Bill
from finomw.asgi.ending import Answer
from finomw.asgi.estimation import Passed
from finomw.asgi.problems import Refused, send_refusal
from finomw.asgi.rules import Rule
from finomw.asgi.serving import Node
from finomw.asgi.state import Call
from finomw.engine import charge
from finomw.engine.charge import Held
from finomw.errors import InvariantBroken, RecordingFailed
from finomw.metering.closing import closing
from finomw.metering.readers import Reader
from finomw.metering.usage import Usage
from finomw.money.pricing import PriceList
from finomw.types import Counts, Lsn, OnCrash

logger = logging.getLogger("finomw")

_BODILESS = frozenset({204, 205, 304})


class StreamCut(OSError):
    """The app's stream was ended at its ceiling: to the app, the client has left."""


class Responder:
    """Stands between the app and the server for one held call: the app gets its methods."""

    def __init__(
        self,
        node: Node,
        rule: Rule,
        prices: PriceList,
        held: Held,
        ceiling: Counts,
        seen: Call,
        head: bool,
        receive: Receive,
        send: Send,
    ) -> None:
        self._node = node
        self._rule = rule
        self._held = held
        self._bill = Bill(node.engine, rule, prices, held, ceiling)
        self._seen = seen
        self._head = head
        self._receive = receive
        self._send = send
        self._status: int | None = None
        self._waiting: list[Message] | None = None
        """Messages of an answer that waits as a whole; ``None`` when nothing does."""
        self._kept: list[Message] = []
        """The same messages, also when they are about to leave."""
        self._size = 0
        self._reader: Reader | None = None
        self._due: Lsn = 0
        """What has to be on disk before the next message leaves; 0 for nothing."""
        self._begun = False
        """Whether anything has left."""
        self._delivered = False
        """Whether any of the body has."""
        self._ended = False
        self._client_left = False
        self._failure: RecordingFailed | None = None
        """Why nothing more may leave."""
        self._exceeded = False
        """Whether more was used than is held, so that the stream is cut where a text ends."""
        self._last_byte = b""
        """The last one that left, blanks aside; kept where the stream may be cut."""
        self.was_cut = False
        self._unbilled = False
        """Whether everything may, because the call is not charged."""

    async def receive(self) -> Message:
        """Pass on what the server says, and remember if it is that the client has left."""
        if self.was_cut:
            return {"type": "http.disconnect"}
        message = await self._receive()
        if message["type"] == "http.disconnect":
            self._client_left = True
        return message

    async def send(self, message: Message) -> None:
        """Take a message from the app.

        Raises `RecordingFailed` to cut an answer under way, `StreamCut` for one that was cut.
        """
        if self._failure is not None:
            raise self._failure
        if self.was_cut:
            raise StreamCut("the stream was ended at its ceiling")
        if self._unbilled:
            await self._send(message)
            return
        try:
            await self._take(message)
        except RecordingFailed as error:
            if self._begun:
                self._failure = error
                raise
            await self._give_up(message, error)

    async def _give_up(self, message: Message, error: RecordingFailed) -> None:
        """Let the app's answer, of which nothing has left, go unbilled; or another in its place."""
        failures = self._node.failures
        if failures.passes:
            self._unbilled = True
            failures.count_unbilled(self._node.engine, error)
            for unsent in self._kept or [message]:
                await self._send(unsent)
        else:
            self._failure = error
            failures.note("an answer was replaced", error)
            await send_refusal(self._send, Refused("cannot_record"))

    async def _take(self, message: Message) -> None:
        kind = message["type"]
        if kind == "http.response.start" and self._status is None:
            await self._start(message)
        elif self._waiting is not None:
            await self._keep(self._waiting, message)
        elif kind == "http.response.body" and self._status is not None and not self._ended:
            await self._body(message)
        else:
            await self._pass(message)

    async def _pass(self, message: Message) -> None:
        """Let a message go, once what it has to wait for is on disk."""
        if self._due and self._node.durability != "relaxed":
            await self._node.durable.wait(self._due)
            self._due = 0
        self._begun = True
        self._delivered = self._delivered or bool(message.get("body"))
        if self._rule.cuts:
            self._last_byte = _body_of(message).rstrip()[-1:] or self._last_byte
        await self._send(message)

    async def _start(self, message: Message) -> None:
        headers = message.get("headers", ())
        if not isinstance(headers, list | tuple):
            # Any iterable is allowed, and one that can be read once is the server's to read.
            headers = list(headers)
            message = {**message, "headers": headers}
        self._status = message["status"]
        if self._bodiless:
            self._end(complete=True)
        else:
            self._reader = self._rule.readers.reader_for(message["status"], headers)
            # A client takes an empty answer for complete when it has seen the head.
            if _is_empty(headers) or (self._reader is not None and self._reader.waits):
                self._waiting = self._kept = [message]
                return
            self._begin()
        await self._pass(message)

    @property
    def _bodiless(self) -> bool:
        return self._head or self._status in _BODILESS

    def _begin(self) -> None:
        """Before a first byte leaves: see to it that a crash then does not release the hold."""
        self._due = self._held.end
        if self._rule.on_crash is OnCrash.RELEASE:
            self._due = charge.start(self._node.engine, self._held)
        self._bill.begin()

    async def _body(self, message: Message) -> None:
        last = not message.get("more_body", False)
        parts = [_body_of(message)]
        if self._exceeded and not last:
            parts = parts[0].splitlines(keepends=True) or parts  # to find where a text ends
        for read, part in enumerate(parts, start=1):
            between = self._between
            if await self._read(part, last) or last:
                self._end(complete=True)
                break
            if self._exceeds() and (between or self._between):
                # A text that was under way has to leave whole; one that only begins need not.
                kept = b"" if between else b"".join(parts[:read])
                await self._cut({**message, "body": kept})
        if not self._ended and self._bill.in_steps:
            stepped = self._bill.step(self._usage(complete=None), self._answer(complete=False))
            if stepped:
                self._node.durable.begin(stepped)  # but nothing waits for it
        await self._pass(message)

    @property
    def _between(self) -> bool:
        """Whether the answer is a stream that could be ended here."""
        stream = None if self._reader is None or not self._rule.cuts else self._reader.stream
        return stream is not None and stream.between

    def _exceeds(self) -> bool:
        """Say whether a stream that may be cut comes to more than is held."""
        if self._rule.cuts and not self._exceeded and self._reader and self._reader.stream:
            self._exceeded = self._bill.exceeds(self._usage(complete=None), self._passed)
        return self._exceeded

    async def _cut(self, message: Message) -> None:
        """End a stream in its own format, after what the message still has of it."""
        stream = None if self._reader is None else self._reader.stream
        if stream is None:
            raise InvariantBroken("a stream was cut that can have nothing added")
        if message["body"]:
            await self._pass(message)
        self._end(complete=False, cut=True)
        said = "The most that this call may use was reached."
        last = closing(stream, "ceiling_reached", said, self._last_byte)
        await self._pass({"type": "http.response.body", "body": last})
        self.was_cut = True
        raise StreamCut("the stream was ended at its ceiling")

    async def _read(self, body: bytes, last: bool) -> bool:
        """Let the meter see a part of the body; return whether the end marker has come."""
        self._size += len(body)
        if self._reader is None:
            return False
        for number, _ in enumerate(self._reader.steps(body)):
            if number:
                await asyncio.sleep(0)  # a large part shall not stop the loop
            if self._reader.late:
                await self._reader.read_apart(self._node.guard, last=False)
        marked = self._reader.ended
        if marked or last:
            await self._reader.read_apart(self._node.guard, last=True)
        return marked

    async def _keep(self, waiting: list[Message], message: Message) -> None:
        """Keep a message of an answer that waits; let all go when it is charged, or need not."""
        waiting.append(message)
        if message["type"] != "http.response.body":
            return
        last = not message.get("more_body", False)
        marked = await self._read(_body_of(message), last)
        small = self._size <= self._rule.body_max
        waits = small if self._reader is None else self._reader.waits
        if waits and not last:
            return
        self._waiting = None
        if last or marked:
            self._end(complete=True)
        else:
            self._begin()
        for kept in waiting:
            await self._pass(kept)

    def abandon(self) -> None:
        """End the call if nothing did: the app raised, was cancelled, or sent no last message.

        An answer of which nothing has left began only if the client did not wait for it: then the
        app has worked for a client who left. Otherwise the server answers in the app's place. In a
        process that was forked during the call there is nothing to end: the call is the parent's.
        """
        engine, hold = self._node.engine, self._held.hold
        if self._ended or engine.pid != os.getpid():
            return
        if self._unbilled or not (self._begun or self._client_left):
            self._status = None
        try:
            self._end(complete=False)
        except RecordingFailed as error:
            logger.error("hold %s is left to the housekeeper: %s", hold, error)
        finally:
            charge.abandon(engine, hold)

    @property
    def _passed(self) -> Passed:
        """What of the body has come."""
        reader = self._reader
        return Passed(self._size, 0) if reader is None else Passed(reader.size, reader.deltas)

    def _answer(self, complete: bool) -> Answer:
        passed = self._passed if complete or self._delivered else Passed(0, 0)
        return Answer(self._status, self._bodiless, complete, passed)

    def _usage(self, complete: bool | None) -> Usage:
        """Return what is known: of all that comes, or (``None``) of a stream under way so far."""
        usage = None
        if self._reader is not None and complete is not None:
            usage = self._reader.finish(complete=complete)
        elif self._reader is not None:
            usage = self._reader.so_far()
        return self._seen.counted(usage or self._rule.unread, last=complete is not None)

    def _end(self, complete: bool, cut: bool = False) -> None:
        """Settle or release, once; the next message waits for it, as far as it has to."""
        end, settled = self._bill.end(self._usage(complete), self._answer(complete), cut)
        early = self._rule.flat or self._node.durability == "held"
        self._due = self._held.end if settled and early else end
        self._ended = True


def _body_of(message: Message) -> bytes:
    """Return a message's body, which may be any bytes-like object; of bytes this is no copy."""
    return bytes(message.get("body", b""))


def _is_empty(headers: Iterable[tuple[bytes, bytes]]) -> bool:
    return any(name.lower() == b"content-length" and value == b"0" for name, value in headers)
