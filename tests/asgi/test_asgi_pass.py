"""`on_failure: pass`: what billing cannot record passes unbilled and counted, and nothing more."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from asgi_shop import (
    BALANCE,
    DONE,
    TOKEN,
    Message,
    Server,
    Shop,
    answer,
    body,
    config_text,
    event,
    http_scope,
    patiently,
    run,
    script,
    serve,
    start,
    stream,
    used,
)
from starlette.types import ASGIApp, Receive, Scope, Send

from finomw.asgi.middleware import FinoMiddleware
from finomw.config.load import parse
from finomw.engine import charge, customers, grants, keys
from finomw.engine.engine import Engine, Health
from finomw.engine.sweep import sweep
from finomw.errors import FlushFailed, RecordingFailed
from finomw.testing.files import FaultyFiles
from finomw.types import CustomerId, PlanName

USAGE = event(used(7))
JSON_PARTS = answer(used(7))
SSE_PARTS = stream(event({"text": "one"}), USAGE, DONE)
LONG_PARTS = [start(), body(b"x" * 65, True), body(b"y")]
EMPTY_PARTS = [start(204, None), body()]
PLAIN_PARTS = [start(200, b"text/html"), body(b"hello")]

each_answer = pytest.mark.parametrize(
    ("path", "messages"),
    [
        ("/chat", JSON_PARTS),
        ("/chat", SSE_PARTS),
        ("/chat_small", LONG_PARTS),
        ("/chat", EMPTY_PARTS),
        ("/chat", PLAIN_PARTS),
        ("/flat", JSON_PARTS),
        ("/flat", SSE_PARTS),
    ],
)


@pytest.fixture
def files() -> FaultyFiles:
    return FaultyFiles()


@pytest.fixture
def shop(open_shop: Callable[..., Shop], files: FaultyFiles) -> Shop:
    """Open a shop that lets calls pass, whose disk fails on demand, that has served one call."""
    shop = open_shop(config_text("on_failure: pass"), files)
    assert call(shop, script(*JSON_PARTS)).status == 200
    return shop


@pytest.fixture
def errors(caplog: pytest.LogCaptureFixture) -> Iterator[Callable[[], list[str]]]:
    with caplog.at_level(logging.WARNING, "finomw"):
        yield lambda: [record.getMessage() for record in caplog.records]


def health_of(middleware: FinoMiddleware) -> Health:
    health = middleware.health()
    assert health is not None
    return health


def call(shop: Shop, app: ASGIApp, path: str = "/chat", token: str | None = None) -> Server:
    scope = http_scope(path, token=token or shop.token)
    return run(serve(shop.middleware(app), scope, Server(None)))


def test_after_a_failed_flush_calls_pass_and_are_counted(
    shop: Shop, errors: Callable[[], list[str]]
) -> None:
    shop.engine.control.fail()
    middleware = shop.middleware(script(*JSON_PARTS))
    for _ in range(5):
        server = run(serve(middleware, http_scope("/chat", token=shop.token), Server(None)))
        assert server.messages == JSON_PARTS
    health = health_of(middleware)
    assert (health.failed, health.unbilled) == (True, 5)
    assert shop.engine.health().unbilled == 5
    assert shop.balance == BALANCE - 7 * TOKEN
    [error] = errors()
    assert error.startswith("calls pass unbilled: a flush to disk failed")


@each_answer
def test_a_waiting_call_gets_its_own_answer_unbilled(
    shop: Shop, files: FaultyFiles, path: str, messages: list[Message]
) -> None:
    """The flush of its hold fails while the app works: nothing of its answer has left."""
    files.fail("flush")
    server = Server(None)
    middleware = shop.middleware(script(*messages))
    run(serve(middleware, http_scope(path, token=shop.token), server))
    assert server.messages == messages
    assert (health_of(middleware).failed, health_of(middleware).unbilled) == (True, 1)
    files.mend()
    shop.restart()
    # Whatever the disk had of it, it is ended once; what the restart finds settled is charged.
    assert shop.open_holds() == 0
    assert len(shop.settled(calls=len(shop.calls()))) <= 2


def test_a_started_answer_is_cut_without_its_last_message(shop: Shop, files: FaultyFiles) -> None:
    server = Server(None)

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await send(SSE_PARTS[0])
        await send(SSE_PARTS[1])
        files.fail("flush")
        for message in SSE_PARTS[2:]:
            await send(message)

    middleware = shop.middleware(app)
    with pytest.raises(RecordingFailed):
        run(serve(middleware, http_scope(token=shop.token), server))
    assert server.messages == SSE_PARTS[:3]
    assert health_of(middleware).unbilled == 0


@pytest.mark.parametrize("verb", ["settle", "start"])
@each_answer
def test_trouble_that_passes_leaves_no_charge_for_what_went_unbilled(
    shop: Shop, monkeypatch: pytest.MonkeyPatch, verb: str, path: str, messages: list[Message]
) -> None:
    real = getattr(charge, verb)

    def full(*args: object) -> object:
        monkeypatch.setattr(charge, verb, real)
        raise RecordingFailed("no room")

    monkeypatch.setattr(charge, verb, full)
    server = Server(None)
    middleware = shop.middleware(script(*messages))
    try:
        run(serve(middleware, http_scope(path, token=shop.token), server))
    except RecordingFailed:
        assert server.messages == messages[: len(server.messages)]
        assert 0 < len(server.messages) < len(messages)
    else:
        assert server.messages == messages
    [_, last] = shop.settled(calls=2)
    if health_of(middleware).unbilled:
        assert last.charged == 0
    assert shop.engine.claims == set()


def test_what_could_not_be_ended_is_given_up_and_swept(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*args: object) -> object:
        raise RecordingFailed("no room")

    with monkeypatch.context() as patch:
        patch.setattr(charge, "settle", full)
        patch.setattr(charge, "release", full)
        assert call(shop, script(*JSON_PARTS)).messages == JSON_PARTS
    assert shop.open_holds() == 1
    assert shop.engine.claims == set()
    assert sweep(shop.engine) == 1
    [_, last] = shop.settled(calls=2)
    assert (last.charged, last.note) == (0, "no call claimed it")


async def never(scope: Scope, receive: Receive, send: Send) -> None:
    raise AssertionError("the app was called")


def test_who_would_be_refused_by_reading_still_is(shop: Shop) -> None:
    names = {"poor": 0, "suspended": 5_000_000}
    tokens = {}
    for name, amount in names.items():
        customer = CustomerId(name)
        customers.add_customer(shop.engine, customer, PlanName("default"))
        if amount:
            grants.grant(shop.engine, customer, amount, "test", "first")
        tokens[name] = keys.create_key(shop.engine, customer).token
    customers.suspend(shop.engine, CustomerId("suspended"), "test")
    shop.engine.control.fail()
    for token, status, reason in (
        ("fino_nobody", 401, "unknown_key"),
        (tokens["poor"], 402, "exhausted"),
        (tokens["suspended"], 403, "suspended"),
    ):
        server = call(shop, never, token=token)
        assert (server.status, server.problem["reason"]) == (status, reason)
    assert shop.engine.health().unbilled == 0


def test_a_customer_whose_calls_in_flight_hold_everything_is_let_pass(
    shop: Shop, errors: Callable[[], list[str]]
) -> None:
    """Those calls may never end; who cannot be known to be out of money is served."""
    customer = CustomerId("busy")
    customers.add_customer(shop.engine, customer, PlanName("default"))
    grants.grant(shop.engine, customer, 100 * TOKEN, "test", "first")
    token = keys.create_key(shop.engine, customer).token
    reached: list[Server] = []

    async def inner(scope: Scope, receive: Receive, send: Send) -> None:
        if not reached:
            reached.append(Server(None))
            second = http_scope(token=token)
            assert (await serve(middleware, second, Server(None))).problem["reason"] == "held"
            shop.engine.control.fail()
            await serve(middleware, second, reached[0])
        await script(*JSON_PARTS)(scope, receive, send)

    middleware = shop.middleware(inner)
    server = run(serve(middleware, http_scope(token=token), Server(None)))
    assert reached[0].messages == server.messages == JSON_PARTS
    assert health_of(middleware).unbilled == 2


def test_a_call_whose_flush_cannot_begin_passes_and_its_hold_is_given_up(
    shop: Shop, monkeypatch: pytest.MonkeyPatch, errors: Callable[[], list[str]]
) -> None:
    def no_files(*_: object) -> None:
        raise RecordingFailed("Too many open files")

    with monkeypatch.context() as patch:
        patch.setattr("finomw.engine.durable.Durable.begin", no_files)
        assert call(shop, script(*JSON_PARTS)).messages == JSON_PARTS
    assert shop.open_holds() == 1
    assert shop.engine.claims == set()
    assert sweep(shop.engine) == 1
    assert call(shop, script(*JSON_PARTS)).messages == JSON_PARTS
    assert [ended.charged for ended in shop.settled(calls=3)] == [7 * TOKEN, 0, 7 * TOKEN]


def test_it_is_logged_when_it_begins_when_it_changes_and_when_it_is_over(
    shop: Shop, monkeypatch: pytest.MonkeyPatch, errors: Callable[[], list[str]]
) -> None:
    middleware = shop.middleware(script(*JSON_PARTS))

    def call_again(why: str = "") -> None:
        def full(*_: object) -> None:
            raise RecordingFailed(why)

        with monkeypatch.context() as patch:
            if why:
                patch.setattr(shop.engine, "decide", full)
            run(serve(middleware, http_scope(token=shop.token), Server(None)))

    for why in ("full", "full", "out of files", "full", "", "full"):
        call_again(why)
    assert errors() == [
        "calls pass unbilled: full",
        "calls pass unbilled: out of files",
        "billing records calls again",
        "calls pass unbilled: full",
    ]
    assert health_of(middleware).unbilled == 5


def test_a_server_that_joins_a_failed_node_starts_and_lets_calls_pass(
    shop: Shop, monkeypatch: pytest.MonkeyPatch, errors: Callable[[], list[str]]
) -> None:
    """Other processes keep the node open, so it cannot recover; without this it would not start."""

    def failed(_: object) -> Engine:
        raise FlushFailed("a flush to disk failed here")

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            assert (await receive())["type"] == "lifespan.startup"
            await send({"type": "lifespan.startup.complete"})
        else:
            await script(*JSON_PARTS)(scope, receive, send)

    async def main() -> None:
        sent: list[Message] = []

        async def tell(message: Message) -> None:
            sent.append(message)

        async def startup() -> Message:
            return {"type": "lifespan.startup"}

        await patiently(middleware({"type": "lifespan"}, startup, tell))
        assert sent == [{"type": "lifespan.startup.complete"}]
        for _ in range(2):
            server = await serve(middleware, http_scope(token="anything"), Server(None))
            assert server.messages == JSON_PARTS
        assert middleware.health() is None

    middleware = shop.middleware(app)
    with monkeypatch.context() as patch:
        patch.setattr("finomw.asgi.serving.open_engine", failed)
        run(main())
    # The node was started anew meanwhile: then it is joined, and calls are charged again.
    assert run(serve(middleware, http_scope(token=shop.token), Server(None))).status == 200
    health = health_of(middleware)
    assert (health.failed, health.unbilled) == (False, 2)
    shop.settled(calls=2)
    assert errors()[-1] == "billing records calls again"


def test_a_directory_that_is_not_there_lets_nobody_pass(shop: Shop, tmp_path: Path) -> None:
    config = parse(config_text("on_failure: pass"), tmp_path)
    middleware = FinoMiddleware(never, config)
    server = run(serve(middleware, http_scope(token="fino_x"), Server(None)))
    assert (server.status, server.problem["reason"]) == (503, "cannot_record")
    assert middleware.health() is None


def test_before_the_first_call_and_after_closing_there_is_nothing_to_tell(shop: Shop) -> None:
    middleware = shop.middleware(script(*JSON_PARTS))
    assert middleware.health() is None
    run(serve(middleware, http_scope(token=shop.token), Server(None)))
    assert middleware.health() == shop.engine.health()
    assert health_of(middleware).durable > 0
    middleware.close()
    assert middleware.health() is None
