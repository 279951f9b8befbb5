"""Calls by the presets, from the request to the ledger; and what a hold needs of a request."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest
from asgi_shop import SSE, Server, Shop, answer, body, http_scope, run, script, serve, start
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from finomw.types import EntryKind, UsageStatus

PAYLOADS = Path(__file__).parent.parent / "metering" / "payloads"
TEXT = """
data: node
buffer_usd: "0"
plans:
  default:
    quotas: {free: {meters: [units], units: 100, per: month}}
    prices:
      chat:
        input_tokens: {usd: "0.000003"}
        cached_input_tokens: {usd: "0.000001"}
        output_tokens: {usd: "0.000015"}
      messages:
        input_tokens: {usd: "0.000010"}
        cached_input_tokens: {usd: "0.000001"}
        cache_write_tokens: {usd: "0.000020"}
        output_tokens: {usd: "0.000050"}
      responses: {input_tokens: {usd: "0.000003"}, output_tokens: {usd: "0.000015"}}
      ollama: {input_tokens: {usd: "0.000001"}, output_tokens: {usd: "0.000002"}}
      tools:
        by: .params.name
        search: {calls: {usd: "0.002"}}
        fetch: {calls: {usd: "0.03"}}
        "*": {calls: {usd: 0}}
      upload: {kilobytes: {usd: "0.01"}}
      counted: {units: {usd: 1}}
      tiers: {things: {tiered: [{up_to: 10, usd: "0.001"}, {usd: "0.0005"}]}}
routes:
  - {name: chat, match: POST /chat, extends: openai.chat, ceiling: 1000}
  - {name: messages, match: POST /messages, extends: anthropic.messages, ceiling: 1000}
  - {name: responses, match: POST /responses, extends: openai.responses, ceiling: 1000}
  - {name: ollama, match: POST /ollama, extends: ollama.chat, ceiling: 1000}
  - {name: tools, match: POST /mcp, meter: mcp.tools}
  - {name: upload, match: POST /upload, meter: {kilobytes: .kb}, max_request: 5000,
     hold: {kilobytes: request_bytes / 1000}}
  - name: counted
    match: POST /counted
    meter: {units: .u, parts: .p}
    splits: {parts: {of: units}}
    hold: {units: 40}
  - name: tiers
    match: POST /tiers
    meter: {things: .t, bits: .b}
    splits: {bits: {of: things, inside: true}}
    hold: {things: 20}
"""


@pytest.fixture
def shop(open_shop: Callable[..., Shop]) -> Shop:
    return open_shop(TEXT)


def ask(
    shop: Shop,
    path: str,
    app: ASGIApp,
    request: object = b"",
    headers: Iterable[tuple[bytes, bytes]] = (),
) -> Server:
    raw = request if isinstance(request, bytes) else json.dumps(request).encode()

    async def main() -> Server:
        scope = http_scope(path, "POST", shop.token, headers)
        return await serve(shop.middleware(app), scope, Server(shop, (raw,)))

    return run(main())


def saved(file: str, kind: bytes = b"application/json") -> ASGIApp:
    return script(start(200, kind), body((PAYLOADS / file).read_bytes()))


def held(shop: Shop) -> int:
    return -sum(each.amount for each in shop.entries() if each.kind is EntryKind.HOLD)


async def never(scope: Scope, receive: Receive, send: Send) -> None:
    raise AssertionError("the app was called")


@pytest.mark.parametrize(
    ("path", "file", "kind", "charged"),
    [
        ("/chat", "openai_chat.json", b"application/json", 274 * 3 + 1536 + 240 * 15),
        ("/chat", "openai_chat_stream.sse", SSE, 37 * 3 + 5 * 15),
        ("/chat", "vllm_continuous_usage.sse", SSE, 1000 * 3 + 6 * 15),
        ("/messages", "anthropic_message.json", b"application/json", 3100 + 2048 + 81920 + 2750),
        ("/messages", "anthropic_stream_cumulative.sse", SSE, 3170 + 900 + 88500 + 47 * 50),
        ("/responses", "openai_responses_stream.sse", SSE, 880 * 3 + 130 * 15),
        ("/responses", "openai_responses_incomplete.sse", SSE, 880 * 3 + 1024 * 15),
        ("/ollama", "ollama_stream.ndjson", b"application/x-ndjson", 26 + 298 * 2),
    ],
)
def test_a_call_is_charged_what_its_provider_counted(
    shop: Shop, path: str, file: str, kind: bytes, charged: int
) -> None:
    server = ask(shop, path, saved(file, kind), {"messages": []})
    assert server.body == (PAYLOADS / file).read_bytes()
    assert (shop.ended().charged, shop.ended().usage) == (charged, UsageStatus.KNOWN)


def test_a_response_that_failed_before_it_began_costs_nothing(shop: Shop) -> None:
    ask(shop, "/responses", saved("openai_responses_failed_no_usage.sse", SSE), {"input": "a"})
    assert (shop.ended().charged, shop.ended().usage) == (0, None)


def test_a_hold_is_for_the_bytes_sent_and_the_output_asked_for(shop: Shop) -> None:
    request = {"messages": [{"role": "user", "content": "Is the lamp lit?"}], "max_tokens": 7}
    ask(shop, "/chat", saved("openai_chat.json"), {**request, "n": 2})
    assert held(shop) == len(json.dumps({**request, "n": 2})) * 3 + 2 * 7 * 15


def test_a_hold_covers_that_all_of_the_input_is_written_to_the_cache(shop: Shop) -> None:
    ask(shop, "/messages", saved("anthropic_message.json"), {"max_tokens": 1})
    assert held(shop) == len(json.dumps({"max_tokens": 1})) * 20 + 50


@pytest.mark.parametrize("limit", [-1, 0, None, "many", [1], {"a": 1}, True])
def test_no_crafted_limit_makes_the_hold_small(shop: Shop, limit: object) -> None:
    request = {"max_tokens": limit}
    ask(shop, "/chat", saved("openai_chat.json"), request)
    assert held(shop) == len(json.dumps(request)) * 3 + 1000 * 15


@pytest.mark.parametrize(
    ("limit", "status"), [(10**9, 402), (2**63 - 1, 400), (1e308, 400), (18446744073686646784, 400)]
)
def test_a_limit_that_nobody_can_pay_is_refused(shop: Shop, limit: float, status: int) -> None:
    assert ask(shop, "/chat", never, {"max_tokens": limit}).status == status
    shop.settled(calls=0)


def tool(name: str, number: int = 1) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": number, "method": "tools/call", "params": {"name": name}}


def result(number: int = 1, **members: object) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": number, "result": {"content": [], **members}}


PING = {"jsonrpc": "2.0", "method": "notifications/initialized"}


@pytest.mark.parametrize(
    ("request_", "reply", "charged"),
    [
        (tool("search"), result(), 2_000),
        (tool("fetch"), result(), 30_000),
        (tool("other"), result(), 0),
        ([tool("fetch"), tool("fetch", 2), PING], [result(), result(2)], 60_000),
        ([tool("fetch"), tool("fetch", 2)], [result(isError=True), result(2)], 30_000),
        ({"id": 1, "method": "tools/list"}, {"id": 1, "result": {"tools": []}}, 0),
    ],
)
def test_a_tool_is_charged_by_its_name_and_each_call_of_a_batch(
    shop: Shop, request_: object, reply: object, charged: int
) -> None:
    ask(shop, "/mcp", script(*answer(reply)), request_)
    assert (shop.ended().charged, shop.ended().usage) == (charged, UsageStatus.KNOWN)


@pytest.mark.parametrize(
    "reply", [result(isError=True), {"id": 1, "error": {"code": -32602, "message": "no"}}]
)
def test_a_tool_that_failed_costs_nothing(shop: Shop, reply: object) -> None:
    ask(shop, "/mcp", script(*answer(reply)), tool("fetch"))
    assert (shop.ended().charged, shop.ended().usage) == (0, None)


def test_a_tool_may_answer_with_a_stream(shop: Shop) -> None:
    events = [b"data: " + json.dumps(each).encode() + b"\n\n" for each in (PING, result())]
    parts: list[Message] = [body(each, more=True) for each in events]
    ask(shop, "/mcp", script(start(200, SSE), *parts, body()), tool("search"))
    assert shop.ended().charged == 2_000


def test_a_notification_costs_nothing(shop: Shop) -> None:
    assert ask(shop, "/mcp", script(start(202, None), body()), PING).status == 202
    shop.settled(calls=0)


def test_a_batch_whose_calls_are_priced_apart_is_refused(shop: Shop) -> None:
    server = ask(shop, "/mcp", never, [tool("search"), tool("fetch", 2)])
    assert (server.status, server.problem["reason"]) == (400, "invalid_request")
    assert server.problem["detail"] == (
        "Send them one by one: the calls of this batch have prices of their own, by .params.name."
    )
    shop.settled(calls=0)


def echo(log: list[object], server: Callable[[], int]) -> ASGIApp:
    """Make an app that notes what was read before it was called, and what it reads itself."""

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        log.append(server())
        while True:
            message = await receive()
            log.append((message["body"], message["more_body"]))
            if not message["more_body"]:
                break
        for message in answer({"kb": 2}):
            await send(message)

    return app


@pytest.mark.parametrize("declared", [True, False])
def test_an_upload_streams_if_it_says_how_large_it_is_and_is_replayed_if_not(
    shop: Shop, declared: bool
) -> None:
    parts = [b"\xff" * 1000, b"\x00" * 1000, b"end"]
    headers = [(b"content-length", b"2003")] if declared else []
    log: list[object] = []
    read = 0

    async def main() -> None:
        server = Server(shop, parts)
        receive = server.receive

        async def counting() -> Message:
            nonlocal read
            read += 1
            return await receive()

        app = shop.middleware(echo(log, lambda: read))
        await app(http_scope("/upload", "POST", shop.token, headers), counting, server.send)

    run(main())
    assert log == [0 if declared else 3, (parts[0], True), (parts[1], True), (parts[2], False)]
    assert held(shop) == 30_000
    assert shop.ended().charged == 20_000


def test_an_upload_above_the_bound_is_refused_by_what_it_says_or_sends(shop: Shop) -> None:
    declared = ask(shop, "/upload", never, b"", [(b"content-length", b"5001")])
    sent = ask(shop, "/upload", never, b"x" * 5001)
    assert (declared.status, sent.status) == (413, 413)
    ask(shop, "/upload", script(*answer({"kb": 5})), b"x" * 5000)
    assert shop.ended().charged == 50_000


@pytest.mark.parametrize("sizes", [[b"-5"], [b"x"], [b"5", b"6"], [b""], [b"9" * 30]])
def test_a_size_that_says_nothing_is_counted(shop: Shop, sizes: list[bytes]) -> None:
    headers = [(b"content-length", size) for size in sizes]
    ask(shop, "/upload", script(*answer({"kb": 1})), b"x" * 2500, headers)
    assert held(shop) == 30_000


def test_a_compressed_request_is_refused_where_its_size_is_what_counts(shop: Shop) -> None:
    server = ask(shop, "/upload", never, b"x", [(b"Content-Encoding", b"gzip")])
    assert server.problem["detail"] == "The request's body is compressed."
    plain = [(b"content-encoding", b"identity")]
    assert ask(shop, "/upload", script(*answer({"kb": 1})), b"x", plain).status == 200


def test_a_quota_of_a_meter_covers_its_parts(shop: Shop) -> None:
    for units, parts, charged in ((10, 20, 0), (5, 35, 0), (10, 30, 10_000_000)):
        ask(shop, "/counted", script(*answer({"u": units, "p": parts})))
        assert shop.settled(calls=len(shop.calls()))[-1].charged == charged


def test_tiers_count_a_meter_and_its_parts_together(shop: Shop) -> None:
    for told, charged in (({"t": 8, "b": 5}, 8_000), ({"t": 6}, 2_000 + 4 * 500)):
        ask(shop, "/tiers", script(*answer(told)))
        assert shop.settled(calls=len(shop.calls()))[-1].charged == charged
    assert shop.calls()[0].counts == {"things": 3, "bits": 5}
