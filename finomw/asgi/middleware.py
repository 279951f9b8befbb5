"""`FinoMiddleware`: what is done once, and where each call goes.

The constructor compiles the configuration; the engine opens with the server's lifespan, or at the
first call where there is none, and always in the process that serves (after a fork). A call that
is free or not matched costs a dictionary look-up. A metered one goes from left to right: identify,
price, hold, app, meter, settle, durable, answer.
"""

from __future__ import annotations

from pathlib import Path

from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Receive, Scope, Send
from starlette.websockets import WebSocketDisconnect

from finomw.asgi.admission import Admission
from finomw.asgi.lifespan import run_lifespan
from finomw.asgi.problems import Refused, send_refusal
from finomw.asgi.request import ClientLeft, RequestBody
from finomw.asgi.responder import Responder
from finomw.asgi.routes import Matched, app_path
from finomw.asgi.rules import Rule, SocketRule, compile_config
from finomw.asgi.serving import Node, Serving
from finomw.asgi.state import show
from finomw.asgi.transform import Rewriter, request_headers
from finomw.asgi.websocket import Connection, refuse_connection
from finomw.config.load import resolve
from finomw.config.match import WEBSOCKET
from finomw.config.model import Config
from finomw.engine.engine import Health
from finomw.system import require_linux

_UNMETERABLE = frozenset(
    {"http.response.pathsend", "http.response.zerocopysend", "http.response.trailers"}
)


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
        self._serving = Serving(self._rules.config)
        self._admission = Admission(self._rules, self._serving)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one connection scope."""
        if scope["type"] == "lifespan":
            await run_lifespan(self.app, scope, receive, send, self._serving.start, self.close)
            return
        if scope["type"] == "websocket":
            await self._websocket(scope, receive, send)
            return
        if scope["type"] != "http" or _is_preflight(scope):
            await self.app(scope, receive, send)
            return
        matched = self._rules.router.find(scope["method"], app_path(scope))
        if matched is not None and matched.rule is not None:
            with self._serving.under_way():
                await self._call(matched, matched.rule, scope, receive, send)
        elif matched is None and self._rules.config.unmatched == "refuse":
            await send_refusal(send, Refused("unmatched"))
        else:
            await self.app(scope, receive, send)

    async def _websocket(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve a WebSocket: by its own rules, which are those with ``WS``."""
        matched = self._rules.sockets.find(WEBSOCKET, app_path(scope))
        if matched is not None and matched.rule is not None:
            with self._serving.under_way():
                await self._connection(matched, matched.rule, scope, receive, send)
        elif matched is None and self._rules.config.unmatched == "refuse":
            await refuse_connection(scope, receive, send, Refused("unmatched"))
        else:
            await self.app(scope, receive, send)

    async def _call(
        self, matched: Matched[Rule], rule: Rule, scope: Scope, receive: Receive, send: Send
    ) -> None:
        """Run one metered call, from left to right."""
        body = RequestBody(receive)
        try:
            admitted = await self._admission.admit(matched, rule, scope, body)
        except ClientLeft:
            return
        if isinstance(admitted, Refused):
            await send_refusal(send, admitted)
            return
        head = scope["method"] == "HEAD"
        if admitted is None:
            send = _rewriting(rule, body, self._serving.opened, head, send)
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
        admitted = await self._admission.admit(matched, rule, scope, None)
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

    def health(self) -> Health | None:
        """Return how billing does in this process, for a probe; ``None`` where it is not open.

        It opens with the server's lifespan, or else at the first call. Raises `RecordingFailed`
        where the state cannot be read.
        """
        return self._serving.health()

    def close(self) -> None:
        """Close the engine, after the last call under way has ended."""
        self._serving.close()


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
