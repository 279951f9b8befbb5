"""What leaves, in which order, and what it waits for."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any

import pytest
from asgi_shop import (
    DONE,
    FLAT,
    HOLD,
    SSE,
    TOKEN,
    Message,
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
    stream,
    used,
)
from starlette.types import ASGIApp, Receive, Scope, Send

from finomw.types import UsageStatus

USAGE = event(used(7))
WORDS = [event({"text": word}) for word in ("one", "two", "three")]


def test_a_json_answer_in_pieces_waits_as_a_whole(shop: Shop) -> None:
    whole = json.dumps(used(7)).encode()
    messages = [start(), body(b"", True), *(body(whole[i : i + 5], True) for i in range(0, 40, 5))]
    messages += [body(whole[40:], True), body()]
    server = call(shop, script(*messages))
    assert server.messages == messages
    assert {sent.ended for sent in server.sent} == {1}
    assert all(sent.durable == sent.tail for sent in server.sent)
    assert shop.ended().charged == 7 * TOKEN


@pytest.mark.parametrize(
    "kind", [b"application/json; charset=utf-8", b"Application/JSON", b"application/problem+json"]
)
def test_a_json_type_is_known_in_any_spelling(shop: Shop, kind: bytes) -> None:
    call(shop, script(start(200, kind), body(json.dumps(used(7)).encode())))
    assert shop.ended().charged == 7 * TOKEN


def test_an_answer_in_an_unknown_coding_passes_unread(shop: Shop) -> None:
    coded = start(200, b"application/json", (b"Content-Encoding", b"compress"))
    messages = [coded, body(b"\x1f\x9d", True), body(b"\x00")]
    server = call(shop, script(*messages))
    assert server.messages == messages
    assert [sent.ended for sent in server.sent] == [0, 0, 1]
    assert shop.ended().charged == HOLD


def test_an_identity_encoding_is_none(shop: Shop) -> None:
    coded = start(200, b"application/json", (b"content-encoding", b"identity"))
    call(shop, script(coded, body(json.dumps(used(7)).encode())))
    assert shop.ended().charged == 7 * TOKEN


@pytest.mark.parametrize(
    ("chunks", "held_from"),
    [
        # the index of the first message that waited for the charge
        ([*WORDS, USAGE, DONE], 5),
        ([*WORDS, USAGE + DONE], 4),
        ([USAGE + DONE], 1),
        ([*WORDS, USAGE, DONE[:9], DONE[9:]], 6),
        ([*WORDS, USAGE, DONE[:12], DONE[12:]], 5),
        ([*WORDS, USAGE], 5),
        ([USAGE[:9], USAGE[9:], *WORDS, DONE], 6),
        ([b""], 2),
    ],
)
@pytest.mark.parametrize("empty_last", [True, False])
def test_a_stream_passes_and_its_end_waits(
    shop: Shop, chunks: list[bytes], held_from: int, empty_last: bool
) -> None:
    messages = stream(*chunks, empty_last=empty_last)
    held_from = min(held_from, len(messages) - 1)
    server = call(shop, script(*messages))
    assert server.messages == messages
    assert [sent.ended for sent in server.sent] == [
        int(index >= held_from) for index in range(len(messages))
    ]
    assert all(sent.durable == sent.tail for sent in server.sent[held_from:])
    if any(chunks):
        assert shop.ended() == (7 * TOKEN, UsageStatus.KNOWN, "", {"tokens": 7})
    else:
        assert shop.ended() == (0, None, "the answer has no body", {})


def test_a_stream_is_read_alike_however_it_is_cut(shop: Shop) -> None:
    whole = b"".join([*WORDS, USAGE, DONE])
    app: dict[str, Any] = {}

    async def swapped(scope: Scope, receive: Receive, send: Send) -> None:
        await app["now"](scope, receive, send)

    middleware = shop.middleware(swapped)

    async def main() -> None:
        for cut in range(1, len(whole)):
            messages = stream(whole[:cut], whole[cut:])
            app["now"] = script(*messages)
            server = await serve(middleware, http_scope(token=shop.token), Server(shop=None))
            assert server.messages == messages

    run(main())
    calls = shop.settled(calls=len(whole) - 1)
    assert {call.charged for call in calls} == {7 * TOKEN}
    assert {call.usage for call in calls} == {UsageStatus.KNOWN}


def test_running_totals_are_not_summed(shop: Shop) -> None:
    call(shop, script(*stream(event(used(3)), event(used(5)), event(used(8)), DONE)))
    assert shop.ended().charged == 8 * TOKEN


def test_an_error_event_in_a_stream_without_usage_costs_nothing(shop: Shop) -> None:
    call(shop, script(*stream(WORDS[0], event({"error": {"message": "overloaded"}}))))
    assert shop.ended() == (0, None, "the answer failed with status 200", {})


def test_an_error_event_after_usage_is_charged_by_the_usage(shop: Shop) -> None:
    call(shop, script(*stream(USAGE, event({"error": {"message": "overloaded"}}))))
    assert shop.ended().charged == 7 * TOKEN


def test_chunks_may_be_any_bytes_like_object(shop: Shop) -> None:
    chunks = [memoryview(WORDS[0]), memoryview(USAGE), bytearray(DONE)]
    messages = [start(200, SSE), *(body(chunk, True) for chunk in chunks), body()]
    server = call(shop, script(*messages))
    assert server.messages == messages
    assert shop.ended().charged == 7 * TOKEN


def test_headers_keep_their_order_case_and_doubles(shop: Shop) -> None:
    headers = [
        (b"Content-Type", b"application/json"),
        (b"set-cookie", b"a=1"),
        (b"Set-Cookie", b"b=2"),
        (b"x-latin", b"caf\xe9"),
    ]
    for given in (headers, tuple(headers), iter(headers)):
        head = {"type": "http.response.start", "status": 200, "headers": given}

        async def app(scope: Scope, receive: Receive, send: Send, head: Message = head) -> None:
            await send(head)
            await send(body(json.dumps(used(7)).encode()))

        server = call(shop, app)
        assert list(server.messages[0]["headers"]) == headers
    assert [ended.charged for ended in shop.settled(calls=3)] == [7 * TOKEN] * 3


def test_a_start_without_headers_is_enough(shop: Shop) -> None:
    messages = [{"type": "http.response.start", "status": 200}, {"type": "http.response.body"}]
    assert call(shop, script(*messages), "/flat").messages == messages
    assert shop.ended().charged == FLAT


def test_messages_of_other_types_keep_their_place(shop: Shop) -> None:
    debug = {"type": "http.response.debug", "info": {}}
    messages = [debug, start(), debug, body(json.dumps(used(7)).encode()), debug]
    assert call(shop, script(*messages)).messages == messages
    assert shop.ended().charged == 7 * TOKEN


def test_what_an_app_sends_wrongly_is_the_servers_to_refuse(shop: Shop) -> None:
    messages = [*answer(used(7)), start(), body(b"again")]
    assert call(shop, script(*messages)).messages == messages
    assert shop.ended().charged == 7 * TOKEN


def test_a_second_start_does_not_overtake_the_first(shop: Shop) -> None:
    messages = [start(201), start(202), body(b"{}")]
    assert call(shop, script(*messages)).messages == messages


def test_ways_to_answer_that_cannot_be_metered_are_hidden(shop: Shop) -> None:
    seen: list[Scope] = []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        seen.append(scope)
        await script(*answer(used(7)))(scope, receive, send)

    extensions: dict[str, dict[str, object]] = {
        "http.response.pathsend": {},
        "http.response.zerocopysend": {},
        "http.response.trailers": {},
        "http.response.debug": {},
    }
    for path, method in (("/chat", "POST"), ("/health", "GET")):
        scope = http_scope(path, method, shop.token, extensions=dict(extensions))
        run(serve(shop.middleware(app), scope, Server(shop)))
        assert scope["extensions"] == extensions
    assert [set(scope["extensions"]) for scope in seen] == [
        {"http.response.debug"},
        set(extensions),
    ]


def after_its_hold(shop: Shop, messages: list[Message]) -> ASGIApp:
    """Make an app that answers when the hold is on disk, as one that has work to do would."""

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        shop.engine.flush()
        await script(*messages)(scope, receive, send)

    return app


@pytest.mark.parametrize(
    ("path", "messages", "waits"),
    [
        ("/chat", answer(used(7)), True),
        ("/chat", answer({}, 500), True),
        ("/chat_none", answer({}), True),
        ("/chat", stream(USAGE, DONE), True),
        ("/chat_settle", answer(used(7)), True),
        ("/flat", answer({}), False),
        ("/flat", stream(USAGE, DONE), False),
        ("/flat", answer({}, 500), True),
        ("/flat", [start(204), body()], False),
    ],
)
def test_the_last_message_waits_for_the_end_of_the_call_unless_it_is_flat(
    shop: Shop, path: str, messages: list[Message], waits: bool
) -> None:
    server = call(shop, after_its_hold(shop, messages), path)
    last = server.sent[-1]
    assert last.ended == 1
    assert (last.durable == last.tail) is waits
    if not waits:
        hold_end = last.durable
        assert 0 < hold_end < last.tail
    shop.settled()


HELD_CONFIG = """
data: node
buffer_usd: "0"
durability: held
plans:
  default:
    prices:
      flat: {requests: {usd: "0.002"}}
      chat: {tokens: {usd: "0.00001"}}
routes:
  - {match: POST /flat, name: flat, meter: {requests: 1}}
  - match: POST /chat
    name: chat
    meter: {tokens: .usage.tokens}
    hold: {tokens: 100}
    on_crash: settle
"""


@pytest.mark.parametrize(
    ("path", "messages", "waits"),
    [
        ("/chat", answer(used(7)), False),
        ("/chat", stream(USAGE, DONE), False),
        ("/chat", answer({}, 500), True),
        ("/flat", answer({}), False),
    ],
)
def test_held_answers_wait_for_their_hold_only(
    open_shop: Callable[..., Shop], path: str, messages: list[Message], waits: bool
) -> None:
    shop = open_shop(HELD_CONFIG)
    server = call(shop, after_its_hold(shop, messages), path)
    last = server.sent[-1]
    assert (last.ended, last.durable == last.tail) == (1, waits)
    assert last.durable > 0
    shop.settled()


def test_relaxed_answers_wait_for_nothing(open_shop: Callable[..., Shop]) -> None:
    shop = open_shop(config_text("durability: relaxed"))
    app = shop.middleware(script(*answer(used(7))))
    shop.engine.flush()
    flushed = shop.engine.durable()
    server = Server(shop)

    async def main() -> None:
        await serve(app, http_scope(token=shop.token), server)

    run(main())
    assert {sent.durable for sent in server.sent} == {flushed}
    assert shop.ended().charged == 7 * TOKEN


def test_the_hold_is_flushed_while_the_app_works(shop: Shop) -> None:
    seen: list[bool] = []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        for _ in range(2):
            seen.append(shop.engine.durable() == shop.engine.tail())
            await asyncio.sleep(0)
        await script(*answer({}))(scope, receive, send)

    call(shop, app, "/flat")
    assert seen == [False, True]


@pytest.mark.parametrize("path", ["/chat", "/flat"])
@pytest.mark.parametrize("messages", [answer(used(7)), stream(USAGE, DONE)])
def test_nothing_leaves_before_the_hold_is_on_disk(
    shop: Shop, path: str, messages: list[Message]
) -> None:
    before = shop.engine.flush()
    server = call(shop, script(*messages), path)
    assert server.sent[0].durable > before
