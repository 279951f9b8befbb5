"""What finomw costs a call, measured: its time through the middleware minus the time in the app.

Two stopwatches, one outside the middleware and one inside it. Neither runs while a message is
being sent: the outer one so leaves out the server's work, and the inner one counts as the
middleware's all that the app waits for it, the disk included. What is flushed while the app works
or sleeps of itself counts as the app's time. Only calls that carry a number are measured.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from typing import Final

from fastapi import FastAPI
from starlette.middleware import Middleware
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from finomw.clock import SystemClock
from finomw.demo import NUMBER_HEADER, OVERHEAD_PATH

_INSIDE: Final = "finomw.demo.inside"
_clock: Final = SystemClock()


class Timings:
    """The overhead of each measured call, in nanoseconds, until somebody has asked for it."""

    def __init__(self) -> None:
        self._overheads: defaultdict[int, asyncio.Future[int]] = defaultdict(asyncio.Future)

    def add_to(self, app: FastAPI) -> None:
        """Measure the calls of an app, and answer under `OVERHEAD_PATH` with what they cost."""
        app.add_middleware(_Outside, timings=self)
        app.user_middleware.append(Middleware(_Inside))  # the list goes from the outside in
        app.add_api_route(OVERHEAD_PATH, self.overhead)

    def put(self, number: int, overhead: int) -> None:
        """Keep the overhead of a call that has ended."""
        self._overheads[number].set_result(overhead)

    async def overhead(self, number: int) -> dict[str, int]:
        """Return what a call cost, as soon as it has ended."""
        overhead = await self._overheads[number]
        del self._overheads[number]
        return {"overhead_ns": overhead}


async def _time(app: ASGIApp, scope: Scope, receive: Receive, send: Send) -> int:
    """Serve a call; return the nanoseconds that went into it, other than into sending."""
    sending = 0

    async def timed_send(message: Message) -> None:
        nonlocal sending
        began = _clock.monotonic()
        await send(message)
        sending += _clock.monotonic() - began

    began = _clock.monotonic()
    await app(scope, receive, timed_send)
    return _clock.monotonic() - began - sending


class _Outside:
    """The outer stopwatch."""

    def __init__(self, app: ASGIApp, timings: Timings) -> None:
        self._app = app
        self._timings = timings

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        number = _number_of(scope)
        if number is None:
            await self._app(scope, receive, send)
            return
        inside = scope[_INSIDE] = []
        total = await _time(self._app, scope, receive, send)
        self._timings.put(number, total - sum(inside))


class _Inside:
    """The inner stopwatch; a refused call never comes here."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        inside = scope.get(_INSIDE)
        if inside is None:
            await self._app(scope, receive, send)
        else:
            inside.append(await _time(self._app, scope, receive, send))


def _number_of(scope: Scope) -> int | None:
    if scope["type"] == "http":
        for name, value in scope["headers"]:
            if name == NUMBER_HEADER.encode() and value.isdigit():
                return int(value)
    return None
