"""Behind and before real frameworks: CORS, TestClient, mounts, background tasks, streaming."""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import httpx
import pytest
from asgi_shop import (
    DONE,
    FLAT,
    HOLD,
    TOKEN,
    Server,
    Shop,
    config_text,
    event,
    http_scope,
    patiently,
    run,
    serve,
    used,
)
from fastapi import FastAPI
from starlette.applications import Starlette
from starlette.background import BackgroundTask
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.base import BaseHTTPMiddleware
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Mount, Route
from starlette.testclient import TestClient

from finomw import FinoMiddleware
from finomw.types import UsageStatus

Endpoint = Callable[[Request], Awaitable[Response]]


async def chat(request: Request) -> Response:
    return JSONResponse(used(7))


def site(shop: Shop, endpoint: Endpoint = chat, *outer: Middleware) -> Starlette:
    """Make a Starlette app with the middleware innermost of all."""
    routes = [
        Route(path, endpoint, methods=["GET", "POST", "OPTIONS"])
        for path in ("/chat", "/flat", "/health", "/asked")
    ]
    middleware = [*outer, Middleware(FinoMiddleware, config=shop.config)]
    return Starlette(routes=routes, middleware=middleware)


def bearer(shop: Shop) -> dict[str, str]:
    return {"Authorization": f"Bearer {shop.token}"}


ORIGIN = "https://example.com"
CORS = Middleware(
    CORSMiddleware, allow_origins=[ORIGIN], allow_methods=["*"], allow_headers=["authorization"]
)


@pytest.mark.parametrize("cors_outside", [True, False])
def test_a_preflight_is_never_refused_or_charged(shop: Shop, cors_outside: bool) -> None:
    app = site(shop, chat, CORS)
    if not cors_outside:
        app.user_middleware.reverse()
    with TestClient(app) as client:
        ask = {
            "Origin": ORIGIN,
            "Access-Control-Request-Method": "POST",
            "Access-Control-Request-Headers": "authorization",
        }
        preflight = client.options("/chat", headers=ask)
        assert preflight.status_code == 200
        assert preflight.headers["access-control-allow-origin"] == ORIGIN
        shop.settled(calls=0)
        refused = client.post("/chat", headers={"Origin": ORIGIN})
        assert refused.status_code == 401
        assert ("access-control-allow-origin" in refused.headers) is cors_outside
        served = client.post("/chat", headers={"Origin": ORIGIN, **bearer(shop)})
        assert served.headers["access-control-allow-origin"] == ORIGIN
    assert shop.ended().charged == 7 * TOKEN


def test_a_plain_options_call_follows_its_rule(open_shop: Callable[..., Shop]) -> None:
    shop = open_shop(config_text().replace("GET,POST /flat", "* /flat"))
    with TestClient(site(shop)) as client:
        assert client.options("/flat").status_code == 401
        assert client.options("/flat", headers=bearer(shop)).status_code == 200
    assert shop.ended().charged == FLAT


def test_ten_calls_of_a_test_client_have_ten_loops(shop: Shop) -> None:
    client = TestClient(site(shop))
    for _ in range(10):
        assert client.post("/chat", headers=bearer(shop)).json() == used(7)
    other = TestClient(site(shop))
    assert other.post("/chat", headers=bearer(shop)).status_code == 200
    shop.settled(calls=11)


def test_a_fastapi_app_takes_the_middleware_in_one_line(shop: Shop) -> None:
    app = FastAPI()

    @app.post("/asked")
    async def asked(question: dict[str, object]) -> dict[str, object]:
        return {"echo": question, **used(7)}

    app.add_middleware(FinoMiddleware, config=shop.config)
    with TestClient(app) as client:
        question = {"max_tokens": 50, "words": "w" * 100}
        reply = client.post("/asked", headers=bearer(shop), json=question)
        assert reply.json()["echo"] == question
        assert client.post("/asked", headers=bearer(shop), json=[]).status_code == 400
        invalid = client.post("/asked", headers=bearer(shop))
        assert invalid.status_code == 422
    assert [ended.charged for ended in shop.settled(calls=2)] == [7 * TOKEN, 0]


def test_a_mounted_app_without_a_lifespan_is_charged(shop: Shop) -> None:
    inner = site(shop)
    client = TestClient(Starlette(routes=[Mount("/sub", inner)]))
    for _ in range(3):
        assert client.post("/sub/chat", headers=bearer(shop)).status_code == 200
    assert client.post("/sub/chat").status_code == 401
    shop.settled(calls=3)


def test_lifespan_state_is_seen_by_a_charged_call(shop: Shop) -> None:
    async def shows(request: Request) -> Response:
        return JSONResponse({"pool": request.state.pool, **used(7)})

    async def lifespan(app: Starlette) -> AsyncIterator[dict[str, int]]:
        yield {"pool": 5}

    app = Starlette(
        routes=[Route("/chat", shows, methods=["POST"])],
        middleware=[Middleware(FinoMiddleware, config=shop.config)],
        lifespan=asynccontextmanager(lifespan),
    )
    with TestClient(app) as client:
        assert client.post("/chat", headers=bearer(shop)).json()["pool"] == 5
    assert shop.ended().charged == 7 * TOKEN


NAME: contextvars.ContextVar[str] = contextvars.ContextVar("NAME", default="")


def test_context_variables_flow_both_ways(shop: Shop) -> None:
    seen: list[str] = []

    async def endpoint(request: Request) -> Response:
        seen.append(NAME.get())
        NAME.set("inner")
        return JSONResponse(used(7))

    async def main() -> None:
        NAME.set("outer")
        app, server = site(shop, endpoint), Server(shop)
        await app(http_scope(token=shop.token), server.receive, server.send)
        seen.append(NAME.get())

    run(main())
    assert seen == ["outer", "inner"]


@pytest.mark.parametrize("streamed", [False, True])
def test_a_background_task_runs_after_the_answer_is_complete_and_charged(
    shop: Shop, streamed: bool
) -> None:
    async def main() -> None:
        server = Server(shop)
        go, reached = asyncio.Event(), asyncio.Event()
        after: list[tuple[int, bool]] = []

        async def background() -> None:
            complete = not server.messages[-1].get("more_body", False)
            after.append((len(shop.calls()), complete))
            reached.set()
            await go.wait()

        async def endpoint(request: Request) -> Response:
            task = BackgroundTask(background)
            if streamed:
                return StreamingResponse(chunks(), media_type="text/event-stream", background=task)
            return JSONResponse(used(7), background=task)

        async def chunks() -> AsyncIterator[bytes]:
            yield event(used(7))
            yield DONE

        scope = http_scope(token=shop.token)
        call = asyncio.ensure_future(site(shop, endpoint)(scope, server.receive, server.send))
        await patiently(reached.wait())
        assert after == [(1, True)]
        assert not call.done()
        go.set()
        await patiently(call)

    run(patiently(main()))
    assert shop.ended().charged == 7 * TOKEN


class Pass(BaseHTTPMiddleware):
    """Does nothing, in a task of its own."""

    async def dispatch(
        self, request: Request, call_next: Callable[[Request], Awaitable[Response]]
    ) -> Response:
        return await call_next(request)


@pytest.mark.parametrize("path", ["/chat", "/flat", "/asked"])
def test_a_task_of_a_middleware_around_it_changes_nothing(shop: Shop, path: str) -> None:
    with TestClient(site(shop, chat, Middleware(Pass))) as client:
        assert client.post(path, headers=bearer(shop), json={}).json() == used(7)
    assert shop.ended().charged == (FLAT if path == "/flat" else 7 * TOKEN)


@pytest.mark.parametrize("status", [404, 418, 500])
def test_an_http_exception_is_an_answer_that_failed(shop: Shop, status: int) -> None:
    async def raising(request: Request) -> Response:
        raise HTTPException(status)

    with TestClient(site(shop, raising)) as client:
        assert client.post("/flat", headers=bearer(shop)).status_code == status
    assert shop.ended().charged == 0


def test_an_exception_of_an_endpoint_reaches_the_server_as_it_is(shop: Shop) -> None:
    class Broken(Exception):
        pass

    async def raising(request: Request) -> Response:
        raise Broken

    with TestClient(site(shop, raising)) as client, pytest.raises(Broken):
        client.post("/flat", headers=bearer(shop))
    with TestClient(site(shop, raising), raise_server_exceptions=False) as client:
        assert client.post("/flat", headers=bearer(shop)).status_code == 500
    assert [ended.charged for ended in shop.settled(calls=2)] == [0, 0]


@pytest.mark.parametrize(
    ("media", "outer"),
    [
        ("text/event-stream", []),
        ("text/event-stream", [Middleware(Pass)]),
        ("application/json", []),
    ],
)
@pytest.mark.parametrize("early", [True, False])
def test_a_client_who_leaves_a_streaming_response_pays_for_it(
    shop: Shop, media: str, outer: list[Middleware], early: bool
) -> None:
    """Something has left when its answer goes on, if only for somebody who has left too."""
    server = Server(shop)

    async def main() -> None:
        closed = asyncio.Event()

        async def endless() -> AsyncIterator[bytes]:
            try:
                while True:
                    yield b": \n\n" if "event" in media else b"[1, "
                    server.left.set()
                    await asyncio.sleep(0)
            finally:
                closed.set()

        async def endpoint(request: Request) -> Response:
            if early:
                server.left.set()
            return StreamingResponse(endless(), media_type=media)

        app = site(shop, endpoint, *outer)
        await serve(app, http_scope(token=shop.token), server)
        assert early or closed.is_set()

    run(main())
    if server.body:
        assert shop.ended() == (HOLD, UsageStatus.PARTIAL, "estimated: the hold", {})
    else:
        assert shop.ended() == (0, None, "nothing was delivered", {})
    assert early or server.body


def test_an_app_learns_that_its_client_left(shop: Shop) -> None:
    async def main(path: str) -> None:
        server = Server(shop)

        async def endpoint(request: Request) -> Response:
            await request.body()
            server.left.set()
            while not await request.is_disconnected():  # noqa: ASYNC110
                await asyncio.sleep(0)
            return JSONResponse(used(7))

        await serve(site(shop, endpoint), http_scope(path, token=shop.token), server)

    run(main("/chat"))
    run(main("/asked"))
    assert [ended.charged for ended in shop.settled(calls=2)] == [7 * TOKEN] * 2


def test_an_asgi_transport_without_a_lifespan_is_charged(shop: Shop) -> None:
    async def main() -> None:
        transport = httpx.ASGITransport(site(shop))
        async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
            for _ in range(3):
                assert (await client.post("/chat", headers=bearer(shop))).status_code == 200

    run(main())
    shop.settled(calls=3)
