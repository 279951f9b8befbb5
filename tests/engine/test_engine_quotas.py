"""Quotas and periods: what a plan gives first, how much is left of it, and when it is new again."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import nodes
import pytest
from nodes import ALICE, MICRO, PLAN, entries_of, micros, short, terms, units
from processes import Child, Pipe

from finomw.engine import charge, customers, grants, records
from finomw.engine.engine import Engine
from finomw.engine.verify import verify
from finomw.errors import Conflict
from finomw.journal.format import START
from finomw.journal.reader import Reader
from finomw.money.periods import Per
from finomw.money.terms import Terms
from finomw.store.quotas import QuotaRow
from finomw.testing.clock import ManualClock
from finomw.types import CustomerId, Fund, PlanName, Refusal

BOB = CustomerId("bob")
SECOND = 10**6
HOUR = 3_600 * SECOND
DAY = 24 * HOUR


def at(text: str) -> int:
    """Return a moment of UTC in microseconds."""
    return int(datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp()) * SECOND


def move_to(engine: Engine, moment: str) -> None:
    assert isinstance(engine.clock, ManualClock)
    engine.clock.advance(at(moment) - engine.clock.now())


def row(engine: Engine, name: str, customer: CustomerId = ALICE) -> QuotaRow:
    with engine.store.read() as txn:
        found = engine.store.quotas.get(txn, customer, name)
    assert found is not None
    return found


def used(engine: Engine, name: str) -> tuple[int, int, int]:
    """Return what a quota gives, what is used of it, and what calls hold."""
    found = row(engine, name)
    return found.units, found.used, found.held


def period(engine: Engine, name: str) -> tuple[int, int | None]:
    found = row(engine, name)
    return found.start, found.end


def call(engine: Engine, count: int, plan: Terms) -> int:
    """Use ``count`` at a micro each; return the micros charged."""
    return nodes.plan_call(engine, MICRO, {"n": count}, plan)


def period_ends(engine: Engine) -> int:
    """Return how many periods of a quota began, by the journal."""
    bodies = [record.body for record in Reader(engine.segments, START)]
    return sum(isinstance(records.decode(body)[0], records.PeriodEnd) for body in bodies)


def test_a_quota_of_several_meters_covers_what_it_can_and_the_rest_is_priced(
    engine: Engine,
) -> None:
    plan = terms(units("free", 30, "b", "n"))
    prices = nodes.price_list(n=10, b=100, c=1_000)
    done = nodes.plan_hold(engine, prices, {"n": 25, "b": 10}, plan)
    assert isinstance(done, charge.Held)
    assert done.amount == 50
    assert used(engine, "free") == (30, 0, 30)
    assert nodes.plan_settle(engine, done, prices, {"n": 12, "b": 8}) == 0
    assert used(engine, "free") == (30, 20, 0)
    assert short(entries_of(engine)) == [
        ("grant", "test", 1_000),
        ("hold", "call", -50),
        ("hold_release", "call", 50),
        ("settlement", "call", 0),
    ]
    assert nodes.plan_call(engine, prices, {"n": 11, "b": 4}, plan) == 50
    assert used(engine, "free") == (30, 30, 0)
    detail = entries_of(engine)[-1].call
    assert detail is not None
    assert (detail.quota, detail.counts, detail.overrun) == (10, {"n": 11, "b": 4}, 0)


def test_a_quota_of_money_pays_the_price_of_any_meter(engine: Engine) -> None:
    plan = terms(micros("gift", 120))
    prices = nodes.price_list(n=10, c=50)
    done = nodes.plan_hold(engine, prices, {"n": 5, "c": 2}, plan)
    assert isinstance(done, charge.Held)
    assert (done.amount, used(engine, "gift")) == (30, (120, 0, 120))
    assert nodes.plan_settle(engine, done, prices, {"n": 1, "c": 1}) == 0
    assert used(engine, "gift") == (120, 60, 0)
    assert nodes.plan_call(engine, prices, {"n": 10}, plan) == 40
    assert used(engine, "gift") == (120, 120, 0)


def test_a_settlement_uses_units_then_money_then_the_funds_and_returns_the_rest(
    engine: Engine,
) -> None:
    customers.set_terms(engine, ALICE, credit_limit=100)
    plan = terms(micros("gift", 50), units("free", 10, "n"), order=(Fund.WALLET, Fund.CREDIT))
    prices = nodes.price_list(n=10)
    done = nodes.plan_hold(engine, prices, {"n": 120}, plan)
    assert isinstance(done, charge.Held)
    assert done.amount == 1_050
    account = customers.get_account(engine, ALICE)
    assert (account.balance, account.held) == (0, 1_000)
    assert (account.credit_used, account.credit_held) == (50, 50)
    assert nodes.plan_settle(engine, done, prices, {"n": 116}) == 1_010
    assert (used(engine, "free"), used(engine, "gift")) == ((10, 10, 0), (50, 50, 0))
    account = customers.get_account(engine, ALICE)
    assert (account.balance, account.held) == (0, 0)
    assert (account.credit_used, account.credit_held) == (10, 0)
    assert [(e.fund, e.amount) for e in entries_of(engine)[-2:]] == [
        (Fund.WALLET, -1_000),
        (Fund.CREDIT, -10),
    ]


def test_counts_above_the_hold_are_paid_and_not_taken_from_what_others_may_use(
    engine: Engine,
) -> None:
    plan = terms(units("free", 10, "n"))
    done = nodes.plan_hold(engine, MICRO, {"n": 4}, plan)
    assert isinstance(done, charge.Held)
    assert nodes.plan_settle(engine, done, MICRO, {"n": 9}) == 5
    assert used(engine, "free") == (10, 4, 0)


def test_a_release_and_a_whole_settlement_treat_quotas_as_money(engine: Engine) -> None:
    plan = terms(units("free", 10, "n"))
    released = nodes.plan_hold(engine, MICRO, {"n": 6}, plan)
    whole = nodes.plan_hold(engine, MICRO, {"n": 6}, plan)
    assert isinstance(released, charge.Held)
    assert isinstance(whole, charge.Held)
    charge.release(engine, released.hold)
    assert used(engine, "free") == (10, 0, 4)
    done = charge.settle_whole(engine, whole.hold, {}, nodes.UsageStatus.MISSING)
    assert (done.charged, used(engine, "free")) == (2, (10, 4, 0))


def test_what_other_calls_hold_of_a_quota_is_told_as_held(engine: Engine) -> None:
    plan = terms(units("free", 10, "n"), order=())
    held = nodes.plan_hold(engine, MICRO, {"n": 8}, plan)
    assert nodes.plan_hold(engine, MICRO, {"n": 8}, plan) is Refusal.HELD
    assert nodes.plan_hold(engine, MICRO, {"n": 11}, plan) is Refusal.EXHAUSTED
    assert isinstance(held, charge.Held)
    charge.release(engine, held.hold)
    assert call(engine, 8, plan) == 0


def test_a_free_customer_needs_no_money_at_all(engine: Engine) -> None:
    customers.add_customer(engine, BOB, PLAN)
    plan = terms(units("free", 10, "n"))
    assert nodes.plan_call(engine, MICRO, {"n": 10}, plan, BOB) == 0
    assert nodes.plan_hold(engine, MICRO, {"n": 1}, plan, BOB) is Refusal.EXHAUSTED
    assert nodes.plan_call(engine, nodes.price_list(n=0), {"n": 5}, plan, BOB) == 0
    assert customers.get_account(engine, BOB).balance == 0


# Periods.


def test_the_first_call_after_a_boundary_sees_the_new_period_though_nothing_ran(
    engine: Engine,
) -> None:
    plan = terms(units("free", 10, "n"))
    assert call(engine, 12, plan) == 2
    assert period(engine, "free") == (at("2026-01-01"), at("2026-02-01"))
    move_to(engine, "2026-01-31T23:59:59")
    assert call(engine, 1, plan) == 1
    move_to(engine, "2026-02-01")
    assert call(engine, 12, plan) == 2
    assert period(engine, "free") == (at("2026-02-01"), at("2026-03-01"))
    move_to(engine, "2026-07-15")
    assert call(engine, 12, plan) == 2
    assert period(engine, "free") == (at("2026-07-01"), at("2026-08-01"))
    assert period_ends(engine) == 3


def test_what_is_given_once_is_given_once(engine: Engine) -> None:
    plan = terms(units("trial", 10, "n", per=Per.ONCE))
    assert call(engine, 7, plan) == 0
    move_to(engine, "2036-01-01")
    assert call(engine, 7, plan) == 4
    customers.subscribe(engine, ALICE, PLAN, "UTC")
    assert call(engine, 7, plan) == 7
    assert period(engine, "trial") == (at("2026-01-01"), None)


def test_months_follow_the_day_of_the_subscription_and_are_clipped(engine: Engine) -> None:
    plan = terms(units("free", 10, "n"))
    move_to(engine, "2027-01-31T12:00:00")
    customers.subscribe(engine, ALICE, PLAN, "Europe/Berlin")
    ends = []
    starts = []
    for moment in ("2027-02-10", "2027-03-01", "2027-04-01", "2028-02-28", "2028-03-01"):
        move_to(engine, moment)
        assert call(engine, 10, plan) == 0
        start, end = period(engine, "free")
        assert end is not None
        starts.append(start)
        ends.append(end)
    # Midnight in Berlin is 23:00 UTC in winter, 22:00 in summer.
    assert ends == [
        at("2027-02-27T23:00:00"),
        at("2027-03-30T22:00:00"),
        at("2027-04-29T22:00:00"),
        at("2028-02-28T23:00:00"),
        at("2028-03-30T22:00:00"),
    ]
    assert starts[0] == at("2027-01-31T12:00:00"), "the subscription's own moment"
    assert starts[1:3] == ends[:2]
    assert starts[4] == ends[3]


def test_what_is_left_rolls_over_also_through_periods_without_a_call(engine: Engine) -> None:
    plan = terms(units("free", 10, "n", roll=True), micros("gift", 100))
    assert call(engine, 4, plan) == 0
    move_to(engine, "2026-02-01")
    assert call(engine, 1, plan) == 0
    assert used(engine, "free") == (16, 1, 0)
    move_to(engine, "2026-05-20")
    assert call(engine, 1, plan) == 0
    assert used(engine, "free") == (10 + 10 + 10 + 15, 1, 0)
    plain = terms(units("free", 10, "n"))
    move_to(engine, "2026-06-01")
    assert call(engine, 1, plain) == 0
    assert used(engine, "free") == (10, 1, 0)


@pytest.mark.parametrize(
    ("per", "moment", "expected"),
    [
        (Per.HOUR, "2026-01-01T05:30:00", 60),
        (Per.DAY, "2026-01-03T12:00:00", 30),
        (Per.WEEK, "2026-01-20", 30),
        (Per.YEAR, "2028-06-01", 30),
    ],
)
def test_every_kind_of_period_rolls_over(
    engine: Engine, per: Per, moment: str, expected: int
) -> None:
    plan = terms(units("free", 10, "n", per=per, roll=True))
    assert call(engine, 0, plan) == 0
    move_to(engine, moment)
    assert call(engine, 1, plan) == 0
    assert used(engine, "free") == (expected, 1, 0)


def test_a_hold_over_the_end_of_a_period_takes_nothing_from_the_next(engine: Engine) -> None:
    plan = terms(units("free", 10, "n", roll=True), units("trial", 3, "n", per=Per.ONCE))
    over = nodes.plan_hold(engine, MICRO, {"n": 11}, plan)
    assert isinstance(over, charge.Held)
    assert (used(engine, "free"), used(engine, "trial")) == ((10, 0, 10), (3, 0, 1))
    move_to(engine, "2026-02-01")
    assert call(engine, 2, plan) == 0
    assert used(engine, "free") == (10, 2, 0), "what a call holds does not roll over"
    assert verify(engine).faults == ()
    assert nodes.plan_settle(engine, over, MICRO, {"n": 11}) == 0
    assert (used(engine, "free"), used(engine, "trial")) == ((10, 2, 0), (3, 1, 0))


def test_a_period_ends_once_whoever_finds_it_due(engine: Engine) -> None:
    plan = terms(units("free", 10, "n"))
    call(engine, 1, plan)
    start, end = period(engine, "free")
    assert end is not None
    late = records.PeriodEnd(end, ALICE, "free", start, end, end + DAY, ("n",), False, 10)
    engine.execute(late)
    before = nodes.dump(engine)
    for again in (
        late,
        records.PeriodEnd(end, ALICE, "free", end, end, end + DAY, ("n",), False, 10),
        records.PeriodEnd(end, ALICE, "free", None, end, end + DAY, ("n",), False, 10),
        records.PeriodEnd(end, ALICE, "other", start, end, end + DAY, ("n",), False, 10),
        records.PeriodEnd(end, ALICE, "", start, end, end + DAY, (), False, 0),
    ):
        with pytest.raises(Conflict, match="has ended already"):
            engine.execute(again)
    assert nodes.dump(engine) == before


RACE = terms(units("free", 20, "n"))


def race(pipe: Pipe, path: Path, moment: int) -> None:
    engine = nodes.open_node(path, clock=ManualClock(moment))
    assert engine.worker
    pipe.send("ready")
    pipe.recv()
    charged = [nodes.plan_call(engine, MICRO, {"n": 1}, RACE) for _ in range(10)]
    pipe.send(charged)
    engine.close()


def test_four_processes_that_meet_at_a_boundary_begin_one_period(
    path: Path, engine: Engine
) -> None:
    assert call(engine, 20, RACE) == 0
    children = [Child(race, path, at("2026-02-01")) for _ in range(4)]
    for child in children:
        child.receive()
    for child in children:
        child.send("go")
    charged = [micro for child in children for micro in child.receive()]
    for child in children:
        child.finish()
    assert sorted(charged) == [0] * 20 + [1] * 20
    assert used(engine, "free") == (20, 20, 0)
    assert period_ends(engine) == 2
    assert customers.get_account(engine, ALICE).balance == 980
    assert verify(engine).faults == ()


# Plans.


def test_a_new_subscription_begins_anew_and_a_change_goes_on(engine: Engine) -> None:
    plan, other = terms(units("free", 10, "n")), terms(units("free", 50, "n", per=Per.DAY))
    move_to(engine, "2026-01-10")
    assert call(engine, 10, plan) == 0
    customers.change_plan(engine, ALICE, PlanName("other"))
    assert customers.get_account(engine, ALICE).anchor == at("2026-01-01")
    assert call(engine, 3, other) == 3, "the month under way is the old plan's"
    move_to(engine, "2026-02-01")
    assert call(engine, 3, other) == 0
    assert (used(engine, "free"), period(engine, "free")) == (
        (50, 3, 0),
        (at("2026-02-01"), at("2026-02-02")),
    )
    move_to(engine, "2026-02-01T10:00:00")
    customers.subscribe(engine, ALICE, PLAN, "UTC")
    assert call(engine, 3, plan) == 0
    assert (used(engine, "free"), period(engine, "free")) == (
        (10, 3, 0),
        (at("2026-02-01T10:00:00"), at("2026-03-01")),
    )


def test_no_subscription_begins_while_calls_hold_a_quota(engine: Engine) -> None:
    plan = terms(units("free", 10, "n"))
    held = nodes.plan_hold(engine, MICRO, {"n": 1}, plan)
    assert isinstance(held, charge.Held)
    before = nodes.dump(engine)
    with pytest.raises(Conflict, match="calls of customer 'alice' hold some of the quota free"):
        customers.subscribe(engine, ALICE, PLAN, "UTC")
    assert nodes.dump(engine) == before
    charge.release(engine, held.hold)
    customers.subscribe(engine, ALICE, PLAN, "UTC")
    with engine.store.read() as txn:
        assert list(engine.store.quotas.of(txn, ALICE)) == []


def test_who_has_no_plan_changes_none(engine: Engine) -> None:
    customers.unsubscribe(engine, ALICE)
    assert customers.get_account(engine, ALICE).plan == ""
    with pytest.raises(Conflict, match="'alice' has no plan to change; subscribe first"):
        customers.change_plan(engine, ALICE, PLAN)
    with pytest.raises(Conflict, match="'alice' has no plan"):
        customers.unsubscribe(engine, ALICE)
    customers.subscribe(engine, ALICE, PLAN, "UTC")
    assert customers.get_account(engine, ALICE).plan == PLAN


def test_a_longer_period_is_never_taken_for_the_one_that_began_at_its_first_moment(
    engine: Engine,
) -> None:
    """A call may outlive an hour whose beginning is also that of the next plan's day."""
    hourly, daily = (
        terms(units("free", 9, "n", per=Per.HOUR)),
        terms(units("free", 9, "n", per=Per.DAY)),
    )
    over = nodes.plan_hold(engine, MICRO, {"n": 7}, hourly)
    assert isinstance(over, charge.Held)
    move_to(engine, "2026-01-01T02:00:00")
    customers.change_plan(engine, ALICE, PlanName("daily"))
    held = nodes.plan_hold(engine, MICRO, {"n": 5}, daily)
    assert isinstance(held, charge.Held)
    assert period(engine, "free") == (at("2026-01-01T01:00:00"), at("2026-01-02"))
    assert used(engine, "free") == (9, 0, 5)
    assert verify(engine).faults == ()
    assert nodes.plan_settle(engine, over, MICRO, {"n": 7}) == 0
    assert used(engine, "free") == (9, 0, 5)


def test_the_same_holds_for_a_new_subscription(engine: Engine) -> None:
    hourly, daily = (
        terms(units("free", 9, "n", per=Per.HOUR)),
        terms(units("free", 9, "n", per=Per.DAY)),
    )
    over = nodes.plan_hold(engine, MICRO, {"n": 7}, hourly)
    assert isinstance(over, charge.Held)
    move_to(engine, "2026-01-01T02:30:00")
    call(engine, 1, hourly)
    customers.subscribe(engine, ALICE, PlanName("daily"), "UTC")
    call(engine, 5, daily)
    assert verify(engine).faults == ()
    charge.release(engine, over.hold)
    assert used(engine, "free") == (9, 5, 0)


def test_quotas_survive_a_rebuild_without_configuration_or_clock(
    path: Path, engine: Engine
) -> None:
    plan = terms(units("free", 10, "n", roll=True), micros("gift", 5, per=Per.ONCE))
    for moment in ("2026-01-02", "2026-02-02", "2026-04-02"):
        move_to(engine, moment)
        call(engine, 6, plan)
    over = nodes.plan_hold(engine, MICRO, {"n": 30}, plan)
    assert isinstance(over, charge.Held)
    again = nodes.rebuilt(engine, path)
    assert verify(again).faults == ()
    assert nodes.plan_settle(again, over, MICRO, {"n": 30}) == 30 - 22 - 5
    again.close()


def test_grants_do_not_touch_quotas(engine: Engine) -> None:
    plan = terms(units("free", 10, "n"))
    call(engine, 4, plan)
    grants.grant(engine, ALICE, 5, "test", "2")
    assert used(engine, "free") == (10, 4, 0)
