"""When a flush fails: nothing leaves that is not on disk, and nothing is charged twice."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Callable

import pytest
from asgi_shop import (
    BALANCE,
    DONE,
    SSE,
    TOKEN,
    Message,
    Server,
    Shop,
    answer,
    body,
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
from starlette.types import Receive, Scope, Send

from finomw.engine import charge
from finomw.errors import RecordingFailed
from finomw.testing.files import FaultyFiles

USAGE = event(used(7))
JSON_PARTS = [start(), body(json.dumps(used(7)).encode())]
SSE_PARTS = stream(event({"text": "one"}), USAGE, DONE)


async def never(scope: Scope, receive: Receive, send: Send) -> None:
    raise AssertionError("the app was called")


def assert_replaced(server: Server) -> None:
    """Prove that the client got a 503 and nothing of the app's answer."""
    assert server.status == 503
    assert server.problem["reason"] == "cannot_record"
    assert server.headers[b"retry-after"] == b"5"
    assert b"hello" not in server.body


@pytest.fixture
def files() -> FaultyFiles:
    return FaultyFiles()


@pytest.fixture
def faulty(open_shop: Callable[..., Shop], files: FaultyFiles) -> Shop:
    """Open a shop whose disk fails on demand, that has served one call."""
    shop = open_shop(files=files)
    call_once(shop, JSON_PARTS)
    return shop


def call_once(shop: Shop, messages: list[Message], path: str = "/chat") -> Server:
    return run(
        serve(shop.middleware(script(*messages)), http_scope(path, token=shop.token), Server(None))
    )


@pytest.mark.parametrize("path", ["/chat", "/flat", "/chat_settle"])
@pytest.mark.parametrize(
    "messages",
    [JSON_PARTS, SSE_PARTS, [start(204, None), body()], [start(200, b"text/html"), body(b"hello")]],
)
@pytest.mark.parametrize("at", [1, 2])
def test_an_answer_is_never_complete_without_its_charge_on_disk(
    faulty: Shop, files: FaultyFiles, path: str, messages: list[Message], at: int
) -> None:
    files.fail("flush", at)
    server = Server(None)

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        await script(*messages)(scope, receive, send)

    async def main() -> None:
        scope = http_scope(path, token=faulty.token)
        await patiently(faulty.middleware(app)(scope, server.receive, server.send))

    cut = False
    try:
        run(main())
    except RecordingFailed:
        cut = True
    if server.status == 503:
        assert_replaced(server)
    elif cut:
        assert server.messages == messages[: len(server.messages)]
        assert len(server.messages) < len(messages)
        assert DONE not in server.body
    else:  # all that this call had to wait for was on disk
        assert server.messages == messages
    failed = faulty.engine.control.failed
    assert failed or at == 2
    if failed:
        assert_replaced(call_once(faulty, JSON_PARTS))
    files.mend()
    faulty.restart()
    assert len(faulty.settled(calls=len(faulty.calls()))) <= 2
    assert call_once(faulty, JSON_PARTS).status == 200


def test_a_json_answer_is_replaced_by_a_503(faulty: Shop, files: FaultyFiles) -> None:
    files.fail("flush")
    assert_replaced(call_once(faulty, JSON_PARTS))
    files.mend()
    # The failure is final, whatever the disk says later; no app is called any more.
    app = faulty.middleware(never)
    for path in ("/chat", "/flat"):
        server = run(serve(app, http_scope(path, token=faulty.token), Server(None)))
        assert_replaced(server)
    free = run(
        serve(faulty.middleware(script(*answer({}))), http_scope("/health", "GET"), Server(None))
    )
    assert free.status == 200


def test_a_started_stream_is_cut_without_its_last_message(faulty: Shop, files: FaultyFiles) -> None:
    server = Server(None)

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await send(SSE_PARTS[0])
        await send(SSE_PARTS[1])
        files.fail("flush")
        for message in SSE_PARTS[2:]:
            await send(message)

    scope = http_scope(token=faulty.token)
    with pytest.raises(RecordingFailed):
        run(serve(faulty.middleware(app), scope, server))
    assert server.messages == SSE_PARTS[:3]
    assert server.body == SSE_PARTS[1]["body"] + USAGE


def test_an_app_that_ignores_the_cut_cannot_complete_its_answer(
    faulty: Shop, files: FaultyFiles
) -> None:
    server = Server(None)
    refused: list[RecordingFailed] = []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await send(SSE_PARTS[0])
        files.fail("flush")
        for message in (body(USAGE + DONE, True), body(b"more", True), body()):
            try:
                await send(message)
            except RecordingFailed as error:
                refused.append(error)

    run(serve(faulty.middleware(app), http_scope(token=faulty.token), server))
    assert server.messages == SSE_PARTS[:1]
    assert len(refused) == 3


def test_an_app_whose_answer_was_replaced_is_stopped(faulty: Shop, files: FaultyFiles) -> None:
    server = Server(None)
    sent = 0

    async def endless(scope: Scope, receive: Receive, send: Send) -> None:
        nonlocal sent
        await send(start(200, SSE))
        while True:
            sent += 1
            await send(body(b"data: {}\n\n", True))

    files.fail("flush")
    with pytest.raises(RecordingFailed):
        run(serve(faulty.middleware(endless), http_scope(token=faulty.token), server))
    assert_replaced(server)
    assert sent == 1


@pytest.mark.parametrize("loses", [True, False])
def test_a_restart_believes_the_disk_and_charges_once(
    faulty: Shop, files: FaultyFiles, loses: bool
) -> None:
    files.fail("flush", for_good=True)
    assert_replaced(call_once(faulty, JSON_PARTS))
    files.mend()
    faulty.close()
    if loses:
        files.power_cut()
    faulty.reopen()
    calls = faulty.settled(calls=1 if loses else 2)
    assert [ended.charged for ended in calls] == [7 * TOKEN] * len(calls)
    assert faulty.balance == BALANCE - 7 * TOKEN * len(calls)


@pytest.mark.parametrize("verb", ["settle", "start"])
@pytest.mark.parametrize("messages", [JSON_PARTS, SSE_PARTS])
def test_an_answer_that_was_replaced_is_not_charged_later(
    shop: Shop, monkeypatch: pytest.MonkeyPatch, verb: str, messages: list[Message]
) -> None:
    """Trouble that passes (no room) must not leave a charge for a 503."""
    real = getattr(charge, verb)

    def full(*args: object) -> object:
        monkeypatch.setattr(charge, verb, real)
        raise RecordingFailed("no room")

    monkeypatch.setattr(charge, verb, full)
    server = Server(shop)
    begun = verb == "settle" and messages is SSE_PARTS
    app, scope = shop.middleware(script(*messages)), http_scope(token=shop.token)
    if begun or (verb == "start" and messages is SSE_PARTS):
        with pytest.raises(RecordingFailed):
            run(serve(app, scope, server))
    else:
        run(serve(app, scope, server))
    if begun:
        assert server.messages == messages[:3]
        assert shop.ended().charged == 7 * TOKEN
    elif verb == "settle" or messages is SSE_PARTS:
        assert_replaced(server)
        assert shop.ended() == (0, None, "no answer began", {})
    else:
        assert shop.ended().charged == 7 * TOKEN


def test_trouble_is_logged_without_sums(
    faulty: Shop, files: FaultyFiles, caplog: pytest.LogCaptureFixture
) -> None:
    files.fail("flush")
    with caplog.at_level(logging.INFO, "finomw"):
        call_once(faulty, JSON_PARTS)
        call_once(faulty, JSON_PARTS)
    assert "an answer was replaced" in caplog.text
    assert "a call was refused" in caplog.text
    assert str(BALANCE - 7 * TOKEN) not in caplog.text
