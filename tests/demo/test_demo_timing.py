"""The two stopwatches, by a clock that moves only where the test says so."""

from __future__ import annotations

import asyncio

import httpx
import pytest
from fastapi import FastAPI
from fastapi.responses import StreamingResponse

from finomw.demo import NUMBER_HEADER, OVERHEAD_PATH, timing

APP, BEFORE, SENDING, AFTER = 1_000, 20, 3, 400


class HandClock:
    """A monotonic clock moved by hand."""

    def __init__(self) -> None:
        self.time = 0

    def monotonic(self) -> int:
        return self.time


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> HandClock:
    clock = HandClock()
    monkeypatch.setattr(timing, "_clock", clock)
    return clock


def measured(clock: HandClock) -> FastAPI:
    """Return an app inside a middleware, both of which take known times."""
    app = FastAPI()

    @app.get("/work")
    async def work() -> StreamingResponse:
        async def chunks():
            for chunk in ("a", "b"):
                clock.time += APP
                yield chunk

        return StreamingResponse(chunks())

    class Costly:
        def __init__(self, app):
            self.app = app

        async def __call__(self, scope, receive, send):
            async def costly_send(message):
                clock.time += SENDING
                await send(message)

            if scope["path"] == "/refused":
                clock.time += BEFORE
                await send({"type": "http.response.start", "status": 402, "headers": []})
                await send({"type": "http.response.body", "body": b""})
                return
            clock.time += BEFORE
            await self.app(scope, receive, costly_send)
            clock.time += AFTER

    app.add_middleware(Costly)
    timing.Timings().add_to(app)
    return app


async def overhead_of(app: FastAPI, path: str) -> int:
    transport = httpx.ASGITransport(app)
    async with httpx.AsyncClient(transport=transport, base_url="http://demo") as client:
        await client.get(path, headers={NUMBER_HEADER: "7"})
        answer = await client.get(OVERHEAD_PATH.format(number=7))
        return answer.json()["overhead_ns"]


def test_the_overhead_is_all_that_the_middleware_takes_and_nothing_of_the_app(clock) -> None:
    messages = 4  # the start, two chunks, the end
    overhead = asyncio.run(overhead_of(measured(clock), "/work"))
    assert overhead == BEFORE + messages * SENDING + AFTER


def test_the_overhead_of_a_refused_call_is_its_whole_time(clock) -> None:
    assert asyncio.run(overhead_of(measured(clock), "/refused")) == BEFORE
