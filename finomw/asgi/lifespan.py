"""Opening and closing with the server.

Where the server speaks lifespan, the engine is open before the app starts, and a failure is told
to the server in one line instead of on the first call. Everything else passes untouched: the app
sees the same messages, in the same order.
"""

from __future__ import annotations

from collections.abc import Callable

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from finomw.errors import FinomwError


async def run_lifespan(
    app: ASGIApp,
    scope: Scope,
    receive: Receive,
    send: Send,
    startup: Callable[[], object],
    shutdown: Callable[[], None],
) -> None:
    """Call ``startup`` before the app's own and ``shutdown`` after it, in the app's lifespan."""
    first: Message | None = await receive()
    if first is not None and first["type"] == "lifespan.startup":
        try:
            startup()
        except (FinomwError, OSError) as error:
            await send({"type": "lifespan.startup.failed", "message": f"finomw: {error}"})
            return

    async def receive_after_first() -> Message:
        nonlocal first
        if first is None:
            return await receive()
        message, first = first, None
        return message

    try:
        await app(scope, receive_after_first, send)
    finally:
        shutdown()
