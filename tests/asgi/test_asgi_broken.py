"""Calls that were charged wrongly once: a size that is none, parts that the app never mentions."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from asgi_shop import Server, Shop, body, http_scope, run, serve, start
from starlette.types import Receive, Scope, Send

from finomw.asgi.request import declared_size
from finomw.types import UsageStatus

TEXT = """
data: node
buffer_usd: "0"
plans:
  default:
    prices:
      sized: {kilobytes: {usd: "0.01"}}
      chat: {input_tokens: {usd: "0.000003"}, output_tokens: {usd: "0.000015"}}
      messages:
        input_tokens: {usd: "0.000003"}
        cache_write_1h_tokens: {usd: "0.000006"}
        output_tokens: {usd: "0.000015"}
routes:
  - {name: sized, match: POST /sized, meter: {kilobytes: .kb},
     hold: {kilobytes: request_bytes / 1000}}
  - {name: chat, match: POST /chat, extends: openai.chat, ceiling: 1000}
  - {name: messages, match: POST /messages, extends: anthropic.messages, ceiling: 1000}
"""


@pytest.fixture
def shop(open_shop: Callable[..., Shop]) -> Shop:
    return open_shop(TEXT)


def test_the_declared_size_of_a_chunked_request_is_not_what_is_held_for(shop: Shop) -> None:
    headers = [(b"content-length", b"1"), (b"transfer-encoding", b"chunked")]
    assert declared_size(headers) is None
    assert declared_size(reversed(headers)) is None
    assert declared_size(headers[:1]) == 1
    held: list[object] = []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        held.append(scope["state"]["fino"].hold.ceiling["kilobytes"])
        await send(start(200, b"text/plain"))
        await send(body(b"hello"))

    async def main() -> Server:
        scope = http_scope("/sized", token=shop.token, headers=headers)
        return await serve(shop.middleware(app), scope, Server(shop, (b"x" * 4000, b"x" * 1000)))

    assert run(main()).status == 200
    assert held == [5]
    assert shop.ended().charged == 50_000


@pytest.mark.parametrize("path", ["/chat", "/messages"])
def test_parts_that_nobody_mentions_are_0_where_the_app_tells_the_whole(
    shop: Shop, path: str
) -> None:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        scope["state"]["fino"].meter("input_tokens", 5)
        scope["state"]["fino"].meter("output_tokens", 6)
        await send(start(200, b"text/plain"))
        await send(body(b"hello"))

    async def main() -> Server:
        scope = http_scope(path, token=shop.token)
        return await serve(shop.middleware(app), scope, Server(shop, (b'{"max_tokens": 100}',)))

    assert run(main()).status == 200
    ended = shop.ended()
    assert (ended.charged, ended.usage) == (5 * 3 + 6 * 15, UsageStatus.KNOWN)
    assert {meter for meter, count in ended.counts.items() if count} == {
        "input_tokens",
        "output_tokens",
    }
