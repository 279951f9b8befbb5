"""Prices that depend on usage, through the engine: exact in total, and never above their hold."""

from __future__ import annotations

import itertools
import random
from fractions import Fraction
from pathlib import Path

import nodes
import pytest
from nodes import ALICE, terms

from finomw.engine import charge, customers, grants
from finomw.engine.engine import Engine
from finomw.engine.sweep import sweep
from finomw.engine.verify import verify
from finomw.money.funding import uncovered
from finomw.money.periods import Per
from finomw.money.pricing import PriceList
from finomw.money.rates import Tiers
from finomw.testing.clock import ManualClock
from finomw.types import Counts, Fund, HoldId, PlanName

DAY = 24 * 3_600 * 10**6


def tiers(bounds: tuple[int, ...], *rates: int, volume: bool = False) -> PriceList:
    kind = "volume" if volume else "tiered"
    return PriceList.of({"n": Tiers(kind, bounds, tuple(map(Fraction, rates)))}, "up")


def usage(engine: Engine) -> tuple[Counts, Counts]:
    """Return what was used, and what open holds may add."""
    with engine.store.read() as txn:
        row = engine.store.quotas.usage(txn, ALICE)
    assert row is not None
    return row.used, row.held


def held(engine: Engine, prices: PriceList, count: int) -> charge.Held:
    done = nodes.plan_hold(engine, prices, {"n": count})
    assert isinstance(done, charge.Held), done
    return done


def test_graduated_charges_of_calls_one_after_the_other_add_up_to_the_whole(
    engine: Engine,
) -> None:
    prices = tiers((10, 25), 9, 4, 1)
    counts = [3, 0, 6, 1, 12, 8, 5, 1, 20]
    charged = [nodes.plan_call(engine, prices, {"n": count}) for count in counts]
    assert charged == [27, 0, 54, 9, 48, 12 + 5, 5, 1, 20]
    total = sum(counts)
    assert total == 56
    assert sum(charged) == 10 * 9 + 15 * 4 + 31 * 1
    assert sum(charged) == prices.price({"n": total}, {})
    assert usage(engine) == ({"n": total}, {})


def test_volume_charges_each_call_at_the_tier_that_it_reaches(engine: Engine) -> None:
    prices = tiers((10, 25), 9, 4, 1, volume=True)
    charged = [nodes.plan_call(engine, prices, {"n": count}) for count in (10, 1, 14, 1)]
    assert charged == [90, 4, 56, 1]


def test_usage_moves_in_the_transactions_of_the_call(path: Path, engine: Engine) -> None:
    prices = tiers((10,), 9, 1)
    first, second = held(engine, prices, 8), held(engine, prices, 5)
    assert usage(engine) == ({}, {"n": 13})
    row = nodes.hold_row(engine, second.hold)
    assert (row.counted, row.used, row.others) == ({"n": 5}, {"n": 0}, {"n": 8})
    assert nodes.plan_settle(engine, second, prices, {"n": 4}) == 36
    assert usage(engine) == ({"n": 4}, {"n": 8})
    charge.release(engine, first.hold)
    assert usage(engine) == ({"n": 4}, {})
    whole = held(engine, prices, 3)
    charge.settle_whole(engine, whole.hold, {}, nodes.UsageStatus.MISSING)
    assert usage(engine) == ({"n": 7}, {})
    again = nodes.rebuilt(engine, path)
    assert usage(again) == ({"n": 7}, {})
    again.close()


def test_usage_begins_anew_with_its_period_and_with_a_subscription(engine: Engine) -> None:
    prices, daily = tiers((10,), 9, 1), terms(usage_per=Per.DAY)
    assert nodes.plan_call(engine, prices, {"n": 12}, daily) == 92
    assert nodes.plan_call(engine, prices, {"n": 12}, daily) == 12
    assert isinstance(engine.clock, ManualClock)
    engine.clock.advance(DAY)
    assert nodes.plan_call(engine, prices, {"n": 12}, daily) == 92
    customers.subscribe(engine, ALICE, PlanName("new"), "UTC")
    assert nodes.plan_call(engine, prices, {"n": 12}, daily) == 92
    customers.change_plan(engine, ALICE, PlanName("other"))
    assert nodes.plan_call(engine, prices, {"n": 12}, daily) == 12
    with engine.store.read() as txn:
        row = engine.store.quotas.usage(txn, ALICE)
    assert row is not None
    assert row.start == engine.clock.now(), "the subscription's own moment"


def test_what_a_quota_covers_does_not_count_for_tiers(engine: Engine) -> None:
    prices, plan = tiers((10,), 9, 1), terms(nodes.units("free", 8, "n"))
    assert nodes.plan_call(engine, prices, {"n": 12}, plan) == 36
    assert usage(engine) == ({"n": 4}, {})
    assert nodes.plan_call(engine, prices, {"n": 12}, plan) == 6 * 9 + 6


def test_a_hold_reckons_with_what_other_calls_may_use_before_it_ends(engine: Engine) -> None:
    """A price that rises: the second call may end first or last, whatever the first one uses."""
    prices = tiers((10,), 1, 50)
    first = held(engine, prices, 10)
    assert first.amount == 10
    second = held(engine, prices, 4)
    assert second.amount == 200
    assert nodes.plan_settle(engine, first, prices, {"n": 10}) == 10
    assert nodes.plan_settle(engine, second, prices, {"n": 4}) == 200


def test_a_later_call_that_ends_first_makes_an_earlier_one_no_dearer(engine: Engine) -> None:
    """The first hold could not reckon with the second: it pays by what it reckoned with."""
    prices = tiers((10,), 1, 50)
    first, second = held(engine, prices, 10), held(engine, prices, 10)
    assert (first.amount, second.amount) == (10, 500)
    assert nodes.plan_settle(engine, second, prices, {"n": 10}) == 10
    assert nodes.plan_settle(engine, first, prices, {"n": 10}) == 10
    row = nodes.entries_of(engine)[-1].call
    assert row is not None
    assert row.overrun == 0
    assert usage(engine) == ({"n": 20}, {})
    assert nodes.plan_call(engine, prices, {"n": 1}) == 50


def test_a_later_call_that_ends_first_may_make_an_earlier_one_cheaper(engine: Engine) -> None:
    prices = tiers((10,), 50, 1)
    first, second = held(engine, prices, 10), held(engine, prices, 10)
    assert (first.amount, second.amount) == (500, 500)
    assert nodes.plan_settle(engine, second, prices, {"n": 10}) == 500
    assert nodes.plan_settle(engine, first, prices, {"n": 10}) == 10


def test_a_new_period_makes_a_call_under_way_no_dearer(engine: Engine) -> None:
    prices, daily = tiers((10,), 50, 1), terms(usage_per=Per.DAY)
    assert nodes.plan_call(engine, prices, {"n": 10}, daily) == 500
    late = nodes.plan_hold(engine, prices, {"n": 10}, daily)
    assert isinstance(late, charge.Held)
    assert late.amount == 10
    assert isinstance(engine.clock, ManualClock)
    engine.clock.advance(DAY)
    assert nodes.plan_call(engine, prices, {"n": 1}, daily) == 50
    assert nodes.plan_settle(engine, late, prices, {"n": 10}) == 10
    assert usage(engine) == ({"n": 11}, {})


def test_a_flat_call_settles_after_a_crash_at_the_price_of_its_hold_s_time(
    path: Path, engine: Engine
) -> None:
    prices = tiers((10,), 1, 50)
    nodes.plan_hold(engine, prices, {"n": 10})
    flat = nodes.plan_hold(engine, prices, {"n": 4}, settle=prices.price)
    assert isinstance(flat, charge.Held)
    assert (flat.amount, nodes.hold_row(engine, flat.hold).settle_price) == (200, 4)
    nodes.drop(engine)
    again = nodes.open_node(path)
    assert sweep(again) == 2
    assert nodes.hold_row(again, flat.hold).charged == 4
    assert customers.get_account(again, ALICE).balance == 996
    assert usage(again) == ({"n": 4}, {})
    assert verify(again).faults == ()
    again.close()


@pytest.mark.parametrize("order", list(itertools.permutations(range(3))))
@pytest.mark.parametrize("volume", [False, True])
def test_no_order_of_endings_exceeds_a_hold(
    engine: Engine, order: tuple[int, ...], volume: bool
) -> None:
    grants.grant(engine, ALICE, 10**6, "test", "much")
    for rates in ((1, 50, 3), (50, 1, 30)):
        prices = tiers((5, 12), *rates, volume=volume)
        counts = (6, 4, 9)
        holds = [held(engine, prices, count) for count in counts]
        for which in order:
            charged = nodes.plan_settle(engine, holds[which], prices, {"n": counts[which]})
            assert charged <= holds[which].amount


@pytest.mark.parametrize("seed", range(4))
def test_random_calls_never_cost_more_than_they_hold_nor_more_than_their_price(
    engine: Engine, seed: int
) -> None:
    """Many calls under way at once, ending in any order: each within its hold, none overcharged."""
    chance = random.Random(seed)
    grants.grant(engine, ALICE, 10**9, "test", "much")
    bounds = tuple(sorted(chance.sample(range(1, 120), 3)))
    rates = [chance.randint(0, 40) for _ in range(4)]
    prices = PriceList.of(
        {
            "n": Tiers("tiered", bounds, tuple(Fraction(rate, 3) for rate in rates)),
            "v": Tiers("volume", bounds[:2], tuple(Fraction(rate, 7) for rate in rates[:3])),
        },
        "up",
    )
    plan = terms(nodes.units("free", 20, "v", "n"), nodes.micros("gift", 100))
    opened: dict[HoldId, tuple[charge.Held, Counts]] = {}
    for _ in range(150):
        if opened and chance.random() < 0.45:
            held, ceiling = opened.pop(chance.choice(list(opened)))
            row = nodes.hold_row(engine, held.hold)
            used = {
                m: chance.choice([most, chance.randint(0, most)]) for m, most in ceiling.items()
            }
            before = usage(engine)[0]
            charged = nodes.plan_settle(engine, held, prices, used)
            assert charged <= held.amount
            price = prices.price(uncovered(row.parts, used), before)
            assert charged <= price
            detail = nodes.entries_of(engine)[-1].call
            assert detail is not None
            assert detail.overrun == 0
        else:
            ceiling = {"n": chance.randint(0, 25), "v": chance.randint(0, 12)}
            made = nodes.plan_hold(engine, prices, ceiling, plan)
            assert isinstance(made, charge.Held)
            opened[made.hold] = (made, ceiling)
    assert verify(engine).faults == ()


def test_credit_follows_what_a_hold_took_from_it(engine: Engine) -> None:
    """Tiers, quota and both funds in one settlement, to the micro."""
    customers.set_terms(engine, ALICE, credit_limit=2_000)
    prices = tiers((10,), 100, 10)
    plan = terms(
        nodes.units("free", 2, "n"),
        nodes.micros("gift", 50),
        order=(Fund.CREDIT, Fund.WALLET),
    )
    assert nodes.plan_call(engine, prices, {"n": 30}, plan) == 10 * 100 + 18 * 10 - 50
    account = customers.get_account(engine, ALICE)
    assert (account.balance, account.credit_used, account.spent_total) == (1_000, 1_130, 1_130)
