"""The state of one answer: what passes, what waits, and when the call is charged.

Ways an answer goes out, chosen by its own head when it starts:

* one without a body by HTTP is complete with its head, which waits for the charge;
* a JSON answer waits as a whole, is metered, and leaves when its charge is on disk; so does one
  that says it is empty;
* an event stream passes chunk by chunk and is metered as it passes; the message that carries the
  end marker, else the last one, waits for the settlement;
* anything else passes, and its last message waits.

A flat price needs no waiting for its settlement: the hold settles by itself after a crash, so
once the hold is on disk the charge cannot be lost. Every call ends once, whatever happened.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable
from typing import Literal, NamedTuple

from starlette.types import Message, Receive, Send

from finomw.asgi.ending import Answer, Charge, decide
from finomw.asgi.failure import Failures
from finomw.asgi.problems import Refused, send_refusal
from finomw.asgi.rules import Rule
from finomw.engine import charge
from finomw.engine.charge import Ended, Held
from finomw.engine.durable import Durable
from finomw.engine.engine import Engine
from finomw.errors import InvalidValue, RecordingFailed
from finomw.metering.media import BodyKind, kind_of
from finomw.metering.meter import StreamReader
from finomw.money.pricing import PriceList
from finomw.types import Counts, Lsn, OnCrash, UsageStatus

logger = logging.getLogger("finomw")

Durability = Literal["settled", "held", "relaxed"]
_BODILESS = frozenset({204, 205, 304})


class Node(NamedTuple):
    """What an answer needs of the node: the engine, the wait for the disk, how long, and else."""

    engine: Engine
    durable: Durable
    durability: Durability
    failures: Failures


class Responder:
    """Stands between the app and the server for one held call: the app gets its methods."""

    def __init__(
        self,
        node: Node,
        rule: Rule,
        prices: PriceList,
        held: Held,
        head: bool,
        receive: Receive,
        send: Send,
    ) -> None:
        self._node = node
        self._rule = rule
        self._prices = prices
        self._held = held
        self._head = head
        self._receive = receive
        self._send = send
        self._status: int | None = None
        self._waiting: list[Message] | None = None
        """Messages of a JSON answer that waits as a whole; ``None`` when nothing does."""
        self._kept: list[Message] = []
        """The same messages, also when they are about to leave."""
        self._size = 0
        self._reads_json = False
        self._stream: StreamReader | None = None
        self._usage = rule.unread
        self._due: Lsn = 0
        """What has to be on disk before the next message leaves; 0 for nothing."""
        self._begun = False
        """Whether anything has left."""
        self._ended = False
        self._client_left = False
        self._failure: RecordingFailed | None = None
        """Why nothing more may leave."""
        self._unbilled = False
        """Whether everything may, because the call is not charged."""

    async def receive(self) -> Message:
        """Pass on what the server says, and remember if it is that the client has left."""
        message = await self._receive()
        if message["type"] == "http.disconnect":
            self._client_left = True
        return message

    async def send(self, message: Message) -> None:
        """Take a message from the app. Raises `RecordingFailed` to cut an answer under way."""
        if self._failure is not None:
            raise self._failure
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
        await self._send(message)

    async def _start(self, message: Message) -> None:
        headers = message.get("headers", ())
        if not isinstance(headers, list | tuple):
            # Any iterable is allowed, and one that can be read once is the server's to read.
            headers = list(headers)
            message = {**message, "headers": headers}
        self._status = message["status"]
        kind = _kind_of_body(headers)
        if self._bodiless:
            self._end(complete=True)
        elif kind is BodyKind.JSON or _is_empty(headers):
            # A client takes an empty answer for complete when it has seen the head.
            self._reads_json = kind is BodyKind.JSON
            self._waiting = self._kept = [message]
            return
        else:
            if kind is BodyKind.EVENT_STREAM:
                self._stream = self._rule.meter.stream()
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

    async def _body(self, message: Message) -> None:
        last = not message.get("more_body", False)
        # Bodies may be any bytes-like object; of bytes this makes no copy.
        marked = self._stream is not None and self._stream.feed(bytes(message.get("body", b"")))
        if marked or last:
            self._end(complete=True)
        await self._pass(message)

    async def _keep(self, waiting: list[Message], message: Message) -> None:
        """Keep a message of a JSON answer; let all go when it is charged, or too large to keep."""
        waiting.append(message)
        if message["type"] != "http.response.body":
            return
        self._size += len(message.get("body", b""))
        last = not message.get("more_body", False)
        too_large = self._size > self._rule.body_max
        if not last and not too_large:
            return
        if self._reads_json and not too_large:
            self._usage = self._rule.meter.read_json(
                b"".join(kept.get("body", b"") for kept in waiting)
            )
        self._waiting = None
        if last:
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

    def _end(self, complete: bool) -> None:
        """Settle or release, once; the next message waits for it, as far as it has to."""
        engine, held = self._node.engine, self._held
        usage = self._stream.finish() if self._stream is not None else self._usage
        decision = decide(self._rule, usage, Answer(self._status, self._bodiless, complete))
        if isinstance(decision, str):
            self._due = charge.release(engine, held.hold, decision).end
        else:
            ended = self._settle(decision, usage.counts)
            early = self._rule.flat or self._node.durability == "held"
            self._due = held.end if early else ended.end
        self._ended = True

    def _settle(self, decision: Charge, counts: Counts) -> Ended:
        """Charge the counts' price, or the whole hold where they are unknown or beyond price."""
        engine, hold = self._node.engine, self._held.hold
        status, note = decision.usage, "estimated: the hold"
        if not decision.whole_hold:
            try:
                return charge.settle(engine, hold, self._prices.price, counts, status)
            except InvalidValue as error:
                status, note = UsageStatus.INVALID, f"{note} ({error})"
        return charge.settle_whole(engine, hold, counts, status, note)


def _is_empty(headers: Iterable[tuple[bytes, bytes]]) -> bool:
    return any(name.lower() == b"content-length" and value == b"0" for name, value in headers)


def _kind_of_body(headers: Iterable[tuple[bytes, bytes]]) -> BodyKind:
    """Say how an answer can be read; an encoded one cannot."""
    content_type = None
    for name, value in headers:
        lowered = name.lower()
        if lowered == b"content-type":
            content_type = value
        elif lowered == b"content-encoding" and value.strip().lower() != b"identity":
            return BodyKind.OTHER
    return kind_of(content_type)
