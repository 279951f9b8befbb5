"""What a call may cost at most, and which prices it selects."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest
from asgi_shop import (
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
from starlette.types import Receive, Scope, Send

from finomw.money.entries import Entry
from finomw.types import EntryKind

PRICES = """
      by_model:
        by: .model
        small: {tokens: {usd: "0.00001"}}
        "3": {tokens: {usd: "0.00003"}}
        "*": {tokens: {usd: "0.00009"}}
      by_known:
        by: .model
        small: {tokens: {usd: "0.00001"}}
      by_path:
        by: path.model
        small: {tokens: {usd: "0.00001"}}
        "*": {tokens: {usd: "0.00009"}}
      by_jq:
        by: '.model | ascii_downcase'
        small: {tokens: {usd: "0.00001"}}
"""
METERED = "meter: {tokens: .usage.tokens}, hold: {tokens: 100}"
ROUTES = f"""
  - {{match: "GET,POST /by_model", name: by_model, {METERED}}}
  - {{match: POST /by_known, name: by_known, {METERED}}}
  - {{match: "POST /by_path/{{model}}/go", name: by_path, {METERED}}}
  - {{match: POST /by_jq, name: by_jq, {METERED}}}
"""
TEXT = config_text(prices=PRICES, routes=ROUTES)
ANSWER = script(*answer(used(7)))


async def never(scope: Scope, receive: Receive, send: Send) -> None:
    raise AssertionError("the app was called")


def ask(shop: Shop, path: str, request: bytes, served: bool = True, method: str = "POST") -> Server:
    """Call with this request; the app is only reached when it is to be served."""
    app = shop.middleware(ANSWER if served else never)
    server = Server(shop, [request])
    run(serve(app, http_scope(path, method, shop.token), server))
    if served:
        assert server.status == 200
    return server


def settlement(shop: Shop) -> Entry:
    """Return the one settlement."""
    shop.settled()
    [entry] = [entry for entry in shop.entries() if entry.kind is EntryKind.SETTLEMENT]
    return entry


def held(shop: Shop) -> int:
    """Return what the one call held, in micros."""
    [amount] = [-entry.amount for entry in shop.entries() if entry.kind is EntryKind.HOLD]
    return amount


@pytest.mark.parametrize(
    ("path", "request_", "price", "choice"),
    [
        ("/by_model", b'{"model": "small"}', TOKEN, "small"),
        ("/by_model", b'{"model": "large"}', 9 * TOKEN, "large"),
        ("/by_model", b'{"model": 3}', 3 * TOKEN, "3"),
        ("/by_model", b'{"model": 3.0}', 3 * TOKEN, "3"),
        ("/by_model", b'{"model": null}', 9 * TOKEN, ""),
        ("/by_model", b'{"model": ["small"]}', 9 * TOKEN, ""),
        ("/by_model", b'{"model": {"a": 1}}', 9 * TOKEN, ""),
        ("/by_model", b"[1]", 9 * TOKEN, ""),
        ("/by_model", b"", 9 * TOKEN, ""),
        ("/by_model", b'{"model": "large", "model": "small"}', TOKEN, "small"),
        ("/by_model", json.dumps({"model": "m" * 100}).encode(), 9 * TOKEN, "m" * 64),
        ("/by_known", b'{"model": "small"}', TOKEN, "small"),
        ("/by_path/small/go", b"not JSON", TOKEN, "small"),
        ("/by_path/large/go", b"", 9 * TOKEN, "large"),
        ("/by_jq", b'{"model": "SMALL"}', TOKEN, "small"),
    ],
)
def test_a_call_selects_its_prices(
    open_shop: Callable[..., Shop], path: str, request_: bytes, price: int, choice: str
) -> None:
    shop = open_shop(TEXT)
    ask(shop, path, request_)
    entry = settlement(shop)
    assert held(shop) == 100 * price
    assert entry.amount == -7 * price
    assert entry.call is not None
    assert entry.call.choice == choice


def test_a_get_without_a_body_selects_the_rest(open_shop: Callable[..., Shop]) -> None:
    shop = open_shop(TEXT)
    ask(shop, "/by_model", b"", method="GET")
    assert settlement(shop).amount == -7 * 9 * TOKEN


@pytest.mark.parametrize(
    ("path", "request_"),
    [
        ("/by_known", b'{"model": "large"}'),
        ("/by_known", b'{"model": "Small"}'),
        ("/by_known", b'{"model": "small "}'),
        ("/by_known", b'{"model": 1e300}'),
        ("/by_known", b'{"model": true}'),
        ("/by_known", b"{}"),
        ("/by_known", b""),
        ("/by_jq", b'{"model": 3}'),
        ("/by_jq", b'{"model": {"deep": ' + b"[" * 900 + b"]" * 900 + b"}}"),
        ("/by_known", b'{"model": ' + b"[" * 990 + b"]" * 990 + b"}"),
    ],
)
def test_a_call_without_a_price_is_refused(
    open_shop: Callable[..., Shop], path: str, request_: bytes
) -> None:
    shop = open_shop(TEXT)
    server = ask(shop, path, request_, served=False)
    assert server.status == 400
    assert server.problem["reason"] in ("unpriced", "invalid_request")
    shop.settled(calls=0)


@pytest.mark.parametrize(
    "request_",
    [
        b"not JSON",
        b"{",
        b'{"model": "large", "n": NaN}',
        b'{"model": "large", "n": Infinity}',
        b'\xef\xbb\xbf{"model": "large"}',
        '{"model": "large"}'.encode("utf-16"),
        b'{"model": "large", "x": "\\ud800"}',
        b"\x1f\x8b\x08\x00",
        b"--boundary\r\n",
        b"model=small",
    ],
)
@pytest.mark.parametrize("path", ["/by_model", "/asked"])
def test_a_request_that_only_the_app_could_read_is_refused(
    open_shop: Callable[..., Shop], path: str, request_: bytes
) -> None:
    """Python reads NaN, lone surrogates and UTF-16; such a request could choose its own price."""
    shop = open_shop(TEXT)
    server = ask(shop, path, request_, served=False)
    assert (server.status, server.problem["reason"]) == (400, "invalid_request")
    shop.settled(calls=0)


@pytest.mark.parametrize(
    ("asked", "amount"),
    [
        ({"max_tokens": 50}, 50),
        ({"max_tokens": 50.0}, 50),
        ({"max_tokens": None}, 100),
        ({"max_tokens": False}, 100),
        ({}, 100),
        (None, 100),
    ],
)
def test_the_hold_is_the_price_of_what_is_asked_for(shop: Shop, asked: object, amount: int) -> None:
    ask(shop, "/asked", json.dumps(asked).encode())
    shop.settled()
    holds = [-entry.amount for entry in shop.entries() if entry.kind is EntryKind.HOLD]
    assert holds == [amount * TOKEN]


def test_a_number_out_of_range_matters_only_where_it_is_asked_for(shop: Shop) -> None:
    ask(shop, "/asked", b'{"n": 1e999, "max_tokens": 50}')
    shop.settled()
    server = ask(shop, "/asked", b'{"max_tokens": 1e999}', served=False)
    assert (server.status, server.problem["reason"]) == (400, "invalid_request")


def test_who_asks_for_nothing_of_what_has_a_price_holds_one_micro(shop: Shop) -> None:
    ask(shop, "/asked", b'{"max_tokens": 0}')
    shop.settled()
    holds = [-entry.amount for entry in shop.entries() if entry.kind is EntryKind.HOLD]
    assert holds == [1]


@pytest.mark.parametrize(
    "asked", [-1, "100", "", 1e30, 2**53 + 2, 0.5, True, [100], {"n": 100}, -0.1, 1e300]
)
def test_an_impossible_amount_is_refused(shop: Shop, asked: object) -> None:
    server = ask(shop, "/asked", json.dumps({"max_tokens": asked}).encode(), served=False)
    assert (server.status, server.problem["reason"]) == (400, "invalid_request")
    assert server.problem["detail"].startswith("max_tokens"[4:])
    shop.settled(calls=0)


@pytest.mark.parametrize("asked", [b"[1]", b'"text"', b"7"])
def test_a_request_of_another_shape_is_refused(shop: Shop, asked: bytes) -> None:
    assert ask(shop, "/asked", asked, served=False).problem["reason"] == "invalid_request"


def test_a_call_that_may_cost_more_than_any_amount_is_refused_without_sums(shop: Shop) -> None:
    server = ask(shop, "/asked", json.dumps({"max_tokens": 2**53}).encode(), served=False)
    assert (server.status, server.problem["reason"]) == (400, "invalid_request")
    assert not any(digit in server.problem["detail"] for digit in "0123456789")
    shop.settled(calls=0)
