"""`FinoMiddleware`: what is done once, and where each call goes.

The constructor compiles the configuration; the engine opens with the server's lifespan, or at the
first call where there is none, and always in the process that serves (after a fork). A call that
is free or not matched costs a dictionary look-up. A metered one goes from left to right: identify,
price, hold, app, meter, settle, durable, answer.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import NamedTuple

from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Receive, Scope, Send
from starlette.websockets import WebSocketDisconnect

from finomw.asgi.failure import Failures
from finomw.asgi.identity import Caller, identify
from finomw.asgi.lifespan import run_lifespan
from finomw.asgi.problems import REFUSAL_REASONS, Refused, send_refusal
from finomw.asgi.quote import Quote, quote
from finomw.asgi.request import ClientLeft, RequestBody, TooLarge, declared_size, is_encoded
from finomw.asgi.responder import Node, Responder
from finomw.asgi.routes import Matched, app_path
from finomw.asgi.rules import PricedRule, Rule, SocketRule, compile_config
from finomw.asgi.state import Call, CallHold, show
from finomw.asgi.transform import Rewriter, request_headers
from finomw.asgi.websocket import Connection, refuse_connection
from finomw.config.load import resolve
from finomw.config.match import WEBSOCKET
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
from finomw.metering.allowance import Allowance, NotInline
from finomw.metering.documents import Document
from finomw.metering.guard import Guard
from finomw.money.account import remaining_percent
from finomw.money.pricing import PriceList
from finomw.node.housekeeper import Housekeeper
from finomw.system import require_linux
from finomw.types import Counts, Refusal

_UNMETERABLE = frozenset(
    {"http.response.pathsend", "http.response.zerocopysend", "http.response.trailers"}
)


class Admitted(NamedTuple):
    """A call that was let in: where, at what prices, its hold, and for how much that is."""

    node: Node
    prices: PriceList
    held: Held
    ceiling: Counts
    call: Call


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
        if scope["type"] == "websocket":
            await self._websocket(scope, receive, send)
            return
        if scope["type"] != "http" or _is_preflight(scope):
            await self.app(scope, receive, send)
            return
        matched = self._rules.router.find(scope["method"], app_path(scope))
        if matched is not None and matched.rule is not None:
            with self._under_way():
                await self._call(matched, matched.rule, scope, receive, send)
        elif matched is None and self._rules.config.unmatched == "refuse":
            await send_refusal(send, Refused("unmatched"))
        else:
            await self.app(scope, receive, send)

    async def _websocket(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve a WebSocket: by its own rules, which are those with ``WS``."""
        matched = self._rules.sockets.find(WEBSOCKET, app_path(scope))
        if matched is not None and matched.rule is not None:
            with self._under_way():
                await self._connection(matched, matched.rule, scope, receive, send)
        elif matched is None and self._rules.config.unmatched == "refuse":
            await refuse_connection(scope, receive, send, Refused("unmatched"))
        else:
            await self.app(scope, receive, send)

    @contextmanager
    def _under_way(self) -> Iterator[None]:
        """Count a call, so that the engine is open until the last one has ended."""
        if self._pid != os.getpid():
            # Calls under way when this process was forked are its parent's.
            self._pid, self._calls = os.getpid(), 0
        self._calls += 1
        try:
            yield
        finally:
            self._calls -= 1
            if self._closing and not self._calls:
                self._close()

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
        head = scope["method"] == "HEAD"
        if admitted is None:
            send = _rewriting(rule, body, self._served, head, send)
            await self.app(_metered_scope(scope, body), body.receive, send)
            return
        node, prices, held, ceiling, seen = admitted
        send = _rewriting(rule, body, node, head, send)
        responder = Responder(node, rule, prices, held, ceiling, seen, head, body.receive, send)
        show(scope, seen)
        try:
            await self.app(_metered_scope(scope, body), responder.receive, responder.send)
        except (OSError, ClientDisconnect):
            if not responder.was_cut:  # else that is how the app was told to stop
                raise
        finally:
            responder.abandon()

    async def _connection(
        self,
        matched: Matched[SocketRule],
        rule: SocketRule,
        scope: Scope,
        receive: Receive,
        send: Send,
    ) -> None:
        """Run one metered WebSocket; one that is refused is never shown to the app."""
        admitted = await self._admit(matched, rule, scope, None)
        if isinstance(admitted, Refused):
            await refuse_connection(scope, receive, send, admitted)
            return
        if admitted is None:
            await self.app(scope, receive, send)
            return
        connection = Connection(*admitted, rule, scope, receive, send)
        show(scope, admitted.call)
        complete = False
        try:
            await self.app(scope, connection.receive, connection.send)
            complete = True
        except (OSError, WebSocketDisconnect):
            if not connection.was_cut:  # else that is how the app was told to stop
                raise
        finally:
            connection.finish(complete=complete)

    async def _admit(
        self,
        matched: Matched[Rule] | Matched[SocketRule],
        rule: Rule | SocketRule,
        scope: Scope,
        body: RequestBody | None,
    ) -> Admitted | Refused | None:
        """Take a call as far as its hold, whose flush is then under way; or say why not.

        ``None`` is a call that billing cannot record, and that passes unbilled.
        """
        try:
            node = self._node()
            caller = identify(node.engine, scope)
            if isinstance(caller, Refused):
                return caller
            request, size = b"", 0
            if isinstance(rule, Rule) and body is not None:
                read = await _read_request(rule, scope, body, node.guard)
                if isinstance(read, Refused):
                    return read
                request, size = read
            if request:
                # That may have taken long. A plan that has changed since would begin its quotas'
                # periods, and those stand until their end; a key may have been revoked.
                caller = identify(node.engine, scope)
                if isinstance(caller, Refused):
                    return caller
            plan = self._rules.plans.get(caller.account.plan)
            document = Document(request, Allowance())
            try:
                quoted = quote(rule, plan, matched, document, size, node.engine.clock.now())
            except NotInline:
                programs = [*rule.ceiling.programs, *(plan.programs(rule.name) if plan else ())]
                document = await node.guard.read(programs, request)
                caller = identify(node.engine, scope)
                if isinstance(caller, Refused):
                    return caller
                plan = self._rules.plans.get(caller.account.plan)
                quoted = quote(rule, plan, matched, document, size, node.engine.clock.now())
            if isinstance(quoted, Refused):
                return quoted
            held = self._hold(node, self._hold_request(rule, caller, quoted))
            if isinstance(held, Refusal):
                return self._refused(held, caller)
        except TooLarge as error:
            return Refused("request_too_large", str(error))
        except NotInline:  # the plan has changed while its programs were run apart
            return Refused("invalid_request", "The request takes too long to read.")
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
        hold = CallHold(quoted.ceiling, rule.splits)
        seen = Call(caller.customer, hold, rule.addable)
        return Admitted(node, quoted.prices, held, quoted.ceiling, seen)

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

    def _hold_request(self, rule: PricedRule, caller: Caller, quoted: Quote) -> HoldRequest:
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
            tuple(meter for meter in rule.meters if meter in prices.tiered_meters),
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
            if self._served is not None:
                self._served.guard.close()
            durable = Durable(self._engine, loop)
            durability = self._rules.config.durability
            node = self._served = Node(self._engine, durable, durability, self._failures, Guard())
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
            served.guard.close()
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


def _metered_scope(scope: Scope, body: RequestBody) -> Scope:
    """Hide the ways to answer that cannot be metered, and tell the size of a body that is new.

    Everything else is the app's as it is.
    """
    if body.replaced is not None:
        scope = {**scope, "headers": request_headers(scope["headers"], body.replaced)}
    extensions = scope.get("extensions")
    if not extensions or _UNMETERABLE.isdisjoint(extensions):
        return scope
    kept = {name: value for name, value in extensions.items() if name not in _UNMETERABLE}
    return {**scope, "extensions": kept}


def _rewriting(rule: Rule, body: RequestBody, node: Node | None, head: bool, send: Send) -> Send:
    """Return what sends an answer, rewritten where the rule or the request asks for it."""
    if node is None or not (rule.rewrites.changes_answers or body.asks_usage):
        return send
    return Rewriter(rule.rewrites, node.guard, head, body.asks_usage, send).send


async def _read_request(
    rule: Rule, scope: Scope, body: RequestBody, guard: Guard
) -> tuple[bytes, int] | Refused:
    """Return what the rule has to know of a request: its text, if that, and its size in bytes.

    Both are of what the app will see. Raises `TooLarge`, `ClientLeft`.
    """
    size = 0
    if rule.sizes_request:
        if is_encoded(scope["headers"]):
            return Refused("invalid_request", "The request's body is compressed.")
        size = declared_size(scope["headers"]) or 0
        if size > rule.request_max:
            raise TooLarge(rule.request_max)
    if not rule.reads_request and (size or not rule.sizes_request):
        return b"", size
    request = await body.read(rule.request_max)
    if rule.rewrites.changes_requests:
        rewritten = await rule.rewrites.rewrite_request(request, scope["headers"], guard)
        if isinstance(rewritten, Refused):
            return rewritten
        if rewritten.body is not request:
            body.replace(rewritten.body)
        request, body.asks_usage = rewritten
    return request, len(request)
