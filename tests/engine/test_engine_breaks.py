"""What broke once: money was lost, a node could not start, or a call could not end."""

from __future__ import annotations

from datetime import timedelta
from fractions import Fraction
from pathlib import Path

import nodes
import pytest
from msgspec.structs import replace
from nodes import ALICE, MICRO, PLAN, micros, terms, units

from finomw import limits
from finomw.billing import Billing
from finomw.config.load import parse
from finomw.engine import charge, customers, grants
from finomw.engine.engine import Engine, close_engine, open_engine
from finomw.engine.sweep import expire_grants
from finomw.engine.verify import verify
from finomw.errors import InvalidValue
from finomw.money.pricing import PriceList
from finomw.money.quotas import Quota
from finomw.money.rates import Tiers
from finomw.testing.clock import ManualClock
from finomw.testing.plans import DAY
from finomw.types import Micros

HOUR = timedelta(hours=1)
LASTS = 50
FREE = """
plans: {default: {unpriced: free, prices: {job: {pages: {usd: "0.000001"}}}}}
routes: [{match: POST /jobs, name: job, meter: {pages: .p}, hold: {pages: 9}}]
"""


# What Python code hands in.


@pytest.fixture
def billing(path: Path) -> Billing:
    shared = open_engine(path)
    customers.add_customer(shared, ALICE, PLAN)
    grants.grant(shared, ALICE, 1_000, "test", "first")
    text = f"data: {path}\n{FREE}"
    billing = Billing(parse(text, Path("/")), owns=lambda who, what: True)
    close_engine(shared)
    return billing


@pytest.mark.parametrize(
    ("field", "odd"),
    [
        ("customer", ""),
        ("customer", "\ud800"),
        ("customer", 5),
        ("route", None),
        ("route", "x" * 1_000),
        ("choice", 5),
        ("choice", "\ud800"),
        ("resource", None),
        ("resource", "x\n"),
        ("on_expiry", "settle"),
        ("on_expiry", 2),
        ("ceiling", {5: 5}),
        ("ceiling", {"\ud800": 5}),
    ],
)
def test_a_hold_of_what_no_record_can_carry_is_refused(
    billing: Billing, path: Path, field: str, odd: object
) -> None:
    given = {"customer": "alice", "route": "other", "ceiling": {"pages": 5}, field: odd}
    with pytest.raises(InvalidValue, match=rf"^{field if field != 'ceiling' else 'meter'}: "):
        billing.hold(expires_in=HOUR, **given)  # type: ignore[arg-type]
    _rebuilds(billing, path)


def test_an_ending_of_what_no_record_can_carry_is_refused(billing: Billing, path: Path) -> None:
    held = billing.hold("alice", "other", {"pages": 5}, HOUR).hold
    for counts in ({None: 5}, {"x" * 40_000: 1}):
        with pytest.raises(InvalidValue, match=r"^meter: "):
            billing.settle(held, counts)  # type: ignore[arg-type]
    with pytest.raises(InvalidValue, match="one call has at most 16, found 17"):
        billing.settle(held, {f"m{number}": 1 for number in range(17)})
    for note in (None, "x" * 40_000, "\udc00"):
        with pytest.raises(InvalidValue, match=r"^note: "):
            billing.release(held, note)  # type: ignore[arg-type]
    billing.release(held, "not needed")
    _rebuilds(billing, path)


def _rebuilds(billing: Billing, path: Path) -> None:
    """Close, and open again with a state made anew from the journal: it can be read."""
    billing.close()
    (path / "control").unlink()
    engine = nodes.open_node(path)
    assert verify(engine).faults == ()
    engine.close()


# Usage beyond what a row can count.

COUNTED = PriceList.of({"n": Tiers("volume", (10,), (Fraction(10), Fraction(0)))}, "up")


def test_no_usage_is_too_large_to_be_counted(engine: Engine) -> None:
    _use(engine, limits.MICROS_MAX - 5)
    assert nodes.plan_call(engine, COUNTED, {"n": limits.COUNT_MAX}) == 0
    assert nodes.plan_call(engine, COUNTED, {"n": 3}) == 0
    with engine.store.read() as txn:
        usage = engine.store.quotas.usage(txn, ALICE)
    assert usage is not None
    assert usage.used == {"n": limits.MICROS_MAX}


def test_open_holds_may_not_use_more_than_can_be_counted(engine: Engine) -> None:
    _use(engine, 0, held=limits.MICROS_MAX - limits.COUNT_MAX)
    assert isinstance(nodes.plan_hold(engine, COUNTED, {"n": limits.COUNT_MAX}), charge.Held)
    with pytest.raises(InvalidValue, match=r"^open holds: "):
        nodes.plan_hold(engine, COUNTED, {"n": limits.COUNT_MAX})


def _use(engine: Engine, used: int, held: int = 0) -> None:
    """Make it so that much was used already, without the thousands of calls that takes."""
    assert nodes.plan_call(engine, COUNTED, {"n": 1}) == 10
    with engine.store.write() as txn:
        usage = engine.store.quotas.usage(txn, ALICE)
        assert usage is not None
        counted = replace(usage, used={"n": used}, held={"n": held})
        engine.store.quotas.put_usage(txn, ALICE, counted)


# Grants that expire while a call is under way.


def test_whether_a_call_ends_before_or_after_the_date_changes_nothing(
    engine: Engine, path: Path
) -> None:
    _give(engine, 100)
    held = nodes.held(engine, 120)
    _advance(engine, LASTS)
    assert expire_grants(engine) == 0, "the call holds it"
    nodes.settle(engine, held.hold, 100)
    assert expire_grants(engine) == 0, "the call has used it up"
    assert customers.get_account(engine, ALICE).balance == 1_000
    nodes.rebuilt(engine, path).close()


def test_a_top_up_is_not_taken_for_what_a_call_holds_of_an_expired_grant(engine: Engine) -> None:
    nodes.settle(engine, nodes.held(engine, 1_000).hold, 1_000)
    _give(engine, 100)
    held = nodes.held(engine, 100)
    _advance(engine, LASTS)
    grants.grant(engine, ALICE, 70, "test", "top-up")
    assert expire_grants(engine) == 0
    assert isinstance(nodes.hold(engine, 0), charge.Held)
    nodes.settle(engine, held.hold, 60)
    assert expire_grants(engine) == 1
    assert customers.get_account(engine, ALICE).balance == 70


def test_what_a_call_does_not_hold_of_a_grant_expires_at_its_date(engine: Engine) -> None:
    _give(engine, 100)
    held = nodes.held(engine, 30)
    _advance(engine, LASTS)
    assert expire_grants(engine) == 1
    assert expire_grants(engine) == 0
    assert customers.get_account(engine, ALICE).balance == 1_000
    charge.release(engine, held.hold)
    assert expire_grants(engine) == 1
    account = customers.get_account(engine, ALICE)
    assert (account.balance, account.lots) == (1_000, 0)


def _give(engine: Engine, amount: Micros) -> None:
    expires = engine.clock.now() + LASTS
    grants.grant(engine, ALICE, amount, "test", "bonus", expires=expires)


def _advance(engine: Engine, microseconds: int) -> None:
    assert isinstance(engine.clock, ManualClock)
    engine.clock.advance(microseconds)


# Quotas that became of another kind.


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (units("free", 900, "n", roll=True), micros("free", 10, roll=True)),
        (micros("free", 900, roll=True), units("free", 10, "n", roll=True)),
    ],
)
def test_money_does_not_roll_over_into_units_nor_units_into_money(
    engine: Engine, before: Quota, after: Quota
) -> None:
    assert nodes.plan_call(engine, MICRO, {"n": 1}, terms(before)) == 0
    _advance(engine, 31 * DAY)
    assert nodes.plan_call(engine, MICRO, {"n": 12}, terms(after)) == 2
