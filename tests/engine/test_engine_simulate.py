"""What past usage would have cost: exact numbers on a known history."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import nodes
import pytest
from nodes import ALICE

from finomw.config.load import parse
from finomw.engine import charge, customers, grants
from finomw.engine.engine import Engine
from finomw.engine.simulate import Simulated, simulate
from finomw.metering.choosing import compile_plans
from finomw.money.plans import PricePlan
from finomw.testing.clock import ManualClock
from finomw.types import Counts, CustomerId, Fund, PlanName, RouteName, UsageStatus

BOB = CustomerId("bob")

PLANS = """
plans:
  other:
    prices: {PRICES}
    {MORE}
routes:
  - {match: POST /chat, name: chat, meter: {n: .n}, hold: {n: 9}}
  - {match: POST /more, name: more, meter: {n: .n, b: .b}, hold: {n: 9, b: 9}}
"""


def plan(prices: str, more: str = "") -> PricePlan:
    text = PLANS.replace("{PRICES}", prices).replace("{MORE}", more)
    return compile_plans(parse(text, Path("/")), [])[PlanName("other")].plan


def at(text: str) -> int:
    return int(datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp()) * 10**6


def call(
    engine: Engine,
    moment: str,
    counts: Counts,
    customer: CustomerId = ALICE,
    usage: UsageStatus = UsageStatus.KNOWN,
    **more: object,
) -> None:
    """Have a call of ten micros for each unit at a moment."""
    assert isinstance(engine.clock, ManualClock)
    engine.clock.advance(at(moment) - engine.clock.now())
    prices = nodes.price_list(n=10, b=10)
    held = nodes.plan_hold(engine, prices, counts, customer=customer, **more)
    assert isinstance(held, charge.Held)
    charge.settle(engine, held.hold, prices.price, counts, usage)


@pytest.fixture
def history(engine: Engine) -> Engine:
    """Two months of alice, and a call of bob."""
    customers.add_customer(engine, BOB, nodes.PLAN)
    grants.grant(engine, BOB, 1_000, "test", "first")
    call(engine, "2026-01-05", {"n": 6})
    call(engine, "2026-01-06", {"n": 7})
    call(engine, "2026-01-20", {"n": 1})
    call(engine, "2026-02-03", {"n": 8})
    call(engine, "2026-02-04", {"n": 2}, BOB)
    return engine


def run(engine: Engine, other: PricePlan, since: str = "2026-01-01") -> dict[str, tuple[int, ...]]:
    told: list[tuple[int, int]] = []
    done = simulate(engine, other, at(since), lambda *progress: told.append(progress))
    assert told == [(1, 2), (2, 2)]
    assert all(isinstance(each, Simulated) for each in done)
    return {each.customer: each[1:] for each in done}


def test_each_call_is_priced_again_and_rounded_for_itself(history: Engine) -> None:
    other = plan('{chat: {n: {usd: "0.0000015"}}}')
    charged = 9 + 11 + 2 + 12
    assert run(history, other) == {"alice": (4, 0, 220, charged), "bob": (1, 0, 20, 3)}


def test_only_calls_since_a_time_count(history: Engine) -> None:
    other = plan('{chat: {n: {usd: "0.000001"}}}')
    assert run(history, other, "2026-01-06") == {"alice": (3, 0, 160, 16), "bob": (1, 0, 20, 2)}
    assert run(history, other, "2026-02-04") == {"bob": (1, 0, 20, 2)}


def test_quotas_are_counted_by_period(history: Engine) -> None:
    chat = '{chat: {n: {usd: "0.000001"}}}'
    free = "quotas: {free: {meters: [n], units: 10, per: month%s}}"
    assert run(history, plan(chat, free % "")) == {
        "alice": (4, 0, 220, 0 + 3 + 1 + 0),
        "bob": (1, 0, 20, 0),
    }
    weekly = "quotas: {free: {meters: [n], units: 7, per: week, roll_over: true}}"
    # Weeks from 1 January: of the first 7, 13 are used in one week; the third begins with two
    # missed weeks' units; the call in February is two weeks later.
    assert run(history, plan(chat, weekly))["alice"] == (4, 0, 220, 6)
    money = 'quotas: {gift: {meters: [cost], usd: "0.000015", per: once}}'
    assert run(history, plan(chat, money))["alice"] == (4, 0, 220, 22 - 15)


def test_units_come_before_money_in_whichever_order_they_stand(history: Engine) -> None:
    both = (
        'quotas: {gift: {meters: [cost], usd: "0.000002", per: month}, '
        "free: {meters: [n], units: 9, per: month}}"
    )
    other = plan('{chat: {n: {usd: "0.000001"}}}', both)
    assert run(history, other)["alice"] == (4, 0, 220, 0 + 2 + 1 + 0)


def test_tiers_are_counted_by_period(history: Engine) -> None:
    tiers = '[{up_to: 10, usd: "0.000009"}, {usd: "0.000002"}]'
    graduated = 54 + (4 * 9 + 3 * 2) + 2 + 8 * 9
    assert run(history, plan(f"{{chat: {{n: {{tiered: {tiers}}}}}}}"))["alice"][3] == graduated
    volume = 54 + 7 * 2 + 2 + 72
    assert run(history, plan(f"{{chat: {{n: {{volume: {tiers}}}}}}}"))["alice"][3] == volume
    yearly = 54 + 42 + 2 + 16
    prices = f"{{chat: {{n: {{tiered: {tiers}}}}}}}"
    assert run(history, plan(prices, "period: year"))["alice"][3] == yearly


def test_prices_are_those_of_each_call_s_own_time(history: Engine) -> None:
    versions = (
        '{chat: [{n: {usd: "0.000001"}}, '
        '{valid_from: "2026-01-06T00:00:00Z", n: {usd: "0.000100"}}]}'
    )
    assert run(history, plan(versions))["alice"] == (4, 0, 220, 6 + 700 + 100 + 800)


def test_what_cannot_be_priced_keeps_its_charge_and_is_counted(history: Engine) -> None:
    more = RouteName("more")
    call(history, "2026-03-01", {"n": 1}, route=RouteName("gone"))
    call(history, "2026-03-02", {"n": 2, "b": 3}, route=more)
    call(history, "2026-03-03", {"n": 4}, usage=UsageStatus.INVALID)
    call(history, "2026-03-04", {"n": 5}, usage=UsageStatus.PARTIAL)
    call(history, "2026-03-05", {"n": 1, "b": 1})
    whole = nodes.held(history, 30)
    charge.settle_whole(history, whole.hold, {}, UsageStatus.MISSING)
    nodes.held(history, 5)
    charge.release(history, nodes.held(history, 5).hold)
    other = plan('{chat: {n: {usd: "0.000001"}}, more: {n: {usd: 0}, b: {usd: "0.000002"}}}')
    kept = 10 + 40 + 20 + 30
    assert run(history, other)["alice"] == (
        4 + 6,
        4,
        220 + 10 + 50 + 40 + 50 + 20 + 30,
        22 + 6 + 5 + kept,
    )


def test_a_call_paid_by_two_funds_is_one_call(engine: Engine) -> None:
    customers.add_customer(engine, BOB, nodes.PLAN)
    customers.set_terms(engine, ALICE, credit_limit=1_000)
    order = (Fund.WALLET, Fund.CREDIT)
    call(engine, "2026-01-05", {"n": 120}, terms=nodes.terms(order=order))
    call(engine, "2026-01-06", {"n": 5}, terms=nodes.terms(order=order))
    assert run(engine, plan('{chat: {n: {usd: "0.000001"}}}')) == {"alice": (2, 0, 1_250, 125)}


def test_a_choice_selects_its_list_again(engine: Engine) -> None:
    customers.add_customer(engine, BOB, nodes.PLAN)
    for choice in ("small", "large", ""):
        call(engine, "2026-01-05", {"n": 1}, choice=choice)
    other = plan('{chat: {by: .model, small: {n: {usd: "0.000002"}}, "*": {n: {usd: "0.000007"}}}}')
    assert run(engine, other)["alice"] == (3, 0, 30, 2 + 7 + 7)
    named = plan('{chat: {by: .model, small: {n: {usd: "0.000002"}}}}')
    assert run(engine, named)["alice"] == (3, 2, 30, 2 + 10 + 10)
