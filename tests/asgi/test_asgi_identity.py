"""Who is calling, and what is said to those who may not."""

from __future__ import annotations

import json

import pytest
from asgi_shop import (
    ALICE,
    BALANCE,
    Server,
    Shop,
    answer,
    body,
    call,
    http_scope,
    run,
    script,
    serve,
    used,
)
from starlette.types import Receive, Scope, Send

from finomw import limits
from finomw.engine import customers, grants, keys
from finomw.types import CustomerId, PlanName


async def never(scope: Scope, receive: Receive, send: Send) -> None:
    raise AssertionError("the app was called")


def refused(shop: Shop, headers: list[tuple[bytes, bytes]]) -> Server:
    return run(serve(shop.middleware(never), http_scope(headers=headers), Server(shop)))


@pytest.mark.parametrize(
    "values",
    [
        [],
        [b""],
        [b"Bearer"],
        [b"Bearer "],
        [b"Basic dXNlcjpwYXNz"],
        [b"Bearer\tfino_x"],
        [b"fino_x"],
        [b"\xff\xfe"],
    ],
)
def test_a_call_without_a_bearer_key_is_told_what_to_send(shop: Shop, values: list[bytes]) -> None:
    server = refused(shop, [(b"authorization", value) for value in values])
    assert server.status == 401
    assert server.problem["reason"] == "no_key"
    assert server.headers[b"www-authenticate"] == b"Bearer"
    shop.settled(calls=0)


@pytest.mark.parametrize(
    "values",
    [
        [b"Bearer fino_unknown"],
        [b"Bearer " + b"x" * (limits.TOKEN_BYTES + 1)],
        [b"Bearer one two"],
        [b"Bearer \xff\xfe\x00"],
        [b"Bearer one", b"Bearer two"],
    ],
)
def test_a_key_that_is_not_known_is_an_invalid_token(shop: Shop, values: list[bytes]) -> None:
    server = refused(shop, [(b"authorization", value) for value in values])
    assert server.status == 401
    assert server.problem["reason"] == "unknown_key"
    assert server.headers[b"www-authenticate"] == b'Bearer error="invalid_token"'


def test_two_authorization_headers_are_refused_even_if_one_is_good(shop: Shop) -> None:
    good = b"Bearer " + shop.token.encode()
    assert refused(shop, [(b"authorization", good), (b"Authorization", good)]).status == 401


@pytest.mark.parametrize("scheme", [b"Bearer ", b"bearer ", b"BEARER  ", b" bEaReR "])
@pytest.mark.parametrize("name", [b"authorization", b"Authorization"])
def test_the_case_of_scheme_and_header_means_nothing(
    shop: Shop, scheme: bytes, name: bytes
) -> None:
    headers = [(name, scheme + shop.token.encode() + b" ")]
    app = shop.middleware(script(*answer(used(1))))
    assert run(serve(app, http_scope(headers=headers), Server(shop))).status == 200


def test_a_revoked_key_is_refused_from_then_on(shop: Shop) -> None:
    assert call(shop, script(*answer(used(1)))).status == 200
    keys.revoke_key(shop.engine, keys.hash_token(shop.token))
    server = call(shop, never)
    assert (server.status, server.problem["detail"]) == (401, "The key was revoked.")
    assert len(shop.calls()) == 1


def test_a_key_made_while_serving_works_at_once(shop: Shop) -> None:
    app = shop.middleware(script(*answer(used(1))))
    bob = CustomerId("bob")
    customers.add_customer(shop.engine, bob, PlanName("default"))
    grants.grant(shop.engine, bob, 1_000, "test", "1")
    token = keys.create_key(shop.engine, bob).token
    assert run(serve(app, http_scope(token=token), Server(shop))).status == 200


def drain(shop: Shop, left: int) -> None:
    """Spend all but ``left`` micros, by calls that use more than they held."""
    price = (shop.balance - left) // 10
    assert call(shop, script(*answer(used(price)))).status == 200
    assert shop.balance == left


def test_a_customer_without_money_is_told_so_without_sums(shop: Shop) -> None:
    drain(shop, 990)
    server = call(shop, never)
    assert server.status == 402
    assert server.problem == {
        "type": "urn:finomw:problem:exhausted",
        "title": "The balance does not cover this call",
        "status": 402,
        "reason": "exhausted",
        "remaining_percent": 0,
        "topup_url": "https://example.com/billing",
    }
    assert len(shop.calls()) == 1


def test_a_customer_below_zero_is_blocked_until_a_grant(shop: Shop) -> None:
    drain(shop, -10)
    server = call(shop, never)
    assert (server.status, server.problem["reason"]) == (402, "blocked")
    grants.grant(shop.engine, ALICE, 10, "test", "second")
    assert call(shop, never).problem["reason"] == "blocked"
    grants.grant(shop.engine, ALICE, 2_000, "test", "third")
    assert call(shop, script(*answer(used(1)))).status == 200


def test_money_held_by_other_calls_is_its_own_reason(shop: Shop) -> None:
    drain(shop, 1_500)

    async def slow(scope: Scope, receive: Receive, send: Send) -> None:
        second = await serve(shop.middleware(never), http_scope(token=shop.token), Server(shop))
        assert (second.status, second.problem["reason"]) == (402, "held")
        assert second.problem["remaining_percent"] == 0
        await script(*answer(used(1)))(scope, receive, send)

    assert call(shop, slow).status == 200


@pytest.mark.parametrize(("left", "percent"), [(BALANCE // 2, 50), (1, 0), (BALANCE - 10, 99)])
def test_a_refusal_shows_a_percentage_rounded_down(shop: Shop, left: int, percent: int) -> None:
    drain(shop, left // 10 * 10)
    app = shop.middleware(never)
    scope = http_scope("/asked", token=shop.token)
    asked = json.dumps({"max_tokens": 10**9}).encode()
    server = run(serve(app, scope, Server(shop, [asked])))
    assert server.problem["remaining_percent"] == percent
    assert str(left).encode() not in server.body


def test_a_customer_whose_plan_is_gone_gets_no_free_call(shop: Shop) -> None:
    carol = CustomerId("carol")
    customers.add_customer(shop.engine, carol, PlanName("old"))
    grants.grant(shop.engine, carol, 1_000, "test", "1")
    token = keys.create_key(shop.engine, carol).token
    server = run(serve(shop.middleware(never), http_scope(token=token), Server(shop)))
    assert (server.status, server.problem["reason"]) == (400, "unpriced")


def test_a_refusal_leaves_no_hold_and_no_message_of_the_app(shop: Shop) -> None:
    drain(shop, 0)
    server = call(shop, script(*answer(used(1)), body(b"more")))
    assert server.problem["reason"] == "exhausted"
    assert shop.open_holds() == 0
