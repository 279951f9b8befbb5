"""The state of one WebSocket: what passes, what is counted, and when the connection is charged.

The hold is made before the app hears of the connection. So whoever may not or cannot pay is refused
with an HTTP answer where the server can give one before the handshake, else by a close, which the
client sees as 403. From the accept on every message counts as the rule says. The app's close waits
until the charge is on disk; a client that leaves is charged when the app has returned, and may
still be told what it used until then.

A connection that comes to more than is held is closed with code 1008: before the app gets the
client's message that would be too much, or after its own message that was. Its charge is at most
what was held for. Every connection ends once, whatever happened; one that was never accepted is
free.
"""

from __future__ import annotations

import asyncio
import logging
import os
from typing import Final

from starlette.types import Message, Receive, Scope, Send

from finomw.asgi.bill import Bill
from finomw.asgi.ending import Answer
from finomw.asgi.estimation import Passed
from finomw.asgi.problems import Refused, send_refusal
from finomw.asgi.rules import SocketRule
from finomw.asgi.serving import Node
from finomw.asgi.state import Call
from finomw.engine import charge
from finomw.engine.charge import Held
from finomw.errors import RecordingFailed
from finomw.metering.messages import Both, MessageTally
from finomw.metering.splits import apart
from finomw.metering.usage import Usage, usage_of
from finomw.money.pricing import PriceList
from finomw.types import Counts, Lsn, OnCrash

logger = logging.getLogger("finomw")

DENIAL: Final = "websocket.http.response"
"""The extension by which a server lets a handshake be answered."""
POLICY_VIOLATION: Final = 1008
_SWITCHING: Final = 101
"""The status of a handshake that was accepted."""
_CUT: Final[Message] = {
    "type": "websocket.close",
    "code": POLICY_VIOLATION,
    "reason": "The most that this connection may use was reached.",
}


class ConnectionCut(OSError):
    """The connection was closed at its ceiling: to the app, the client has left."""


async def refuse_connection(scope: Scope, receive: Receive, send: Send, refused: Refused) -> None:
    """Refuse a WebSocket before it is accepted."""
    message = await receive()
    if message["type"] == "websocket.connect":
        await _deny(scope, send, refused)


async def _deny(scope: Scope, send: Send, refused: Refused) -> None:
    if DENIAL not in scope.get("extensions", {}):
        await send({"type": "websocket.close", "code": POLICY_VIOLATION, "reason": refused.reason})
        return

    async def send_denial(message: Message) -> None:
        await send({**message, "type": f"websocket.{message['type']}"})

    await send_refusal(send_denial, refused)


class Connection:
    """Stands between the app and the server for one held WebSocket: the app gets its methods."""

    def __init__(
        self,
        node: Node,
        prices: PriceList,
        held: Held,
        ceiling: Counts,
        seen: Call,
        rule: SocketRule,
        scope: Scope,
        receive: Receive,
        send: Send,
    ) -> None:
        self._node = node
        self._held = held
        self._bill = Bill(node.engine, rule, prices, held, ceiling)
        self._seen = seen
        self._rule = rule
        self._scope = scope
        self._receive = receive
        self._send = send
        self._both = Both(rule.receive.tally(), rule.send.tally())
        self._sending = asyncio.Lock()
        """Messages leave in the order in which they came, also where one takes longer to read."""
        self._passed = 0
        """Bytes of all messages, in either direction."""
        self._accepted = False
        self._ended = False
        self._client_left = False
        self._failure: RecordingFailed | None = None
        """Why nothing more may leave."""
        self.was_cut = False

    async def receive(self) -> Message:
        """Pass on what the server says; a message that is too much ends the connection."""
        if self.was_cut:
            return _gone()
        message = await self._receive()
        if message["type"] == "websocket.disconnect":
            self._client_left = True
        elif message["type"] == "websocket.receive" and not await self._admits(message):
            return _gone()
        return message

    async def _admits(self, message: Message) -> bool:
        """Count a message of the client; say whether the app may have it."""
        if not self._ended:
            before = self._usage()
            await self._count(self._both.receive, message)
            if self._exceeded():
                async with self._sending:
                    await self._cut(before)
            else:
                self._step()
        return not self.was_cut

    async def send(self, message: Message) -> None:
        """Take a message from the app.

        Raises `RecordingFailed` where the connection cannot be charged, `ConnectionCut` after it
        was cut.
        """
        async with self._sending:
            if self._failure is not None:
                raise self._failure
            if self.was_cut:
                if message["type"] == "websocket.close":
                    return  # the app is tidying up
                raise ConnectionCut("the connection was closed at its ceiling")
            try:
                await self._take(message)
            except RecordingFailed as error:
                self._failure = error
                if self._accepted:
                    raise
                logger.error("a connection was refused: %s", error)
                await _deny(self._scope, self._send, Refused("cannot_record"))

    async def _take(self, message: Message) -> None:
        kind = message["type"]
        if kind == "websocket.accept" and not self._ended:
            await self._wait(self._begin())
            self._accepted = True
        elif kind == "websocket.send" and not self._ended:
            await self._count(self._both.send, message)
            await self._send(message)
            if self._exceeded():
                await self._cut(self._usage())
            else:
                self._step()
            return
        elif not self._ended:  # a close, or the app's own answer to the handshake
            await self._wait(self._end(complete=True))
        await self._send(message)

    def _begin(self) -> Lsn:
        """See to it that a crash does not release the hold; return what has to be on disk."""
        self._bill.begin()
        if self._rule.on_crash is OnCrash.RELEASE:
            return charge.start(self._node.engine, self._held)
        return self._held.end

    async def _wait(self, end: Lsn) -> None:
        if self._node.durability != "relaxed":
            await self._node.durable.wait(end)

    async def _count(self, tally: MessageTally, message: Message) -> None:
        content = _content(message)
        self._passed += len(content)
        await tally.take(content, self._node.guard)

    def _usage(self, *, last: bool = False) -> Usage:
        """Return what is known so far, with what the app has said."""
        outcomes = {**self._rule.constants, **self._both.outcomes()}
        usage = usage_of(apart(outcomes, self._rule.parts), error=False)
        return self._seen.counted(usage, last=last)

    def _answer(self, complete: bool) -> Answer:
        return Answer(_SWITCHING, False, complete, Passed(self._passed, 0))

    def _exceeded(self) -> bool:
        if not self._rule.cuts or self._rule.flat or self._ended:
            return False
        return self._bill.exceeds(self._usage(), Passed(self._passed, 0))

    async def _cut(self, usage: Usage) -> None:
        """Close the connection; it is charged for this usage, as far as it was held for."""
        if self._ended:
            return
        await self._wait(self._end(complete=True, cut=usage))
        self.was_cut = True
        await self._send(_CUT)

    def _step(self) -> None:
        """Settle what has come so far, if it is time to; nothing waits for it."""
        if self._bill.in_steps and not self._ended:
            stepped = self._bill.step(self._usage(), self._answer(complete=False))
            if stepped:
                self._node.durable.begin(stepped)

    def finish(self, *, complete: bool) -> None:
        """End the connection if nothing did: the client has left, or the app returned or raised.

        ``complete`` tells that the app returned. An app that raises because its client has left
        is through as well.
        """
        engine, hold = self._node.engine, self._held.hold
        if self._ended or engine.pid != os.getpid():
            return  # in a process that was forked meanwhile the connection is the parent's
        try:
            self._end(complete=complete or self._client_left)
        except RecordingFailed as error:
            logger.error("hold %s is left to the housekeeper: %s", hold, error)
        finally:
            charge.abandon(engine, hold)

    def _end(self, complete: bool, cut: Usage | None = None) -> Lsn:
        """Settle or release, once; return what has to be on disk before the client sees it."""
        usage = self._usage(last=True)
        if not self._accepted:
            hold, note = self._held.hold, "the connection was not accepted"
            end, settled = charge.release(self._node.engine, hold, note).end, False
        elif cut is not None:
            end, settled = self._bill.end(cut, self._answer(complete), cut=True)
        else:
            end, settled = self._bill.end(usage, self._answer(complete))
        self._ended = True
        early = self._rule.flat or self._node.durability == "held"
        return self._held.end if early and settled else end


def _content(message: Message) -> bytes:
    """Return what a message carries: one of text and bytes, the other may be there as None."""
    content = message.get("bytes")
    if content is None:
        content = (message.get("text") or "").encode("utf-8", "surrogatepass")
    return bytes(content)


def _gone() -> Message:
    return {"type": "websocket.disconnect", "code": POLICY_VIOLATION, "reason": _CUT["reason"]}
