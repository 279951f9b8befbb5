"""`FinoMiddleware`: what is done once, and where each call goes.

The constructor compiles the configuration; the engine opens with the server's lifespan, or at the
first call where there is none, and always in the process that serves (after a fork). A call that
is free or not matched costs a dictionary look-up. A metered one goes from left to right: identify,
price, hold, app, meter, settle, durable, answer.
"""

from __future__ import annotations

import asyncio
import os
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

from starlette.types import ASGIApp, Receive, Scope, Send

from finomw.asgi.failure import Failures
from finomw.asgi.identity import Caller, identify
from finomw.asgi.lifespan import run_lifespan
from finomw.asgi.problems import REFUSAL_REASONS, Refused, send_refusal
from finomw.asgi.quote import Quote, quote
from finomw.asgi.request import ClientLeft, RequestBody, TooLarge
from finomw.asgi.responder import Node, Responder
from finomw.asgi.routes import Matched, app_path
from finomw.asgi.rules import Rule, compile_config
from finomw.config.load import resolve
from finomw.config.model import Config
from finomw.engine import charge
from finomw.engine.charge import Held, HoldRequest
from finomw.engine.durable import Durable
from finomw.engine.engine import Engine, Health, close_engine, open_engine
from finomw.errors import (
    DirectoryError,
    InvalidValue,
    InvariantBroken,
    JournalDamaged,
    RecordingFailed,
    ReplayDiffers,
)
from finomw.money.account import remaining_percent
from finomw.money.pricing import PriceList
from finomw.node.housekeeper import Housekeeper
from finomw.system import require_linux
from finomw.types import Refusal

_UNMETERABLE = frozenset(
    {"http.response.pathsend", "http.response.zerocopysend", "http.response.trailers"}
)


class Admitted(NamedTuple):
    """A call that was let in: where, at what prices, and its hold."""

    node: Node
    prices: PriceList
    held: Held


class FinoMiddleware:
    """ASGI middleware that charges for the calls of the app inside it.

    ``config`` is the path of a YAML file, a parsed `Config`, or nothing: then the environment
    variable ``FINOMW_CONFIG`` names the file. Raises `ConfigError` with every problem found,
    `UnsupportedSystem` on other systems than Linux.
    """

    def __init__(self, app: ASGIApp, config: str | Path | Config | None = None) -> None:
        require_linux()
        self.app = app
        self._rules = compile_config(resolve(config))
        self._engine: Engine | None = None
        self._housekeeper: Housekeeper | None = None
        self._served: Node | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._failures = Failures(self._rules.config.on_failure)
        self._pid = os.getpid()
        self._calls = 0
        self._closing = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one connection scope."""
        if scope["type"] == "lifespan":
            await run_lifespan(self.app, scope, receive, send, self._start, self.close)
            return
        if scope["type"] != "http" or _is_preflight(scope):
            await self.app(scope, receive, send)
            return
        matched = self._rules.router.find(scope["method"], app_path(scope))
        if matched is not None and matched.rule is not None:
            if self._pid != os.getpid():
                # Calls under way when this process was forked are its parent's.
                self._pid, self._calls = os.getpid(), 0
            self._calls += 1
            try:
                await self._call(matched, matched.rule, scope, receive, send)
            finally:
                self._calls -= 1
                if self._closing and not self._calls:
                    self._close()
        elif matched is None and self._rules.config.unmatched == "refuse":
            await send_refusal(send, Refused("unmatched"))
        else:
            await self.app(scope, receive, send)

    async def _call(
        self, matched: Matched[Rule], rule: Rule, scope: Scope, receive: Receive, send: Send
    ) -> None:
        """Run one metered call, from left to right."""
        body = RequestBody(receive)
        try:
            admitted = await self._admit(matched, rule, scope, body)
        except ClientLeft:
            return
        if isinstance(admitted, Refused):
            await send_refusal(send, admitted)
            return
        if admitted is None:
            await self.app(scope, body.receive, send)
            return
        node, prices, held = admitted
        head = scope["method"] == "HEAD"
        responder = Responder(node, rule, prices, held, head, body.receive, send)
        try:
            await self.app(_metered_scope(scope), responder.receive, responder.send)
        finally:
            responder.abandon()

    async def _admit(
        self, matched: Matched[Rule], rule: Rule, scope: Scope, body: RequestBody
    ) -> Admitted | Refused | None:
        """Take a call as far as its hold, whose flush is then under way; or say why not.

        ``None`` is a call that billing cannot record, and that passes unbilled.
        """
        try:
            node = self._node()
            caller = identify(node.engine, scope)
            if isinstance(caller, Refused):
                return caller
            request = b""
            if rule.reads_request:
                request = await body.read(rule.request_max)
                # That may have taken long. A plan that has changed since would begin its quotas'
                # periods, and those stand until their end; a key may have been revoked.
                caller = identify(node.engine, scope)
                if isinstance(caller, Refused):
                    return caller
            plan = self._rules.plans.get(caller.account.plan)
            quoted = quote(rule, plan, matched, request, node.engine.clock.now())
            if isinstance(quoted, Refused):
                return quoted
            held = self._hold(node, self._hold_request(rule, caller, quoted))
            if isinstance(held, Refusal):
                return self._refused(held, caller)
        except TooLarge:
            detail = f"This call may send at most {rule.request_max} bytes."
            return Refused("request_too_large", detail)
        except InvalidValue:
            return Refused("invalid_request", "The request may use more than one call can cost.")
        except (RecordingFailed, DirectoryError, JournalDamaged, ReplayDiffers, OSError) as error:
            # A directory that is not there or damaged is no trouble that a call could pass by.
            if self._failures.passes and isinstance(error, RecordingFailed):
                self._failures.count_unbilled(self._engine, error)
                return None
            self._failures.note("a call was refused", error)
            return Refused("cannot_record")
        self._failures.over()
        return Admitted(node, quoted.prices, held)

    def _hold(self, node: Node, request: HoldRequest) -> Held | Refusal:
        """Hold, and begin the flush. Raises `RecordingFailed` where no refusal can be read."""
        held = None
        try:
            held = charge.hold(node.engine, request)
            if isinstance(held, Held):
                node.durable.begin(held.end)
        except RecordingFailed:
            if isinstance(held, Held):
                charge.abandon(node.engine, held.hold)
            refusal = charge.refusal(node.engine, request) if self._failures.passes else None
            if refusal is None:
                raise
            return refusal
        return held

    def _hold_request(self, rule: Rule, caller: Caller, quoted: Quote) -> HoldRequest:
        prices = quoted.prices
        # Who asks for nothing of something that has a price holds the least there is of it: so
        # that a call that may cost something needs a balance.
        least = prices.costs and not any(quoted.ceiling.values())
        return HoldRequest(
            caller.customer,
            caller.key,
            rule.name,
            1 if least else prices.worst,
            quoted.ceiling,
            self._rules.buffer,
            rule.on_crash,
            prices.version,
            quoted.choice,
            caller.account.plan,
            quoted.terms,
            tuple(meter for meter in quoted.ceiling if meter in prices.tiered_meters),
            rule.cap,
            settle=prices.price if rule.flat else None,
        )

    def _refused(self, refusal: Refusal, caller: Caller) -> Refused:
        """Say why there was no hold, with what helps: how much is left, where to top up."""
        reason = REFUSAL_REASONS[refusal]
        extra: dict[str, object] = {"remaining_percent": remaining_percent(caller.account)}
        if self._rules.config.topup_url is not None:
            extra["topup_url"] = self._rules.config.topup_url
        return Refused(reason, extra=extra)

    def _node(self) -> Node:
        """Return the node as this process and event loop use it, opening it if need be."""
        loop = asyncio.get_running_loop()
        node = self._served
        if node is None or node.engine.pid != os.getpid():
            node = None
            self._open()
        if node is None or self._loop is not loop:
            if self._engine is None:
                raise InvariantBroken("an engine that was opened is not there")
            durable = Durable(self._engine, loop)
            durability = self._rules.config.durability
            node = self._served = Node(self._engine, durable, durability, self._failures)
            self._loop = loop
        return node

    def health(self) -> Health | None:
        """Return how billing does in this process, for a probe; ``None`` where it is not open.

        It opens with the server's lifespan, or else at the first call. Raises `RecordingFailed`
        where the state cannot be read.
        """
        engine = self._engine
        if engine is None or engine.pid != os.getpid():
            return None
        health = engine.health()
        return health._replace(unbilled=health.unbilled + self._failures.unbilled)

    def _start(self) -> None:
        """Open at the server's start; a failed node fails it, unless calls may pass unbilled."""
        try:
            self._open()
        except RecordingFailed as error:
            if not self._failures.passes:
                raise
            self._failures.note("cannot be opened", error)

    def _open(self) -> None:
        """Open the engine in this process, and end what dead workers left."""
        self._closing = False
        self._served = None
        if self._engine is not None and self._engine.pid == os.getpid():
            return
        engine = open_engine(self._rules.config.data)
        with ExitStack() as undo:
            # Nobody serves without a housekeeper: who cannot have one now tries again.
            undo.callback(close_engine, engine)
            housekeeper = Housekeeper(engine, self._rules.config.storage)
            undo.callback(housekeeper.stop)
            housekeeper.round()
            housekeeper.start()
            undo.pop_all()
        self._engine, self._housekeeper = engine, housekeeper

    def close(self) -> None:
        """Close the engine, after the last call under way has ended."""
        self._closing = True
        if not self._calls:
            self._close()

    def _close(self) -> None:
        engine, housekeeper, served = self._engine, self._housekeeper, self._served
        self._engine = self._housekeeper = self._served = None
        if served is not None:
            served.durable.close()
        if housekeeper is not None:
            housekeeper.stop()
        if engine is not None:
            close_engine(engine)


def _is_preflight(scope: Scope) -> bool:
    """Say whether a browser is asking for permission; it does so without a key."""
    if scope["method"] != "OPTIONS":
        return False
    names = {bytes(name).lower() for name, _ in scope["headers"]}
    return b"origin" in names and b"access-control-request-method" in names


def _metered_scope(scope: Scope) -> Scope:
    """Hide the ways to answer that cannot be metered; everything else is the app's as it is."""
    extensions = scope.get("extensions")
    if not extensions or _UNMETERABLE.isdisjoint(extensions):
        return scope
    kept = {name: value for name, value in extensions.items() if name not in _UNMETERABLE}
    return {**scope, "extensions": kept}
