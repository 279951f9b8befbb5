"""Which rule a call falls under."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest
from asgi_shop import (
    HOLD,
    TOKEN,
    Server,
    Shop,
    answer,
    config_text,
    http_scope,
    run,
    script,
    serve,
    used,
)
from starlette.applications import Starlette
from starlette.endpoints import HTTPEndpoint
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Mount, Route

from finomw.asgi.routes import Router, app_path
from finomw.config.load import parse
from finomw.config.match import parse_match
from finomw.errors import ConfigError


def router(*matches: str) -> Router[str]:
    """Make a router whose rules are named by what they match."""
    made: Router[str] = Router()
    for match in matches:
        made.add(parse_match(match), match)
    return made


@pytest.mark.parametrize(
    ("matches", "method", "path", "expected", "parameters"),
    [
        (["POST /v1/chat"], "POST", "/v1/chat", "POST /v1/chat", {}),
        (["POST /v1/chat"], "GET", "/v1/chat", None, {}),
        (["POST /v1/chat"], "POST", "/v1/chat/", None, {}),
        (["POST /v1/chat"], "POST", "/v1", None, {}),
        (["GET,POST /a"], "GET", "/a", "GET,POST /a", {}),
        (["GET,POST /a"], "POST", "/a", "GET,POST /a", {}),
        (["GET /a"], "HEAD", "/a", "GET /a", {}),
        (["GET /a", "HEAD /a"], "HEAD", "/a", "HEAD /a", {}),
        (["GET /a/{x}"], "HEAD", "/a/1", "GET /a/{x}", {"x": "1"}),
        (["POST /a"], "HEAD", "/a", None, {}),
        (["* /a"], "PATCH", "/a", "* /a", {}),
        (["* /a", "POST /a"], "POST", "/a", "POST /a", {}),
        (["* /a/{x}", "POST /a/{y}"], "POST", "/a/1", "POST /a/{y}", {"y": "1"}),
        (["POST /a/{y}", "* /a/{x}"], "PUT", "/a/1", "* /a/{x}", {"x": "1"}),
        (["GET /a/{x}", "GET /a/b"], "GET", "/a/b", "GET /a/b", {}),
        (["GET /{x}/b", "GET /a/{y}"], "GET", "/a/b", "GET /a/{y}", {"y": "b"}),
        (["GET /{x}/b", "GET /{x}/{y}"], "GET", "/q/b", "GET /{x}/b", {"x": "q"}),
        (["GET /{x}/{y}", "GET /{x}/b"], "GET", "/q/b", "GET /{x}/b", {"x": "q"}),
        (["GET /a/{x}"], "GET", "/a/", None, {}),
        (["GET /a/{x}"], "GET", "/a/b/c", None, {}),
        (["GET /"], "GET", "/", "GET /", {}),
        (["POST /a"], "post", "/a", "POST /a", {}),
        (["POST /a"], "POST", "/a\n", "POST /a", {}),
        (["GET /a/{x}/b"], "HEAD", "/a/1/b\n", "GET /a/{x}/b", {"x": "1"}),
        (["GET /a/{x}"], "GET", "/a/1\n", "GET /a/{x}", {"x": "1\n"}),
    ],
)
def test_a_call_finds_its_rule(
    matches: list[str],
    method: str,
    path: str,
    expected: str | None,
    parameters: dict[str, str],
) -> None:
    found = router(*matches).find(method, path)
    assert (found.rule if found else None) == expected
    assert (dict(found.parameters) if found else {}) == parameters


@pytest.mark.parametrize(
    ("path", "root", "expected"),
    [
        ("/chat", "", "/chat"),
        ("/api/chat", "/api", "/chat"),
        ("/chat", "/api", "/chat"),
        ("/apichat", "/api", "/apichat"),
        ("/api", "/api", "/api"),
        ("/api/api/chat", "/api", "/api/chat"),
    ],
)
def test_a_path_is_taken_below_the_root_path(path: str, root: str, expected: str) -> None:
    assert app_path({"path": path, "root_path": root}) == expected
    assert app_path({"path": expected}) == expected


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("POST /same", "POST /same"),
        ("POST /same/{a}", "GET,POST /same/{b}"),
        ("* /same", "* /same"),
    ],
)
def test_two_rules_for_the_same_calls_are_a_conflict(one: str, other: str, tmp_path: Path) -> None:
    routes = f'  - {{match: "{one}", free: true}}\n  - {{match: "{other}", free: true}}\n'
    with pytest.raises(ConfigError, match="already matched by"):
        parse(config_text(routes=routes), tmp_path)


def test_a_free_call_and_an_unmatched_one_pass_untouched(shop: Shop) -> None:
    async def main(path: str) -> None:
        seen: list[Any] = []

        async def app(scope: Any, receive: Any, send: Any) -> None:
            seen.extend((scope, receive, send))

        scope, server = http_scope(path, "GET"), Server(shop)
        await shop.middleware(app)(scope, server.receive, server.send)
        assert seen[0] is scope
        assert seen[1:] == [server.receive, server.send]

    run(main("/health"))
    run(main("/nowhere"))
    shop.settled(calls=0)


def test_unmatched_calls_can_be_refused(open_shop: Callable[..., Shop]) -> None:
    shop = open_shop(config_text("unmatched: refuse"))
    app = shop.middleware(script(*answer({})))
    free = run(serve(app, http_scope("/health", "GET"), Server(shop)))
    assert free.status == 200
    for path, method in (("/nowhere", "GET"), ("/chat", "DELETE"), ("/health/", "GET")):
        server = run(serve(app, http_scope(path, method, shop.token), Server(shop)))
        assert server.status == 404
        assert server.problem["reason"] == "unmatched"


async def chat(request: Request) -> JSONResponse:
    return JSONResponse(used(7))


class Chat(HTTPEndpoint):
    async def post(self, request: Request) -> JSONResponse:
        return await chat(request)


@pytest.mark.parametrize("spelling", ["/chat", "/chat%0A", "/base/chat", "/base/chat%0A"])
@pytest.mark.parametrize("endpoint", [chat, Chat])
@pytest.mark.parametrize("method", ["POST", "post"])
def test_no_spelling_that_the_app_serves_is_free(
    shop: Shop, spelling: str, endpoint: Any, method: str
) -> None:
    methods = ["POST"] if endpoint is chat else None
    app = shop.middleware(Starlette(routes=[Route("/chat", endpoint, methods=methods)]))

    async def main() -> httpx.Response:
        transport = httpx.ASGITransport(app, root_path="/base")
        headers = {"Authorization": f"Bearer {shop.token}"}
        async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
            request = client.build_request("POST", spelling, headers=headers)
            request.method = method
            return await client.send(request)

    served = asyncio.run(main()).status_code == 200
    assert shop.ended().charged == (7 * TOKEN if served else 0)


def test_a_mounted_app_is_charged_by_its_own_paths(shop: Shop) -> None:
    inner = shop.middleware(Starlette(routes=[Route("/chat", chat, methods=["POST"])]))
    outer = Starlette(routes=[Mount("/sub", inner)])
    server = run(serve(outer, http_scope("/sub/chat", token=shop.token), Server(shop)))
    assert server.status == 200
    assert shop.ended().charged == 7 * TOKEN < HOLD
