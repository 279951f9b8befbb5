"""Calls that do not come to their end: raised, cancelled, left by the client, never answered."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from asgi_shop import (
    DONE,
    FLAT,
    HOLD,
    SSE,
    TOKEN,
    Ended,
    Message,
    Server,
    Shop,
    body,
    event,
    http_scope,
    patiently,
    run,
    serve,
    start,
    stream,
    used,
)
from starlette.types import Receive, Scope, Send

from finomw.asgi.middleware import FinoMiddleware
from finomw.engine.durable import Durable
from finomw.types import UsageStatus

USAGE = event(used(7))
WHOLE = json.dumps(used(7)).encode()
JSON_PARTS = [start(), body(WHOLE[:10], True), body(WHOLE[10:])]
OTHER_PARTS = [start(200, b"text/plain"), body(b"a", True), body(b"b")]
SSE_PARTS = stream(event({"text": "one"}), USAGE, DONE)

KNOWN = Ended(7 * TOKEN, UsageStatus.KNOWN, "", {"tokens": 7})
PARTIAL = Ended(7 * TOKEN, UsageStatus.PARTIAL, "", {"tokens": 7})
WHOLE_HOLD = Ended(HOLD, UsageStatus.PARTIAL, "estimated: the hold", {})
MISSING = Ended(HOLD, UsageStatus.MISSING, "estimated: the hold", {})
NOTHING = Ended(0, None, "no answer began", {})
FLAT_WHOLE = Ended(FLAT, UsageStatus.KNOWN, "", {"requests": 1})
FAILED = Ended(0, None, "the answer failed with status 500", {})
EMPTY = Ended(0, None, "the answer has no body", {})
UNDELIVERED = Ended(0, None, "nothing was delivered", {})
FLAT_CUT = Ended(FLAT, UsageStatus.PARTIAL, "", {"requests": 1})


class Broken(Exception):
    """What the app raises."""


class App:
    """Sends some messages, then does something else."""

    def __init__(self, messages: list[Message], then: Callable[[], Awaitable[None]]) -> None:
        self.messages = messages
        self.then = then
        self.ending: BaseException | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            for message in self.messages:
                await send(message)
            await self.then()
        except BaseException as error:
            self.ending = error
            raise


async def raises() -> None:
    raise Broken


async def cancels_itself() -> None:
    raise asyncio.CancelledError


async def returns() -> None:
    return


CUTS: list[tuple[str, list[Message], int, Ended]] = [
    # path, the answer's messages, how many of them were sent, how the call ended
    ("/chat", JSON_PARTS, 0, NOTHING),
    ("/chat", JSON_PARTS, 1, NOTHING),
    ("/chat", JSON_PARTS, 2, NOTHING),
    ("/chat", JSON_PARTS, 3, KNOWN),
    ("/flat", JSON_PARTS, 0, NOTHING),
    ("/flat", JSON_PARTS, 2, NOTHING),
    ("/flat", JSON_PARTS, 3, FLAT_WHOLE),
    ("/chat_small", [start(), body(b"x" * 65, True), body()], 2, WHOLE_HOLD),
    ("/chat", OTHER_PARTS, 1, UNDELIVERED),
    ("/chat", OTHER_PARTS, 2, WHOLE_HOLD),
    ("/chat", OTHER_PARTS, 3, MISSING),
    ("/flat", OTHER_PARTS, 1, UNDELIVERED),
    ("/flat", OTHER_PARTS, 2, FLAT_CUT),
    ("/flat", OTHER_PARTS, 3, FLAT_WHOLE),
    ("/chat", SSE_PARTS, 1, UNDELIVERED),
    ("/chat", SSE_PARTS, 2, WHOLE_HOLD),
    ("/chat", SSE_PARTS, 3, PARTIAL),
    ("/chat", SSE_PARTS, 4, KNOWN),
    ("/chat", SSE_PARTS, 5, KNOWN),
    ("/chat_none", SSE_PARTS, 2, Ended(0, None, "usage missing", {})),
    ("/chat", [start(500, b"text/plain"), body()], 1, FAILED),
    ("/chat", [start(204, None), body()], 1, EMPTY),
]


@pytest.mark.parametrize(("path", "messages", "count", "expected"), CUTS)
@pytest.mark.parametrize("then", [raises, cancels_itself, returns])
def test_an_app_that_stops_anywhere_ends_its_call_once(
    shop: Shop,
    path: str,
    messages: list[Message],
    count: int,
    expected: Ended,
    then: Callable[[], Awaitable[None]],
) -> None:
    app = App(messages[:count], then)
    server = Server(shop)

    async def main() -> None:
        scope = http_scope(path, token=shop.token)
        await patiently(shop.middleware(app)(scope, server.receive, server.send))

    with contextlib.suppress(Broken, asyncio.CancelledError) as _:
        run(main())
    # The exception that came out is the one that went in.
    assert type(app.ending) is {raises: Broken, cancels_itself: asyncio.CancelledError}.get(
        then, type(None)
    )
    assert shop.ended() == expected
    # Of a JSON answer that was cut nothing has left: the server can still answer by itself.
    assert server.messages in (messages[:count], [])
    assert bool(server.messages) is (expected is not NOTHING)


def test_the_exception_of_an_app_keeps_its_type(shop: Shop) -> None:
    app = shop.middleware(App([start(200, SSE)], raises))
    with pytest.raises(Broken):
        run(serve(app, http_scope(token=shop.token), Server(shop)))


async def cancelled_at(
    shop: Shop, app: App, path: str, server: Server, reached: asyncio.Event
) -> None:
    """Run a call, and cancel it when it has reached a point where it hangs."""
    scope = http_scope(path, token=shop.token)
    task = asyncio.ensure_future(shop.middleware(app)(scope, server.receive, server.send))
    await patiently(reached.wait())
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await patiently(task)


@pytest.mark.parametrize(("path", "messages", "count", "expected"), CUTS)
def test_a_call_cancelled_while_the_app_works_ends_once(
    shop: Shop, path: str, messages: list[Message], count: int, expected: Ended
) -> None:
    async def main() -> None:
        reached = asyncio.Event()

        async def hangs() -> None:
            reached.set()
            await asyncio.Event().wait()

        await cancelled_at(shop, App(messages[:count], hangs), path, Server(shop), reached)

    run(main())
    assert shop.ended() == expected


@pytest.mark.parametrize(
    ("path", "messages", "index", "expected"),
    [
        # cancelled while the server takes the message with this index
        ("/chat", JSON_PARTS, 0, KNOWN),
        ("/chat", JSON_PARTS, 2, KNOWN),
        ("/flat", JSON_PARTS, 0, FLAT_WHOLE),
        ("/chat", OTHER_PARTS, 0, UNDELIVERED),
        ("/chat", OTHER_PARTS, 1, WHOLE_HOLD),
        ("/chat", OTHER_PARTS, 2, MISSING),
        ("/chat", SSE_PARTS, 0, UNDELIVERED),
        ("/chat", SSE_PARTS, 1, WHOLE_HOLD),
        ("/chat", SSE_PARTS, 2, PARTIAL),
        ("/chat", SSE_PARTS, 3, KNOWN),
        ("/chat", SSE_PARTS, 4, KNOWN),
    ],
)
def test_a_call_cancelled_while_the_server_takes_a_message_ends_once(
    shop: Shop, path: str, messages: list[Message], index: int, expected: Ended
) -> None:
    async def main() -> None:
        reached = asyncio.Event()
        server = Server(shop)

        async def hangs(message: Message) -> None:
            if len(server.sent) == index:
                reached.set()
                await asyncio.Event().wait()

        server.on_send = hangs
        await cancelled_at(shop, App(messages, returns), path, server, reached)
        assert server.messages == messages[:index]

    run(main())
    assert shop.ended() == expected


@pytest.mark.parametrize(
    ("path", "messages", "wait", "sent", "expected"),
    [
        # cancelled in the call's wait number ``wait`` for the disk, when ``sent`` had left
        ("/chat", JSON_PARTS, 0, 0, KNOWN),
        ("/flat", JSON_PARTS, 0, 0, FLAT_WHOLE),
        ("/chat", [start(204, None), body()], 0, 0, EMPTY),
        ("/chat", OTHER_PARTS, 0, 0, NOTHING),
        ("/chat", OTHER_PARTS, 1, 2, MISSING),
        ("/chat", SSE_PARTS, 0, 0, NOTHING),
        ("/chat", SSE_PARTS, 1, 3, KNOWN),
    ],
)
def test_a_call_cancelled_while_it_waits_for_the_disk_ends_once(
    shop: Shop,
    monkeypatch: pytest.MonkeyPatch,
    path: str,
    messages: list[Message],
    wait: int,
    sent: int,
    expected: Ended,
) -> None:
    async def main() -> None:
        reached = asyncio.Event()
        server = Server(shop)
        waits = iter(range(10))
        real_wait = Durable.wait

        async def hangs(self: Durable, end: int) -> None:
            if next(waits) == wait:
                reached.set()
                await asyncio.Event().wait()
            await real_wait(self, end)

        monkeypatch.setattr(Durable, "wait", hangs)
        await cancelled_at(shop, App(messages, returns), path, server, reached)
        assert server.messages == messages[:sent]

    run(main())
    assert shop.ended() == expected


def test_an_app_that_sends_on_after_a_cancelled_wait_still_waits(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The settlement is made, its flush is not: nothing may slip out behind it."""

    async def main() -> None:
        reached = asyncio.Event()
        server = Server(shop)
        real_flush = Durable._flush  # type: ignore[attr-defined]

        async def stubborn(scope: Scope, receive: Receive, send: Send) -> None:
            await send(SSE_PARTS[0])
            monkeypatch.setattr(Durable, "_flush", lambda self: reached.set())
            with contextlib.suppress(asyncio.CancelledError):
                await send(body(USAGE + DONE, True))
            monkeypatch.setattr(Durable, "_flush", real_flush)
            asyncio.get_running_loop().call_soon(real_flush, durable[0])
            await send(body())

        middleware = shop.middleware(stubborn)
        durable: list[Durable] = []
        real_wait = Durable.wait

        async def noting(self: Durable, end: int) -> None:
            durable.append(self)
            await real_wait(self, end)

        monkeypatch.setattr(Durable, "wait", noting)
        scope = http_scope(token=shop.token)
        task = asyncio.ensure_future(middleware(scope, server.receive, server.send))
        await patiently(reached.wait())
        task.cancel()
        await patiently(task)
        assert server.messages == [SSE_PARTS[0], body()]
        assert server.sent[1].durable == server.sent[1].tail

    run(main())
    assert shop.ended() == KNOWN


def leaving(messages: list[Message], then: Callable[[], Awaitable[None]]) -> Any:
    """Make an app that hears the client leave after these messages."""

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        for message in messages:
            await send(message)
        assert (await receive())["type"] == "http.request"
        assert (await receive())["type"] == "http.disconnect"
        await then()

    return app


@pytest.mark.parametrize(
    ("path", "messages", "expected"),
    [
        ("/chat", [], NOTHING),
        ("/chat", JSON_PARTS[:1], UNDELIVERED),
        ("/chat", JSON_PARTS[:2], UNDELIVERED),
        ("/flat", JSON_PARTS[:2], UNDELIVERED),
        ("/flat", OTHER_PARTS[:2], FLAT_CUT),
        ("/chat_none", OTHER_PARTS[:2], Ended(0, None, "usage missing", {})),
        ("/chat", SSE_PARTS[:2], WHOLE_HOLD),
        ("/chat", SSE_PARTS[:3], PARTIAL),
    ],
)
@pytest.mark.parametrize("then", [raises, cancels_itself, returns])
def test_what_a_client_who_left_got_is_not_free(
    shop: Shop,
    path: str,
    messages: list[Message],
    expected: Ended,
    then: Callable[[], Awaitable[None]],
) -> None:
    async def main() -> None:
        server = Server(shop)
        server.left.set()
        app = shop.middleware(leaving(messages, then))
        with contextlib.suppress(Broken, asyncio.CancelledError):
            await serve(app, http_scope(path, token=shop.token), server)

    run(main())
    assert shop.ended() == expected


@pytest.mark.parametrize("messages", [JSON_PARTS, SSE_PARTS])
def test_an_app_that_runs_on_after_the_client_left_is_charged_in_full(
    shop: Shop, messages: list[Message]
) -> None:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await receive()
        assert (await receive())["type"] == "http.disconnect"
        for message in messages:
            await send(message)

    async def main() -> None:
        server = Server(shop)
        server.left.set()
        await serve(shop.middleware(app), http_scope(token=shop.token), server)

    run(main())
    assert shop.ended() == KNOWN


@pytest.mark.parametrize("index", range(len(SSE_PARTS)))
def test_a_server_that_refuses_a_message_ends_the_call_once(shop: Shop, index: int) -> None:
    """Servers may raise OSError once the client is gone."""

    async def main() -> None:
        server = Server(shop)

        async def gone(message: Message) -> None:
            if len(server.sent) == index:
                raise OSError("client gone")

        server.on_send = gone
        with pytest.raises(OSError, match="client gone"):
            await serve(
                shop.middleware(App(SSE_PARTS, returns)), http_scope(token=shop.token), server
            )
        assert server.messages == SSE_PARTS[:index]

    run(main())
    assert shop.ended() == [UNDELIVERED, WHOLE_HOLD, PARTIAL, KNOWN, KNOWN][index]


def test_a_refusal_that_cannot_be_sent_is_not_sent_twice(shop: Shop) -> None:
    async def main() -> None:
        server = Server(shop)
        tries: list[Message] = []

        async def gone(message: Message) -> None:
            tries.append(message)
            raise OSError("client gone")

        server.on_send = gone
        with pytest.raises(OSError, match="client gone"):
            await serve(shop.middleware(App([], returns)), http_scope(token="fino_x"), server)
        assert len(tries) == 1

    run(main())
    shop.settled(calls=0)


def test_a_client_that_leaves_before_its_request_is_whole_costs_nothing(shop: Shop) -> None:
    async def main() -> None:
        server = Server(shop, [b"{", b"}"])
        server._requests.pop()
        server.left.set()
        app = shop.middleware(App(JSON_PARTS, returns))
        await serve(app, http_scope("/asked", token=shop.token), server)
        assert server.messages == []

    run(main())
    shop.settled(calls=0)


def test_a_call_cancelled_while_its_request_is_read_costs_nothing(shop: Shop) -> None:
    async def main() -> None:
        server = Server(shop, [b"{", b"}"])
        server._requests.pop()
        app = App(JSON_PARTS, returns)
        await cancelled_at(shop, app, "/asked", server, server.waiting)

    run(main())
    shop.settled(calls=0)


def test_a_loop_that_dies_mid_call_leaves_no_open_hold(shop: Shop) -> None:
    """An asyncio.run that ends early throws its tasks away."""

    async def main() -> None:
        server = Server(shop)

        async def hangs() -> None:
            server.waiting.set()
            await asyncio.Event().wait()

        app: FinoMiddleware = shop.middleware(App(SSE_PARTS[:2], hangs))
        tasks.append(
            asyncio.ensure_future(app(http_scope(token=shop.token), server.receive, server.send))
        )
        await patiently(server.waiting.wait())

    tasks: list[asyncio.Future[None]] = []
    run(main())
    assert tasks[0].cancelled()
    assert shop.ended() == WHOLE_HOLD
