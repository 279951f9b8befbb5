"""Plans through the middleware: quotas, credit, suspension, what is free and what has no price."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest
from asgi_shop import (
    ALICE,
    BALANCE,
    FLAT,
    TOKEN,
    Server,
    Shop,
    answer,
    call,
    config_text,
    http_scope,
    run,
    script,
    serve,
    used,
)
from starlette.types import ASGIApp, Receive, Scope, Send

from finomw.engine import customers, grants, keys, ledger
from finomw.types import CustomerId, EntryKind, Fund, PlanName

BOB = CustomerId("bob")
ROUTES = """
  - {match: POST /gift, name: gift, meter: {requests: 1}}
  - {match: POST /tiers, name: tiers, meter: {tokens: .usage.tokens}, hold: {tokens: 100}}
  - {match: POST /capped, name: capped, meter: {tokens: .usage.tokens}, hold: {tokens: 100},
     overrun: cap}
  - {match: POST /new, name: new, meter: {requests: 1}}
"""
PRICES = """
      gift: {requests: {usd: 0}}
      tiers: {tokens: {tiered: [{up_to: 50, usd: "0.00002"}, {usd: "0.00001"}]}}
      capped: {tokens: {usd: "0.00001"}}
  basic:
    fund: [quota, wallet]
    quotas:
      free: {meters: [tokens], units: 150, per: month}
      gift: {meters: [cost], usd: "0.001", per: once}
    prices:
      chat: {tokens: {usd: "0.00001"}}
      flat: {requests: {usd: "0.002"}}
  postpaid:
    fund: [credit]
    prices:
      chat: {tokens: {usd: "0.00001"}}
  open:
    unpriced: free
    prices:
      chat:
        by: .model
        small: {tokens: {usd: "0.00001"}}
"""
TEXT = config_text(prices=PRICES, routes=ROUTES)


async def never(scope: Scope, receive: Receive, send: Send) -> None:
    raise AssertionError("the app was called")


@pytest.fixture
def shop(open_shop: Callable[..., Shop]) -> Shop:
    return open_shop(TEXT)


def add_bob(shop: Shop, plan: str, amount: int = 0) -> str:
    """Add a customer with a plan; return a key's token."""
    customers.add_customer(shop.engine, BOB, PlanName(plan))
    if amount:
        grants.grant(shop.engine, BOB, amount, "test", "1")
    return keys.create_key(shop.engine, BOB).token


def ask(shop: Shop, token: str, path: str, app: ASGIApp = never, body: bytes = b"") -> Server:
    server = Server(shop, [body])
    return run(serve(shop.middleware(app), http_scope(path, token=token), server))


def use(shop: Shop, token: str, path: str, tokens: object, body: bytes = b"") -> Server:
    return ask(shop, token, path, script(*answer(used(tokens))), body)


def account_of(shop: Shop, customer: CustomerId = BOB) -> tuple[int, int, int]:
    account = customers.get_account(shop.engine, customer)
    assert account.held == account.credit_held == account.open_holds == 0
    return account.balance, account.credit_used, account.spent_total


def test_a_suspended_customer_gets_403_whatever_the_balance_and_grants(shop: Shop) -> None:
    customers.suspend(shop.engine, ALICE, "chargeback")
    for _ in range(2):
        server = call(shop, never)
        assert (server.status, server.problem["reason"]) == (403, "suspended")
        assert server.problem["title"] == "The account is suspended"
        grants.grant(shop.engine, ALICE, 5, "test", "more")
    assert call(shop, never, "/gift").status == 403
    customers.resume(shop.engine, ALICE, "settled")
    assert use(shop, shop.token, "/chat", 1).status == 200


def test_a_call_under_way_when_its_customer_is_suspended_finishes(shop: Shop) -> None:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        customers.suspend(shop.engine, ALICE, "late")
        await script(*answer(used(7)))(scope, receive, send)

    assert ask(shop, shop.token, "/chat", app).status == 200
    assert shop.ended().charged == 7 * TOKEN


def test_a_call_of_price_zero_needs_no_money_but_a_key_and_is_recorded(shop: Shop) -> None:
    token = add_bob(shop, "default")
    assert use(shop, token, "/gift", 0).status == 200
    assert use(shop, token, "/health", 0).status == 200
    assert account_of(shop) == (0, 0, 0)
    server = ask(shop, token, "/flat")
    assert (server.status, server.problem["reason"]) == (402, "exhausted")
    assert run(serve(shop.middleware(never), http_scope("/gift"), Server(shop))).status == 401


def test_what_has_no_price_is_refused_or_free_as_the_plan_says(shop: Shop) -> None:
    token = add_bob(shop, "default", 50)
    server = ask(shop, token, "/new")
    assert (server.status, server.problem["reason"]) == (400, "unpriced")
    assert server.problem["detail"] == "The customer's plan has no price of new."
    customers.change_plan(shop.engine, BOB, PlanName("open"))
    assert use(shop, token, "/new", 0).status == 200
    large = json.dumps({"model": "large"}).encode()
    assert use(shop, token, "/chat", 1_000, large).status == 200
    assert account_of(shop) == (50, 0, 0)
    small = json.dumps({"model": "small"}).encode()
    assert ask(shop, token, "/chat", body=small).status == 402
    customers.unsubscribe(shop.engine, BOB)
    server = ask(shop, token, "/new")
    assert (server.status, server.problem["detail"]) == (
        400,
        "The customer's plan has no prices.",
    )
    customers.subscribe(shop.engine, BOB, PlanName("removed"), "UTC")
    assert ask(shop, token, "/new").problem["reason"] == "unpriced"


def test_quotas_come_before_the_wallet(shop: Shop) -> None:
    token = add_bob(shop, "basic")
    assert use(shop, token, "/chat", 90).status == 200
    # 60 tokens and 1000 micros are left: together more than the 100 tokens of a hold.
    assert use(shop, token, "/chat", 75).status == 200
    assert account_of(shop) == (0, 0, 0)
    assert ask(shop, token, "/chat").problem["reason"] == "exhausted"
    grants.grant(shop.engine, BOB, 5_000, "test", "1")
    assert use(shop, token, "/chat", 100).status == 200
    assert account_of(shop)[0] == 5_000 - (100 * TOKEN - (1_000 - 15 * TOKEN))
    assert ask(shop, token, "/flat", script(*answer({}))).status == 200
    assert account_of(shop)[0] == 5_000 - 150 - FLAT


def test_credit_pays_for_those_who_have_it(shop: Shop) -> None:
    token = add_bob(shop, "postpaid", 10_000)
    assert ask(shop, token, "/chat").problem["reason"] == "exhausted"
    customers.set_terms(shop.engine, BOB, credit_limit=100 * TOKEN)
    assert use(shop, token, "/chat", 40).status == 200
    assert account_of(shop) == (10_000, 40 * TOKEN, 40 * TOKEN)
    assert ask(shop, token, "/chat").status == 402
    grants.pay(shop.engine, BOB, 40 * TOKEN, "bank", "1")
    assert use(shop, token, "/chat", 100).status == 200
    assert account_of(shop) == (10_000, 100 * TOKEN, 140 * TOKEN)


def test_the_default_plan_s_overrun_is_the_wallet_s_without_a_credit_limit(shop: Shop) -> None:
    token = add_bob(shop, "default", 1_500)
    assert use(shop, token, "/chat", 200).status == 200
    assert account_of(shop) == (-500, 0, 2_000)
    assert ask(shop, token, "/gift").problem["reason"] == "blocked"


def test_a_capped_rule_never_charges_above_its_hold(shop: Shop) -> None:
    assert use(shop, shop.token, "/capped", 250).status == 200
    assert shop.ended().charged == 100 * TOKEN
    [entry] = [e for e in shop.entries() if e.kind is EntryKind.SETTLEMENT]
    assert entry.call is not None
    assert (entry.call.overrun, entry.call.counts) == (0, {"tokens": 250})


def test_tiers_count_across_calls(shop: Shop) -> None:
    for tokens in (30, 30, 30):
        assert use(shop, shop.token, "/tiers", tokens).status == 200
    assert [call.charged for call in shop.settled(3)] == [600, 400 + 100, 300]
    holds = [-e.amount for e in shop.entries() if e.kind is EntryKind.HOLD]
    assert holds == [1_500, 1_200, 1_000]
    assert shop.balance == BALANCE - 1_400


def test_entries_of_a_quota_say_what_was_covered(shop: Shop) -> None:
    token = add_bob(shop, "basic")
    use(shop, token, "/chat", 90)
    [line] = ledger.ledger(shop.engine, BOB, 10)
    assert (line.entry.kind, line.entry.fund, line.entry.amount) == (
        EntryKind.SETTLEMENT,
        Fund.WALLET,
        0,
    )
    assert line.entry.call is not None
    assert (line.entry.call.quota, line.entry.call.counts) == (90, {"tokens": 90})
