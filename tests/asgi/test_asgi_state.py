"""What the app sees of its call, and what it may add to it."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from asgi_shop import (
    ALICE,
    BALANCE,
    DONE,
    SSE,
    TOKEN,
    Server,
    Shop,
    answer,
    body,
    call,
    config_text,
    event,
    http_scope,
    run,
    script,
    serve,
    start,
    used,
)
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import JSONResponse, StreamingResponse
from starlette.routing import Route
from starlette.testclient import TestClient
from starlette.types import Receive, Scope, Send

from finomw import Call, limits
from finomw.asgi.state import CallHold
from finomw.config.load import parse
from finomw.errors import CallEnded, ConfigError, InvalidValue
from finomw.types import UsageStatus

PAGE = 1_000
RULES = config_text(
    prices="""
      pages: {pages: {usd: "0.001"}}
      mixed: {tokens: {usd: "0.00001"}, pages: {usd: "0.001"}, calls: {usd: "0"}}
""",
    routes="""
  - {match: "GET,POST /pages", name: pages, meter: {pages: app}, hold: {pages: 5}}
  - match: "GET,POST /mixed"
    name: mixed
    meter: {tokens: .usage.tokens, pages: app, calls: 1}
    hold: {tokens: 100, pages: 5}
""",
)


@pytest.fixture
def pages(tmp_path: Path) -> Iterator[Shop]:
    made = Shop(tmp_path, RULES)
    yield made
    made.close()


def fino(scope: Scope) -> Call:
    seen = scope["state"]["fino"]
    assert isinstance(seen, Call)
    return seen


class Counting:
    """An app that adds counts, and answers."""

    def __init__(self, *counts: tuple[str, int], document: object = None) -> None:
        self.counts = counts
        self.document = document

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        for name, count in self.counts:
            fino(scope).meter(name, count)
        await script(*answer(self.document))(scope, receive, send)


def test_the_app_sees_its_customer_and_its_hold(pages: Shop) -> None:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        seen = fino(scope)
        assert seen.customer == ALICE
        assert dict(seen.hold.ceiling) == {"tokens": 100, "pages": 5, "calls": 1}
        assert not seen.hold.exceeded({"tokens": 100, "pages": 5})
        assert seen.hold.exceeded({"tokens": 1, "pages": 6})
        with pytest.raises(InvalidValue, match='the rule has no "words"'):
            seen.hold.exceeded({"words": 1})
        with pytest.raises(TypeError):
            seen.hold.ceiling["pages"] = 9
        await script(*answer(used(7)))(scope, receive, send)

    assert call(pages, app, "/mixed").status == 200


def test_a_part_of_a_meter_is_held_and_counted_with_it() -> None:
    hold = CallHold({"input": 10}, {"cached": "input", "audio": "cached"})
    assert not hold.exceeded({"input": 2, "cached": 4, "audio": 4})
    assert hold.exceeded({"input": 2, "cached": 4, "audio": 5})


def test_what_the_app_adds_is_charged(pages: Shop) -> None:
    call(pages, Counting(("pages", 1), ("pages", 0), ("pages", 2)), "/pages")
    assert pages.ended() == (3 * PAGE, UsageStatus.KNOWN, "", {"pages": 3})


def test_both_sources_serve_one_call(pages: Shop) -> None:
    call(pages, Counting(("pages", 2), ("tokens", 3), document=used(7)), "/mixed")
    counts = {"tokens": 10, "pages": 2, "calls": 1}
    assert pages.ended() == (10 * TOKEN + 2 * PAGE, UsageStatus.KNOWN, "", counts)


@pytest.mark.parametrize(
    ("counts", "document", "status"),
    [
        ((), used(7), UsageStatus.MISSING),
        ((("pages", 2),), {}, UsageStatus.MISSING),
        ((("pages", 2), ("tokens", 3)), used(-1), UsageStatus.INVALID),
        ((("pages", 2), ("tokens", 1)), used(limits.COUNT_MAX), UsageStatus.INVALID),
    ],
)
def test_a_meter_that_neither_source_tells_costs_the_hold(
    pages: Shop, counts: tuple[tuple[str, int], ...], document: object, status: UsageStatus
) -> None:
    call(pages, Counting(*counts, document=document), "/mixed")
    ended = pages.ended()
    assert (ended.charged, ended.usage) == (100 * TOKEN + 5 * PAGE, status)


def test_what_the_app_tells_stands_for_what_the_answer_does_not(pages: Shop) -> None:
    call(pages, Counting(("pages", 0), ("tokens", 3), document={}), "/mixed")
    assert pages.ended().counts == {"tokens": 3, "pages": 0, "calls": 1}


@pytest.mark.parametrize(
    ("name", "count", "said"),
    [
        ("words", 1, 'the rule has no "words"'),
        ("calls", 1, 'the rule has a fixed count of "calls"'),
        ("pages", -1, "expected a whole number"),
        ("pages", 1.5, "expected a whole number"),
        ("pages", True, "expected a whole number"),
        ("pages", "3", "expected a whole number"),
        ("pages", None, "expected a whole number"),
        ("pages", limits.COUNT_MAX + 1, "expected a whole number"),
    ],
)
def test_what_is_no_count_of_the_rule_is_an_error(
    pages: Shop, name: str, count: int, said: str
) -> None:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        fino(scope).meter("pages", 1)
        with pytest.raises(InvalidValue, match=said):
            fino(scope).meter(name, count)
        await script(*answer(used(7)))(scope, receive, send)

    call(pages, app, "/mixed")
    assert pages.ended().counts == {"tokens": 7, "pages": 1, "calls": 1}


def test_a_sum_beyond_any_count_is_an_error_and_adds_nothing() -> None:
    seen = Call(ALICE, CallHold({"pages": 5}, {}), {"pages": True})
    seen.meter("pages", limits.COUNT_MAX)
    with pytest.raises(InvalidValue, match="would come to more"):
        seen.meter("pages", 1)
    seen.meter("pages", 0)


def test_after_the_charge_nothing_can_be_added(pages: Shop) -> None:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        fino(scope).meter("pages", 1)
        await send(start(200, SSE))
        await send(body(event({}), True))
        fino(scope).meter("pages", 1)
        await send(body(DONE, True))
        with pytest.raises(CallEnded, match="has been charged already"):
            fino(scope).meter("pages", 1)
        await send(body())

    call(pages, app, "/pages")
    assert pages.ended().charged == 2 * PAGE


def test_an_app_that_fails_is_charged_what_it_added_before(pages: Shop) -> None:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await send(start(200, SSE))
        await send(body(event({}), True))
        fino(scope).meter("pages", 2)
        raise RuntimeError

    with pytest.raises(RuntimeError):
        call(pages, app, "/pages")
    ended = pages.ended()
    assert (ended.charged, ended.usage) == (2 * PAGE, UsageStatus.PARTIAL)


def test_an_app_stops_itself_at_its_ceiling(pages: Shop) -> None:
    async def stopping(request: Request) -> StreamingResponse:
        seen: Call = request.state.fino

        async def events() -> AsyncIterator[bytes]:
            page = 0
            while not seen.hold.exceeded({"pages": page + 1}):
                page += 1
                seen.meter("pages", 1)
                yield event({"page": page})
            yield event({"stopped": "at the ceiling"})

        return StreamingResponse(events(), media_type="text/event-stream")

    app = Starlette(routes=[Route("/pages", stopping)])
    headers = {"authorization": f"Bearer {pages.token}"}
    with TestClient(pages.middleware(app)) as client:
        told = client.get("/pages", headers=headers).text
    assert told.count("page") == 5
    assert "stopped" in told
    assert pages.ended().charged == 5 * PAGE


def test_sync_endpoints_add_from_their_threads(pages: Shop) -> None:
    together = threading.Barrier(2)

    def sync(request: Request) -> JSONResponse:
        def add() -> None:
            together.wait(10)
            for _ in range(2):
                request.state.fino.meter("pages", 1)

        other = threading.Thread(target=add)
        other.start()
        add()
        other.join()
        return JSONResponse({})

    app = Starlette(routes=[Route("/pages", sync)])
    with TestClient(pages.middleware(app)) as client:
        client.get("/pages", headers={"authorization": f"Bearer {pages.token}"})
    assert pages.ended().charged == 4 * PAGE


def test_each_call_has_its_own_and_the_servers_state_none(pages: Shop) -> None:
    shared: dict[str, object] = {"pool": 5}
    inside, go = asyncio.Semaphore(0), asyncio.Event()

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        pages_of = int(scope["query_string"])
        fino(scope).meter("pages", pages_of)
        assert scope["state"]["pool"] == 5
        inside.release()
        await go.wait()
        await run_in_threadpool(fino(scope).meter, "pages", 1)
        await script(*answer({}))(scope, receive, send)

    async def main() -> None:
        middleware = pages.middleware(app)
        scopes = [
            http_scope("/pages", token=pages.token, state=shared, query_string=b"%d" % number)
            for number in range(4)
        ]
        calls = [asyncio.ensure_future(serve(middleware, each, Server(None))) for each in scopes]
        for _ in calls:
            await inside.acquire()
        go.set()
        await asyncio.gather(*calls)

    run(main())
    assert shared == {"pool": 5}
    charged = sorted(call.charged for call in pages.settled(calls=4))
    assert charged == [1 * PAGE, 2 * PAGE, 3 * PAGE, 4 * PAGE]


def test_what_the_app_writes_into_the_scope_is_seen_outside(pages: Shop) -> None:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        scope["route"] = "mine"
        scope["state"]["user"] = "me"
        await script(*answer({}))(scope, receive, send)

    scope = http_scope("/pages", token=pages.token)
    del scope["state"]
    run(serve(pages.middleware(app), scope, Server(pages)))
    assert (scope["route"], scope["state"]["user"]) == ("mine", "me")


def test_a_free_call_has_none(pages: Shop) -> None:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        assert "fino" not in scope["state"]
        await script(*answer({}))(scope, receive, send)

    assert call(pages, app, "/health", "GET").status == 200
    assert pages.balance == BALANCE


def test_what_the_app_counts_needs_a_hold_and_is_part_of_nothing() -> None:
    text = """
    plans: {default: {prices: {a: {pages: {usd: "1"}, words: {usd: "1"}}}}}
    routes:
      - match: GET /a
        name: a
        meter: {pages: app, words: .words}
        splits: {pages: {of: words}}
        hold: {words: 5}
      - {match: GET /b, name: a, meter: {pages: app, words: .words}, hold: {words: 5}}
    """
    with pytest.raises(ConfigError) as caught:
        parse(text, Path("/"))
    told = [str(problem) for problem in caught.value.problems]
    assert "routes[0].splits.pages: both meters have to be read from the answer" in told
    assert "routes[1].hold.pages: missing: how many at most may one call use?" in told
