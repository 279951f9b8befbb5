"""A small API for end-to-end tests, served by uvicorn with ``FINOMW_CONFIG`` set.

``tokens`` in the query says what a call uses. A call given ``gate`` waits, when it has begun, until
the file of that name is there.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

from starlette.applications import Starlette
from starlette.background import BackgroundTask
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route

from finomw import FinoMiddleware


async def passed(request: Request) -> None:
    """Wait until the call's gate is open, if it has one."""
    gate = request.query_params.get("gate")
    while gate and not Path(gate).exists():  # noqa: ASYNC110, ASYNC240
        await asyncio.sleep(0.01)


def used(request: Request) -> dict[str, object]:
    return {"text": "hello", "usage": {"tokens": int(request.query_params.get("tokens", 0))}}


async def chat(request: Request) -> Response:
    await passed(request)
    mark = request.query_params.get("mark")
    background = BackgroundTask(Path(mark).touch) if mark else None
    return JSONResponse(used(request), background=background)


async def stream(request: Request) -> Response:
    async def events() -> AsyncIterator[bytes]:
        for word in ("one", "two", "three"):
            yield b'data: {"text": "%s"}\n\n' % word.encode()
        await passed(request)
        yield b"data: " + JSONResponse(used(request)).body + b"\n\n"
        yield b"data: [DONE]\n\n"

    return StreamingResponse(events(), media_type="text/event-stream")


async def bare(request: Request) -> Response:
    """Answer with a status that has no body, or with an empty one."""
    status = int(request.query_params["status"])
    return Response(status_code=status, headers={"etag": '"x"'})


async def health(request: Request) -> Response:
    return PlainTextResponse("ok")


app = Starlette(
    routes=[
        Route("/health", health),
        Route("/flat", chat, methods=["GET", "POST"]),
        Route("/chat", chat, methods=["GET", "POST"]),
        Route("/stream", stream, methods=["POST"]),
        Route("/bare", bare),
        Route("/flat_bare", bare),
    ],
    middleware=[Middleware(FinoMiddleware)],
)
