"""The state of one answer: what passes, what waits, and when the call is charged.

Three ways an answer goes out, chosen by its own headers when it starts:

* a JSON answer waits as a whole, is metered, and leaves when its charge is on disk;
* an event stream passes chunk by chunk and is metered as it passes; the message that carries the
  end marker, else the last one, waits for the settlement;
* anything else passes, and its last message waits.

A flat price needs no waiting for its settlement: the hold settles by itself after a crash, so
once the hold is on disk the charge cannot be lost. Every call ends once, whatever happened.
"""

from __future__ import annotations

import logging
from typing import Literal, NamedTuple

from starlette.types import Message, Send

from finomw.asgi.ending import Answer, Charge, decide
from finomw.asgi.problems import Refused, send_refusal
from finomw.asgi.rules import Rule
from finomw.engine import charge
from finomw.engine.charge import Held
from finomw.engine.durable import Durable
from finomw.engine.engine import Engine
from finomw.errors import InvalidValue, RecordingFailed
from finomw.metering.media import BodyKind, kind_of
from finomw.metering.meter import StreamReader
from finomw.money.pricing import PriceList
from finomw.types import Counts, Lsn, Micros, OnCrash, UsageStatus

logger = logging.getLogger("finomw")

Durability = Literal["settled", "held", "relaxed"]
_BODILESS = frozenset({204, 205, 304})


class Node(NamedTuple):
    """What an answer needs of the node: the engine, the wait for the disk, and how long."""

    engine: Engine
    durable: Durable
    durability: Durability


class Responder:
    """Stands between the app's `send` and the server's, for one held call."""

    def __init__(
        self, node: Node, rule: Rule, prices: PriceList, held: Held, head: bool, send: Send
    ) -> None:
        self._node = node
        self._rule = rule
        self._prices = prices
        self._held = held
        self._head = head
        self._send = send
        self._status: int | None = None
        self._waiting: list[Message] | None = None
        """Messages of a JSON answer that waits as a whole; ``None`` when nothing does."""
        self._size = 0
        self._stream: StreamReader | None = None
        self._usage = rule.unread
        self._ended: Lsn | None = None
        """Where the answer has to wait, once the call has ended."""
        self._refused = False

    async def send(self, message: Message) -> None:
        """Take a message from the app. Raises `RecordingFailed` to cut an answer under way."""
        kind = message["type"]
        if self._refused:
            return
        if kind == "http.response.start" and self._status is None:
            await self._start(message)
        elif kind == "http.response.body" and self._status is not None and self._ended is None:
            await self._body(message)
        else:
            await self._send(message)

    async def _start(self, message: Message) -> None:
        self._status = message["status"]
        kind = self._kind_of_body(message)
        if kind is BodyKind.JSON and not self._bodiless:
            self._waiting = [message]
            return
        if kind is BodyKind.EVENT_STREAM:
            self._stream = self._rule.meter.stream()
        try:
            await self._begin()
        except RecordingFailed as error:
            await self._refuse(error)
            return
        await self._send(message)

    def _kind_of_body(self, message: Message) -> BodyKind:
        """Say how the answer can be read; an encoded one cannot."""
        content_type = None
        for name, value in message.get("headers", ()):
            lowered = name.lower()
            if lowered == b"content-type":
                content_type = value
            elif lowered == b"content-encoding" and value.strip().lower() != b"identity":
                return BodyKind.OTHER
        return kind_of(content_type)

    @property
    def _bodiless(self) -> bool:
        return self._head or self._status in _BODILESS

    async def _begin(self) -> None:
        """Before a first byte leaves: what a crash then does to the hold is on disk."""
        end = self._held.end
        if self._rule.on_crash is OnCrash.RELEASE:
            end = charge.start(self._node.engine, self._held)
        if self._node.durability != "relaxed":
            await self._node.durable.wait(end)

    async def _body(self, message: Message) -> None:
        last = not message.get("more_body", False)
        if self._waiting is not None:
            await self._keep(self._waiting, message, last)
            return
        marked = self._stream is not None and self._stream.feed(message.get("body", b""))
        if marked or last:
            await self._finish()
        await self._send(message)

    async def _keep(self, waiting: list[Message], message: Message, last: bool) -> None:
        """Keep a message of a JSON answer; let all go when it is charged, or too large to keep."""
        waiting.append(message)
        self._size += len(message.get("body", b""))
        too_large = self._size > self._rule.body_max
        if not last and not too_large:
            return
        if not too_large:
            body = b"".join(kept.get("body", b"") for kept in waiting[1:])
            self._usage = self._rule.meter.read_json(body)
        self._waiting = None
        try:
            await (self._finish() if last else self._begin())
        except RecordingFailed as error:
            await self._refuse(error)
            return
        for kept in waiting:
            await self._send(kept)

    async def _refuse(self, error: RecordingFailed) -> None:
        """Answer in the app's place: nothing of its answer has left, and nothing will."""
        logger.error("an answer was replaced: %s", error)
        self._refused = True
        await send_refusal(self._send, Refused("cannot_record"))

    async def _finish(self) -> None:
        """End the call, and wait until its ending is as durable as it has to be."""
        end = self._end(complete=True)
        if self._node.durability != "relaxed":
            await self._node.durable.wait(end)

    def abandon(self) -> None:
        """End the call if nothing did: the app raised, was cancelled, or sent no last message."""
        if self._ended is not None:
            return
        if self._waiting is not None:
            self._status = None
        try:
            self._end(complete=False)
        except RecordingFailed as error:
            logger.error("hold %s is left to the next start: %s", self._held.hold, error)

    def _end(self, complete: bool) -> Lsn:
        """Settle or release, once; return which LSN the answer has to wait for."""
        engine, held = self._node.engine, self._held
        usage = self._stream.finish() if self._stream is not None else self._usage
        decision = decide(self._rule, usage, Answer(self._status, self._bodiless, complete))
        if isinstance(decision, str):
            self._ended = charge.release(engine, held.hold, decision).end
            return self._ended
        price, status, note = self._price(decision, usage.counts)
        ended = charge.settle(engine, held.hold, price, usage.counts, status, note)
        early = self._rule.flat or self._node.durability == "held"
        self._ended = held.end if early else ended.end
        return self._ended

    def _price(self, decision: Charge, counts: Counts) -> tuple[Micros, UsageStatus, str]:
        """Return the price of the counts, or the hold's where they are unknown; and a note."""
        if decision.whole_hold:
            return self._held.amount, decision.usage, "estimated: the hold"
        try:
            return self._prices.price(counts), decision.usage, ""
        except InvalidValue as error:
            return self._held.amount, UsageStatus.INVALID, f"estimated: the hold ({error})"
