"""Requests and answers that a rule rewrites: what the app gets, what leaves, what is charged."""

from __future__ import annotations

import asyncio
import gzip
import json
import logging
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

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
from starlette.types import Receive, Scope, Send

from finomw import limits
from finomw.types import UsageStatus

PRICE = '{tokens: {usd: "0.00001"}}'
METERED = "meter: {tokens: .usage.tokens}, hold: {tokens: 100}"
OPENAI = "meter: {tokens: .usage.total_tokens}, hold: {tokens: 100}, ensure_usage: true"
RULES = config_text(
    prices=f"""
      asking: {PRICE}
      answering: {PRICE}
      events: {PRICE}
      openai: {PRICE}
      both: {PRICE}
      endless: {PRICE}
""",
    routes=f"""
  - match: POST /endless
    name: endless
    {METERED.replace(", hold", chr(10) + "    hold")}
    request: {{transform: "if .n then until(false; .) else . end"}}
  - match: POST /asking
    name: asking
    meter: {{tokens: .usage.tokens}}
    hold: {{tokens: .max // 50}}
    max_request: 64KiB
    request: {{transform: "if .bad then error(.bad) elif .gone then empty else .max = 20 end"}}
  - match: "GET,POST /answering"
    name: answering
    {METERED.replace(", hold", chr(10) + "    hold")}
    max_body: 64KiB
    response: {{transform: "if .odd then .a.b.c.d else del(.usage) end"}}
  - match: POST /events
    name: events
    {METERED.replace(", hold", chr(10) + "    hold")}
    response: {{transform_events: "if .usage then null else del(.secret) end"}}
  - {{match: POST /openai, name: openai, {OPENAI}}}
  - match: POST /both
    name: both
    {OPENAI.replace(", ", chr(10) + "    ")}
    request: {{transform: .user = "me"}}
    response: {{transform_events: .seen = true}}
""",
)


@pytest.fixture
def rewriting(tmp_path: Path) -> Iterator[Shop]:
    made = Shop(tmp_path, RULES)
    yield made
    made.close()


class Echo:
    """An app that reads its request and answers with a script, and remembers what it saw."""

    def __init__(self, *messages: Message) -> None:
        self.messages = messages
        self.body = b""
        self.headers: list[tuple[bytes, bytes]] = []

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.headers = list(scope["headers"])
        more = True
        while more:
            message = await receive()
            self.body += message.get("body", b"")
            more = message.get("more_body", False)
        await script(*self.messages)(scope, receive, send)


def send(
    shop: Shop,
    app: Echo,
    path: str,
    parts: Sequence[bytes] = (b"",),
    headers: Sequence[tuple[bytes, bytes]] = (),
    method: str = "POST",
) -> Server:
    async def main() -> Server:
        scope = http_scope(path, method, shop.token, headers)
        return await serve(shop.middleware(app), scope, Server(shop, parts))

    return run(main())


def test_the_app_gets_the_rewritten_request_and_the_hold_is_for_that(rewriting: Shop) -> None:
    app = Echo(*answer(used(7)))
    given = [(b"Content-Length", b"30"), (b"Transfer-Encoding", b"chunked"), (b"Digest", b"x=y")]
    server = send(rewriting, app, "/asking", [b'{"n":1e5, ', b'"max":', b"90}"], given)
    assert server.status == 200
    assert app.body == b'{"n":1E+5,"max":20}'
    kept = [(name, value) for name, value in app.headers if name != b"authorization"]
    assert kept == [(b"content-length", b"%d" % len(app.body))]
    [held, *_] = rewriting.entries()[1:]
    assert held.amount == -20 * TOKEN
    assert rewriting.ended().charged == 7 * TOKEN


def test_a_request_that_stays_the_same_is_passed_as_it_came(rewriting: Shop) -> None:
    app = Echo(*answer(used(7)))
    given = [(b"content-length", b"12"), (b"digest", b"x=y")]
    send(rewriting, app, "/asking", [b'{"max"', b": 20.0 }"], given)
    assert app.body == b'{"max": 20.0 }'
    assert app.headers[: len(given)] == given
    assert rewriting.ended().charged == 7 * TOKEN


def test_an_empty_request_is_not_rewritten(rewriting: Shop) -> None:
    app = Echo(*answer(used(7)))
    assert send(rewriting, app, "/asking").status == 200
    assert app.body == b""
    assert rewriting.entries()[1].amount == -50 * TOKEN


@pytest.mark.parametrize(
    ("sent", "headers", "status", "reason"),
    [
        (b"no JSON", [], 400, "invalid_request"),
        (b'{"bad": "customer text"}', [], 400, "invalid_request"),
        (b'{"gone": true}', [], 400, "invalid_request"),
        (b'{"max":NaN}', [], 400, "invalid_request"),
        (b"x" * 65_537, [], 413, "request_too_large"),
        (
            gzip.compress(b"{}", mtime=0),
            [(b"Content-Encoding", b"gzip")],
            415,
            "unsupported_encoding",
        ),
    ],
)
def test_a_request_that_cannot_be_rewritten_is_refused(
    rewriting: Shop, sent: bytes, headers: list[tuple[bytes, bytes]], status: int, reason: str
) -> None:
    app = Echo()
    server = send(rewriting, app, "/asking", [sent], headers)
    assert (server.status, server.problem["reason"]) == (status, reason)
    assert b"customer text" not in server.body
    assert app.headers == []
    rewriting.settled(calls=0)


def test_an_identity_encoding_is_none(rewriting: Shop) -> None:
    app = Echo(*answer(used(7)))
    server = send(rewriting, app, "/asking", [b"{}"], [(b"content-encoding", b"Identity")])
    assert server.status == 200
    assert app.body == b'{"max":20}'


def test_a_large_request_is_rewritten_apart(rewriting: Shop) -> None:
    app = Echo(*answer(used(7)))
    text = json.dumps({"prompt": "x" * 60_000}, separators=(",", ":"))
    assert send(rewriting, app, "/asking", [text.encode()]).status == 200
    assert app.body == f'{text[:-1]},"max":20}}'.encode()


HEAD = [
    (b"Set-Cookie", b"a=1"),
    (b"ETag", b'"x"'),
    (b"set-cookie", b"b=\xe4"),
    (b"Digest", b"sha-256=x"),
]


def whole(
    *more: tuple[bytes, bytes], status: int = 200, data: bytes | None = None
) -> list[Message]:
    text = json.dumps(used(7)).encode() if data is None else data
    length = (b"Content-Length", b"%d" % len(text))
    return [start(status, b"application/json", *HEAD, length, *more), body(text)]


def test_a_json_answer_is_rewritten_after_it_was_metered(rewriting: Shop) -> None:
    server = send(rewriting, Echo(*whole()), "/answering")
    assert server.body == b'{"text":"hello"}'
    assert server.messages[0]["headers"] == [
        (b"content-type", b"application/json"),
        (b"Set-Cookie", b"a=1"),
        (b"set-cookie", b"b=\xe4"),
        (b"Content-Length", b"16"),
    ]
    assert {sent.ended for sent in server.sent} == {1}
    assert all(sent.durable == sent.tail for sent in server.sent)
    assert rewriting.ended().charged == 7 * TOKEN


def test_an_answer_in_pieces_leaves_as_one_without_a_length_that_it_had_not(
    rewriting: Shop,
) -> None:
    text = json.dumps(used(7)).encode()
    pieces = [body(text[at : at + 9], True) for at in range(0, len(text), 9)]
    server = send(rewriting, Echo(start(), *pieces, body()), "/answering")
    assert server.messages == [start(), body(b'{"text":"hello"}')]


def test_an_encoded_answer_leaves_decoded(rewriting: Shop) -> None:
    data = gzip.compress(json.dumps(used(7)).encode())
    server = send(rewriting, Echo(*whole((b"Content-Encoding", b"gzip"), data=data)), "/answering")
    assert server.body == b'{"text":"hello"}'
    assert b"Content-Encoding" not in server.headers
    assert server.headers[b"Content-Length"] == b"16"
    assert rewriting.ended().charged == 7 * TOKEN


SAME = [
    whole(data=b'{"text": "hello"}'),
    whole(status=404, data=b'{"error": {"usage": 1}, "usage": {"tokens": 7}}'),
    whole(status=206),
    whole((b"content-encoding", b"gzip"), data=gzip.compress(b'{"x": 1}', mtime=0)),
    whole(data=b'{"odd": 1, "a": 5, "usage": {"tokens": 7}}'),
    whole(data=b'{"usage": {"tokens": 7}, "cut'),
    whole((b"content-encoding", b"compress")),
    whole(data=b""),
    [start(204)],
    [start(200, b"text/plain"), body(b'{"usage": {"tokens": 7}}')],
    [start(200, None), body(b'{"usage": {"tokens": 7}}')],
    stream(event({"usage": {"tokens": 7}}), DONE),
    [start(), body(b'[{"usage": {"tokens": 7}},', True), body(b'{"usage": 1}]')],
    [start(), body(b"data", True), body(b": {}\n\n", True), body()],
]


@pytest.mark.parametrize("messages", SAME)
def test_what_does_not_change_or_cannot_passes_as_it_is(
    rewriting: Shop, messages: list[Message]
) -> None:
    server = send(rewriting, Echo(*messages), "/answering")
    assert server.messages == messages
    rewriting.settled()


def test_a_complete_array_in_a_message_before_the_last_is_an_answer(rewriting: Shop) -> None:
    app = Echo(start(), body(b'[{"usage": 1}]', True), body())
    server = send(rewriting, app, "/answering")
    assert server.body == b'[{"usage": 1}]'  # del(.usage) fails on an array
    assert server.messages == list(app.messages)


def test_an_answer_above_the_bound_passes_as_it_is(
    rewriting: Shop, caplog: pytest.LogCaptureFixture
) -> None:
    large = json.dumps({**used(7), "x": "y" * 70_000}).encode()
    messages = [start(), body(large[:9], True), body(large[9:60_000], True), body(large[60_000:])]
    with caplog.at_level(logging.WARNING, "finomw"):
        server = send(rewriting, Echo(*messages), "/answering")
    assert server.messages == messages
    assert "rule answering: answers larger than max_body are not rewritten" in caplog.messages


def test_a_failing_program_is_told_once_and_the_answer_passes(
    rewriting: Shop, caplog: pytest.LogCaptureFixture
) -> None:
    messages = whole(data=b'{"odd": 1, "a": 5}')
    app = Echo(*messages)
    middleware = rewriting.middleware(app)

    async def main() -> None:
        for _ in range(2):
            scope = http_scope("/answering", token=rewriting.token)
            server = await serve(middleware, scope, Server(rewriting))
            assert server.messages == messages

    with caplog.at_level(logging.WARNING, "finomw"):
        run(main())
    [told] = [text for text in caplog.messages if "not rewritten" in text]
    assert told.startswith("rule answering: an answer was not rewritten: Cannot index number")


def test_head_is_left_alone(rewriting: Shop) -> None:
    messages = [start(200, b"application/json", (b"content-length", b"50")), body()]
    server = send(rewriting, Echo(*messages), "/answering", method="HEAD")
    assert server.messages == messages


def test_a_refusal_in_place_of_an_answer_is_not_rewritten(rewriting: Shop) -> None:
    server = send(rewriting, Echo(start(500), body(b'{"usage": 1}')), "/answering")
    assert server.body == b'{"usage": 1}'
    assert rewriting.ended().charged == 0


def test_single_events_are_rewritten_and_taken_out(rewriting: Shop) -> None:
    one = b': hi\nevent: x\ndata: {"text": 1.0,\ndata: "secret": 2}\nid: 4\n\n'
    kept = [b": comment\r\n\r\n", b'data: {"text": 1.0}\n\n', b"data: no JSON\n\n", DONE]
    messages = stream(*kept[:2], one, event(used(7)), *kept[2:])
    server = send(rewriting, Echo(*messages), "/events")
    changed = b': hi\nevent: x\ndata: {"text":1.0}\nid: 4\n\n'
    assert server.body == b"".join([*kept[:2], changed, *kept[2:]])
    assert server.messages[0] == messages[0]
    assert rewriting.ended().charged == 7 * TOKEN


@pytest.mark.parametrize("path", ["/events", "/openai"])
def test_events_are_rewritten_however_the_stream_is_cut(rewriting: Shop, path: str) -> None:
    usage = event({"choices": [], "usage": {"total_tokens": 7, "tokens": 7}})
    words = [event({"choices": [{"x": word}], "usage": None}) for word in "ab"]
    text = b"".join([words[0], usage, words[1], DONE])
    asked = b'{"stream":true}' if path == "/openai" else b""
    app = Echo()
    middleware = rewriting.middleware(app)
    wanted = b"".join([*words, DONE])

    async def main() -> None:
        for cut in range(0, len(text), 3):
            app.messages = tuple(stream(text[:cut], text[cut:], empty_last=bool(cut % 2)))
            scope = http_scope(path, token=rewriting.token)
            server = await serve(middleware, scope, Server(None, [asked]))
            assert server.body == wanted
            assert server.messages[-1].get("more_body", False) is False
            bodies = server.messages[1:-1]
            assert all(message["more_body"] and message["body"] for message in bodies)

    run(main())
    charged = {call.charged for call in rewriting.settled(len(range(0, len(text), 3)))}
    assert charged == {7 * TOKEN}


def test_a_stream_under_a_wrong_name_is_one_too(rewriting: Shop) -> None:
    messages = [start(), body(b"da", True), body(b"ta: {}\n\n", True), body(event(used(7)))]
    assert send(rewriting, Echo(*messages), "/events").body == b"data: {}\n\n"


def test_an_encoded_stream_passes_as_it_is(rewriting: Shop) -> None:
    coded = start(200, SSE, (b"content-encoding", b"gzip"))
    messages = [coded, body(gzip.compress(event(used(7)) + DONE))]
    server = send(rewriting, Echo(*messages), "/events")
    assert server.messages == messages
    assert rewriting.ended().charged == 7 * TOKEN


USAGE = {"total_tokens": 7}
AZURE_FIRST = event({"choices": [], "model": "", "prompt_filter_results": [{"index": 0}]})
WORD = event({"choices": [{"delta": {"content": "hi"}}], "usage": None})
LAST_WORD = event({"choices": [{"delta": {}, "finish_reason": "stop"}], "usage": USAGE})
ALONE = event({"choices": [], "usage": USAGE})


def test_a_stream_is_asked_for_its_usage_and_the_client_does_not_see_it(rewriting: Shop) -> None:
    app = Echo(*stream(AZURE_FIRST, WORD, LAST_WORD, ALONE, DONE))
    server = send(rewriting, app, "/openai", [b'{"stream": true, "n":1e5}'])
    assert app.body == b'{"stream": true, "n":1e5,"stream_options":{"include_usage":true}}'
    assert (b"content-length", b"%d" % len(app.body)) in app.headers
    assert server.body == b"".join([AZURE_FIRST, WORD, LAST_WORD, DONE])
    assert rewriting.ended() == (7 * TOKEN, UsageStatus.KNOWN, "", {"tokens": 7})


@pytest.mark.parametrize(
    "asked", [b'{"stream":true,"stream_options":{"include_usage":true}}', b'{"stream":false}']
)
def test_who_asked_for_the_usage_gets_it(rewriting: Shop, asked: bytes) -> None:
    app = Echo(*stream(AZURE_FIRST, WORD, ALONE, DONE))
    server = send(rewriting, app, "/openai", [asked])
    assert app.body == asked
    assert server.messages == list(app.messages)


def test_a_json_answer_to_a_stream_that_was_asked_for_passes(rewriting: Shop) -> None:
    app = Echo(*answer({"choices": [], "usage": USAGE}))
    server = send(rewriting, app, "/openai", [b'{"stream":true}'])
    assert server.messages == list(app.messages)
    assert rewriting.ended().charged == 7 * TOKEN


def test_all_of_it_together(rewriting: Shop) -> None:
    app = Echo(*stream(WORD, ALONE, DONE))
    server = send(rewriting, app, "/both", [b'{"stream":true}'])
    assert json.loads(app.body) == {
        "stream": True,
        "user": "me",
        "stream_options": {"include_usage": True},
    }
    seen: dict[str, Any] = json.loads(server.body.removesuffix(DONE).removeprefix(b"data: "))
    assert seen["seen"] is True
    assert server.body.count(b"data: ") == 2
    assert rewriting.balance == BALANCE - 7 * TOKEN


def test_a_large_event_is_rewritten_apart(rewriting: Shop) -> None:
    large = event({"text": "x" * 100_000, "secret": 1})
    over = event({"text": "x" * limits.EVENT_MAX, "secret": 1})
    server = send(rewriting, Echo(*stream(large, over, event(used(7)), DONE)), "/events")
    first, second, done = server.body.split(b"\n\n")[:3]
    assert json.loads(first[6:]) == {"text": "x" * 100_000}
    assert second + b"\n\n" == over
    assert done + b"\n\n" == DONE


def test_a_program_without_an_end_refuses_its_request_and_stops_nobody(rewriting: Shop) -> None:
    app = Echo(*answer(used(7)))
    middleware = rewriting.middleware(app)

    async def main() -> None:
        def scope(path: str) -> Scope:
            return http_scope(path, token=rewriting.token)

        slow = asyncio.ensure_future(
            serve(middleware, scope("/endless"), Server(rewriting, [b'{"n": 1}']))
        )
        other = await serve(middleware, scope("/answering"), Server(rewriting, [b"{}"]))
        assert other.status == 200
        assert not slow.done()
        assert (await slow).problem["reason"] == "invalid_request"

    run(main())
    rewriting.settled(calls=1)
