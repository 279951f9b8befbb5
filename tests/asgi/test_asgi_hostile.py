"""Requests and answers that are slow to read stop nobody else's call."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest
from asgi_shop import (
    BALANCE,
    HOLD,
    Server,
    Shop,
    answer,
    body,
    config_text,
    http_scope,
    patiently,
    run,
    script,
    serve,
    start,
    stream,
    used,
)
from starlette.types import ASGIApp

from finomw import limits
from finomw.types import UsageStatus

TEXT = config_text(
    prices="""
      deep: {tokens: {usd: "0.00001"}}
      slow:
        by: '. | [.. | numbers] | length | tostring'
        "*": {tokens: {usd: "0.00001"}}
""",
    routes="""
  - {match: POST /deep, name: deep, meter: {tokens: '[.. | numbers] | add'}, hold: {tokens: 100}}
  - {match: POST /pairs, name: deep, meter: {tokens: '[.. | numbers] | . as $all
      | [.[] as $one | $all[] | $one] | add'}, hold: {tokens: 100}}
  - {match: POST /slow, name: slow, meter: {tokens: .usage.tokens}, hold: {tokens: 100}}
""",
)
HOSTILE = b'{"x": [' + b"[1]," * 1_900_000 + b"1]}"


async def beating(shop: Shop, app: ASGIApp, path: str, server: Server) -> int:
    """Serve a call while a task beats; return how often it could."""
    beats = 0

    async def beat() -> None:
        nonlocal beats
        while True:
            await asyncio.sleep(0.005)
            beats += 1

    heart = asyncio.create_task(beat())
    await patiently(serve(app, http_scope(path, "POST", shop.token), server))
    heart.cancel()
    return beats


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Give the helper less time, so that its end does not take long."""
    monkeypatch.setattr(limits, "HELPER_MILLISECONDS", 300)


@pytest.mark.usefixtures("quick")
def test_a_hostile_answer_is_invalid_and_the_loop_goes_on(open_shop: Callable[..., Shop]) -> None:
    shop = open_shop(TEXT)
    app = shop.middleware(script(start(), body(HOSTILE)))
    server = Server(shop)
    assert run(beating(shop, app, "/deep", server)) > 10
    assert server.body == HOSTILE
    ended = shop.ended()
    assert (ended.charged, ended.usage) == (HOLD, UsageStatus.INVALID)
    assert shop.balance == BALANCE - HOLD


@pytest.mark.usefixtures("quick")
def test_a_hostile_event_is_invalid_and_the_stream_goes_on(open_shop: Callable[..., Shop]) -> None:
    shop = open_shop(TEXT)
    event = b'data: {"x": [' + b"[1]," * 200_000 + b"1]}\n\n"  # 40 billion pairs
    app = shop.middleware(script(*stream(event, b"data: [DONE]\n\n")))
    server = Server(shop)
    assert run(beating(shop, app, "/pairs", server)) > 10
    assert server.body == event + b"data: [DONE]\n\n"
    assert (shop.ended().charged, shop.ended().usage) == (HOLD, UsageStatus.INVALID)


def test_a_large_event_that_is_only_slow_is_read_apart(open_shop: Callable[..., Shop]) -> None:
    shop = open_shop(TEXT)
    event = b"data: [0" + b",0" * 20_000 + b",7]\n\n"
    app = shop.middleware(script(*stream(event)))
    run(beating(shop, app, "/deep", Server(shop)))
    assert shop.ended().counts == {"tokens": 7}


@pytest.mark.usefixtures("quick")
def test_a_hostile_request_is_refused_and_the_loop_goes_on(open_shop: Callable[..., Shop]) -> None:
    shop = open_shop(TEXT)
    app = shop.middleware(script(*answer(used(7))))
    server = Server(shop, (HOSTILE,))
    assert run(beating(shop, app, "/slow", server)) > 10
    assert (server.status, server.problem["reason"]) == (400, "invalid_request")
    shop.settled(calls=0)


def test_a_request_that_is_only_slow_is_served(open_shop: Callable[..., Shop]) -> None:
    shop = open_shop(TEXT)
    app = shop.middleware(script(*answer(used(7))))
    server = Server(shop, (b"[0" + b",0" * 20_000 + b"]",))
    run(beating(shop, app, "/slow", server))
    assert server.status == 200
    assert shop.ended().counts == {"tokens": 7}
