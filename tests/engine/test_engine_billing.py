"""Explicit holds: for work that outlives a request, in whichever process it ends."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path

import msgspec
import nodes
import pytest
from nodes import ALICE, PLAN
from processes import Child, Pipe

from finomw import limits
from finomw.billing import Billing, Reserved
from finomw.config.load import parse
from finomw.config.model import Config
from finomw.engine import charge, customers, grants
from finomw.engine.engine import Engine, close_engine, open_engine
from finomw.engine.extend import Extension, extend
from finomw.engine.sweep import sweep
from finomw.engine.verify import verify
from finomw.errors import ConfigError, Conflict, HoldRefused, InvalidValue, NotFound, Unpriced
from finomw.store.holds import NOBODY, HoldRow
from finomw.testing.clock import ManualClock
from finomw.types import Counts, CustomerId, HoldId, HoldState, OnCrash, PlanName

TEXT = """
buffer_usd: "0.000050"
plans:
  default:
    quotas:
      free: {meters: [pages], units: 4, per: month}
    prices:
      job:
        by: .size
        small: {pages: {usd: "0.000010"}, seconds: {usd: "0.000001"}}
        large: {pages: {usd: "0.000100"}, seconds: {usd: "0.000001"}}
      render: {pages: {tiered: [{up_to: 10, usd: "0.000002"}, {usd: "0.000020"}]}}
  later:
    prices:
      job: {pages: {usd: "0.000001"}, seconds: {usd: 0}}
routes:
  - {match: POST /jobs, name: job, meter: {pages: .p, seconds: .s}, hold: {pages: 9, seconds: 9}}
  - {match: POST /render, name: render, meter: {pages: .p}, hold: {pages: 9}}
"""
HOUR = timedelta(hours=1)
HOUR_MICROSECONDS = 3_600 * 10**6


def config(path: Path, text: str = TEXT) -> Config:
    return msgspec.structs.replace(parse(text, Path("/")), data=path)


class Office:
    """A billing office, its engine, and the clock that both go by."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.clock = ManualClock()
        self.engine = open_engine(path, clock=self.clock)
        customers.add_customer(self.engine, ALICE, PLAN)
        grants.grant(self.engine, ALICE, 1_000, "test", "first")
        self.billing = Billing(config(path), owns=lambda who, what: what == f"{who}'s")

    def close(self) -> None:
        self.billing.close()
        close_engine(self.engine)

    def hold(self, ceiling: Counts, **more: object) -> Reserved:
        options: dict[str, object] = {"choice": "small", **more}
        return self.billing.hold("alice", "job", ceiling, HOUR, **options)  # type: ignore[arg-type]

    def row(self, reserved: Reserved) -> HoldRow:
        return nodes.hold_row(self.engine, reserved.hold)

    def money(self) -> tuple[int, int]:
        account = customers.get_account(self.engine, ALICE)
        return account.balance, account.held


@pytest.fixture
def office(path: Path) -> Iterator[Office]:
    office = Office(path)
    yield office
    assert verify(office.engine).faults == ()
    office.close()


def test_a_job_is_held_and_settled_at_what_it_used(office: Office) -> None:
    made = office.hold({"pages": 10, "seconds": 100})
    assert made == Reserved(made.hold, 6 * 10 + 100, office.clock.now() + HOUR_MICROSECONDS)
    assert office.money() == (840, 160)
    row = office.row(made)
    assert (row.customer, row.route, row.choice, row.plan) == (ALICE, "job", "small", PLAN)
    assert (row.resource, row.state, row.ended) == ("", HoldState.OPEN, None)
    assert [part.amount for part in row.parts.quotas] == [4]
    assert office.engine.durable() == office.engine.tail()
    assert office.billing.settle(made.hold, {"pages": 6, "seconds": 30}) == 50
    assert office.engine.durable() == office.engine.tail()
    assert office.money() == (950, 0)
    row = office.row(made)
    assert (row.state, row.charged, row.ended) == (HoldState.SETTLED, 50, office.clock.now())


def test_settling_again_with_the_same_counts_is_the_earlier_result(office: Office) -> None:
    made = office.hold({"pages": 10, "seconds": 100})
    used = {"pages": 6, "seconds": 30}
    assert office.billing.settle(made.hold, used) == 50
    before = nodes.dump(office.engine)
    assert office.billing.settle(made.hold, used) == 50
    with pytest.raises(Conflict, match=r"was settled with counts {'pages': 6, 'seconds': 30}"):
        office.billing.settle(made.hold, {"pages": 6, "seconds": 31})
    with pytest.raises(Conflict, match="was settled"):
        office.billing.release(made.hold)
    with pytest.raises(NotFound, match="has ended"):
        office.billing.extend(made.hold, HOUR)
    assert nodes.dump(office.engine) == before


def test_releasing_again_changes_nothing_and_a_released_hold_is_not_settled(
    office: Office,
) -> None:
    made = office.hold({"pages": 10, "seconds": 100})
    office.billing.release(made.hold, "cancelled")
    assert office.money() == (1_000, 0)
    assert nodes.entries_of(office.engine)[-1].note == "cancelled"
    before = nodes.dump(office.engine)
    office.billing.release(made.hold)
    with pytest.raises(Conflict, match="was released"):
        office.billing.settle(made.hold, {"pages": 1})
    assert nodes.dump(office.engine) == before


def test_a_price_above_the_hold_is_charged_whole(office: Office) -> None:
    made = office.hold({"pages": 10, "seconds": 0})
    assert office.billing.settle(made.hold, {"pages": 24, "seconds": 900}) == 1_100
    assert office.money() == (-100, 0)
    account = customers.get_account(office.engine, ALICE)
    assert account.blocked_at is not None
    with pytest.raises(HoldRefused, match="'alice' cannot hold this: blocked") as refused:
        office.hold({"pages": 0})
    assert refused.value.reason == "blocked"


def test_why_a_hold_is_not_made_is_a_word(office: Office) -> None:
    opened = office.hold({"pages": 54, "seconds": 500})
    assert office.money() == (0, 1_000)
    engine = office.engine
    refused: dict[str, Callable[[], object]] = {
        "held": lambda: office.hold({"pages": 5}),
        "exhausted": lambda: office.hold({"pages": 500}),
        "unpriced": lambda: office.hold({"pages": 1}, choice="huge"),
        "not_owner": lambda: office.hold({"pages": 1}, resource="bob's"),
    }
    for reason, act in refused.items():
        before = nodes.dump(engine)
        with pytest.raises(HoldRefused) as error:
            act()
        assert error.value.reason == reason
        assert nodes.dump(engine) == before
    with pytest.raises(HoldRefused, match='no price for the meter "words"') as unpriced:
        office.hold({"words": 1})
    assert unpriced.value.reason == "unpriced"
    with pytest.raises(HoldRefused, match="has no price of chat"):
        office.billing.hold("alice", "chat", {"pages": 1}, HOUR)
    with pytest.raises(NotFound, match="'nobody' does not exist"):
        office.billing.hold("nobody", "job", {"pages": 1}, HOUR)
    customers.suspend(engine, ALICE, "late")
    with pytest.raises(HoldRefused) as error:
        office.hold({"pages": 0})
    assert error.value.reason == "suspended"
    customers.resume(engine, ALICE, "paid")
    customers.unsubscribe(engine, ALICE)
    with pytest.raises(HoldRefused) as error:
        office.hold({"pages": 0})
    assert error.value.reason == "unpriced"
    assert office.billing.settle(opened.hold, {"pages": 0}) == 0


def test_what_a_hold_names_must_belong_to_its_payer(office: Office, path: Path) -> None:
    made = office.hold({"pages": 1}, resource="alice's")
    assert office.row(made).resource == "alice's"
    with Billing(config(path)) as other, pytest.raises(HoldRefused, match="does not own"):
        other.hold("alice", "job", {"pages": 1}, HOUR, choice="small", resource="alice's")


@pytest.mark.parametrize("count", [-1, 1.0, 1.5, "1", True, None, limits.COUNT_MAX + 1])
def test_what_is_no_count_is_refused_by_its_meter(office: Office, count: int) -> None:
    made = office.hold({"pages": 1})
    before = nodes.dump(office.engine)
    for act in (
        lambda: office.hold({"pages": count}),
        lambda: office.billing.settle(made.hold, {"pages": count}),
        lambda: office.billing.extend(made.hold, HOUR, {"pages": count}),
    ):
        with pytest.raises(InvalidValue, match=r"^pages: .* is not a count"):
            act()
    assert nodes.dump(office.engine) == before


@pytest.mark.parametrize("lasts", [timedelta(0), -HOUR, timedelta(days=365 * 9_000), timedelta.max])
def test_a_hold_lasts_a_time_that_can_be_written(office: Office, lasts: timedelta) -> None:
    made = office.hold({"pages": 1})
    before = nodes.dump(office.engine)
    with pytest.raises(InvalidValue, match=r"^expires_in: "):
        office.billing.hold("alice", "job", {"pages": 1}, lasts, choice="small")
    with pytest.raises(InvalidValue, match=r"^expires_in: "):
        office.billing.extend(made.hold, lasts)
    assert nodes.dump(office.engine) == before


def test_a_price_beyond_any_amount_is_refused(office: Office) -> None:
    with pytest.raises(InvalidValue, match="above the largest amount"):
        office.hold({"pages": limits.COUNT_MAX}, choice="large")


def test_only_explicit_holds_are_ended_here(office: Office) -> None:
    requests = nodes.held(office.engine, 5)
    for hold in (requests.hold, HoldId(requests.hold.split("-")[0] + "-0-999")):
        for act in (
            lambda hold=hold: office.billing.settle(hold, {"pages": 1}),
            lambda hold=hold: office.billing.release(hold),
            lambda hold=hold: office.billing.extend(hold, HOUR),
        ):
            with pytest.raises(NotFound, match="is not an explicit one"):
                act()
    with pytest.raises(InvalidValue, match="not one of this node"):
        office.billing.settle(HoldId("other-0-1"), {"pages": 1})
    extension = Extension(1, lambda *_: 0, None, 0)
    with pytest.raises(InvalidValue, match="is a request's: it has no expiry to extend"):
        extend(office.engine, requests.hold, extension)
    charge.release(office.engine, requests.hold)


# Expiry.


def test_a_sweep_ends_a_hold_only_after_its_expiry(office: Office) -> None:
    released = office.hold({"pages": 5, "seconds": 90})
    settled = office.hold({"pages": 5, "seconds": 90}, on_expiry=OnCrash.SETTLE)
    extended = office.hold({"pages": 1})
    office.clock.advance(HOUR_MICROSECONDS - 1)
    assert sweep(office.engine) == 0
    moved = office.billing.extend(extended.hold, HOUR)
    assert (
        moved
        == office.clock.now() + HOUR_MICROSECONDS
        == extended.expires + moved - (extended.expires)
    )
    office.clock.advance(1)
    assert sweep(office.engine) == 2
    rows = [office.row(made) for made in (released, settled, extended)]
    assert [(row.state.name, row.charged) for row in rows] == [
        ("RELEASED", 0),
        ("SETTLED", settled.amount),
        ("OPEN", None),
    ]
    assert nodes.entries_of(office.engine)[-1].note == "the hold expired"
    with pytest.raises(Conflict, match=r"was settled with counts {}"):
        office.billing.settle(settled.hold, {"pages": 1})
    office.clock.advance(HOUR_MICROSECONDS)
    assert sweep(office.engine) == 1
    assert office.money() == (1_000 - settled.amount, 0)


def test_a_hold_that_was_extended_in_time_is_not_swept(
    office: Office, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = office.hold({"pages": 1})
    holds = office.engine.store.holds
    with office.engine.store.read() as txn:
        stale = holds.of(txn, NOBODY)
    office.billing.extend(made.hold, 3 * HOUR)
    office.clock.advance(2 * HOUR_MICROSECONDS)
    monkeypatch.setattr(holds, "of", lambda txn, worker: stale if worker == 0 else [])
    assert sweep(office.engine) == 0
    assert office.row(made).state is HoldState.OPEN


def test_an_expiry_is_never_moved_back(office: Office) -> None:
    made = office.hold({"pages": 1})
    assert office.billing.extend(made.hold, timedelta(seconds=1)) == made.expires
    assert office.row(made).steps == 2


def test_an_expired_hold_that_nobody_swept_is_still_open(office: Office) -> None:
    made = office.hold({"pages": 5})
    office.clock.advance(2 * HOUR_MICROSECONDS)
    assert office.billing.settle(made.hold, {"pages": 5, "seconds": 0}) == 10


# Extension.


def test_more_is_set_aside_for_work_under_way_down_to_the_buffer(office: Office) -> None:
    made = office.hold({"pages": 54, "seconds": 500})
    assert office.money() == (0, 1_000)
    with pytest.raises(HoldRefused):
        office.hold({"seconds": 1})
    assert office.billing.extend(made.hold, HOUR, {"pages": 54, "seconds": 549}) == made.expires
    assert office.money() == (-49, 1_049)
    before = nodes.dump(office.engine)
    with pytest.raises(HoldRefused, match="cannot be extended: exhausted") as refused:
        office.billing.extend(made.hold, 2 * HOUR, {"pages": 54, "seconds": 551})
    assert refused.value.reason == "exhausted"
    assert nodes.dump(office.engine) == before
    office.billing.extend(made.hold, HOUR, {"pages": 54, "seconds": 550})
    assert office.money() == (-50, 1_050)
    assert customers.get_account(office.engine, ALICE).blocked_at is None
    kinds = [entry.source_id for entry in nodes.entries_of(office.engine)[-2:]]
    assert kinds == [f"{made.hold}/2/hold/wallet", f"{made.hold}/3/hold/wallet"]
    assert office.billing.settle(made.hold, {"pages": 54, "seconds": 550}) == 1_050


def test_an_own_buffer_counts_for_extensions_too(office: Office) -> None:
    customers.set_terms(office.engine, ALICE, buffer=10)
    made = office.hold({"pages": 54, "seconds": 500})
    with pytest.raises(HoldRefused):
        office.billing.extend(made.hold, HOUR, {"pages": 54, "seconds": 511})
    office.billing.extend(made.hold, HOUR, {"pages": 54, "seconds": 510})
    assert office.money() == (-10, 1_010)


def test_a_suspended_or_blocked_customer_s_work_under_way_may_go_on(office: Office) -> None:
    made = office.hold({"pages": 54, "seconds": 460})
    customers.suspend(office.engine, ALICE, "late")
    office.billing.extend(made.hold, HOUR, {"pages": 54, "seconds": 470})
    assert office.money() == (30, 970)


def test_an_extension_for_less_takes_nothing_away(office: Office) -> None:
    made = office.hold({"pages": 10, "seconds": 100})
    office.billing.extend(made.hold, 2 * HOUR, {"pages": 1, "seconds": 1})
    assert office.money() == (840, 160)
    assert office.row(made).ceiling == {"pages": 1, "seconds": 1}
    with pytest.raises(HoldRefused, match='no price for the meter "words"'):
        office.billing.extend(made.hold, HOUR, {"words": 1})


def test_an_extension_reckons_with_the_usage_of_its_time(office: Office) -> None:
    customers.subscribe(office.engine, ALICE, PLAN, "UTC")
    billing = office.billing
    first = billing.hold("alice", "render", {"pages": 7}, HOUR)
    assert (first.amount, office.row(first).counted) == (6, {"pages": 3})
    second = billing.hold("alice", "render", {"pages": 5}, HOUR)
    assert (second.amount, office.row(second).others) == (10, {"pages": 3})
    billing.extend(first.hold, HOUR, {"pages": 10})
    row = office.row(first)
    assert (row.counted, row.others, row.amount) == ({"pages": 6}, {"pages": 5}, 10 + 20)
    assert billing.settle(second.hold, {"pages": 5}) == 10
    assert billing.settle(first.hold, {"pages": 10}) == 5 * 2 + 20


def test_a_meter_that_was_not_held_for_is_counted_all_the_same(office: Office) -> None:
    billing = office.billing
    for expected in (16, 20 + 180):
        made = billing.hold("alice", "render", {}, HOUR)
        charged = billing.settle(made.hold, {"pages": 8 if expected == 16 else 11})
        assert charged == (16 if expected == 16 else 2 * 2 + 9 * 20)


# Processes and configurations.


def settle_elsewhere(pipe: Pipe, path: Path, hold: HoldId) -> None:
    with Billing(config(path)) as billing:
        pipe.send(billing.settle(hold, {"pages": 6, "seconds": 30}))


def test_a_hold_is_settled_by_whichever_process_gets_to_it(office: Office) -> None:
    made = office.hold({"pages": 10, "seconds": 100})
    child = Child(settle_elsewhere, office.path, made.hold)
    assert child.receive() == 50
    child.finish()
    assert office.money() == (950, 0)
    assert office.billing.settle(made.hold, {"pages": 6, "seconds": 30}) == 50


def hold_and_die(pipe: Pipe, path: Path) -> None:
    with Billing(config(path)) as billing:
        pipe.send(billing.hold("alice", "job", {"pages": 5}, HOUR, choice="small"))
        pipe.recv()


def test_a_hold_outlives_the_process_that_made_it(office: Office) -> None:
    child = Child(hold_and_die, office.path)
    made = child.receive()
    child.kill()
    assert sweep(office.engine) == 0
    assert office.billing.settle(made.hold, {"pages": 5, "seconds": 0}) == 10


def race_to_settle(pipe: Pipe, path: Path, hold: HoldId, pages: int) -> None:
    with Billing(config(path)) as billing:
        pipe.send("ready")
        pipe.recv()
        try:
            pipe.send(billing.settle(hold, {"pages": pages, "seconds": 0}))
        except Conflict:
            pipe.send("conflict")


@pytest.mark.parametrize("same", [True, False])
def test_two_processes_that_settle_at_once_settle_once(office: Office, same: bool) -> None:
    made = office.hold({"pages": 10, "seconds": 100})
    pages = (6, 6) if same else (6, 7)
    children = [Child(race_to_settle, office.path, made.hold, count) for count in pages]
    for child in children:
        child.receive()
    for child in children:
        child.send("go")
    results = [child.receive() for child in children]
    for child in children:
        child.finish()
    if same:
        assert results == [20, 20]
    else:
        assert results in ([20, "conflict"], ["conflict", 30])
    charged = next(result for result in results if result != "conflict")
    assert office.money() == (1_000 - charged, 0)


def test_a_faster_process_decides_how_a_hold_ended(
    office: Office, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = office.hold({"pages": 10})
    settle = charge.settle

    def slower(engine: Engine, hold: HoldId, *rest: object) -> charge.Ended:
        charge.release(engine, hold)
        return settle(engine, hold, *rest)  # type: ignore[arg-type]

    monkeypatch.setattr(charge, "settle", slower)
    with pytest.raises(Conflict, match="was released"):
        office.billing.settle(made.hold, {"pages": 1})


def test_a_settlement_at_changed_prices_says_so(office: Office, path: Path) -> None:
    made = office.hold({"pages": 10, "seconds": 0})
    changed = config(
        path, TEXT.replace('small: {pages: {usd: "0.000010"}', "small: {pages: {usd: 0}")
    )
    with Billing(changed) as other:
        assert other.settle(made.hold, {"pages": 10, "seconds": 5}) == 5
    row = office.row(made)
    assert nodes.entries_of(office.engine)[-1].note == f"held at prices {row.price_version}"


def test_a_customer_s_change_of_plan_leaves_open_holds_at_their_own(office: Office) -> None:
    made = office.hold({"pages": 10, "seconds": 0})
    customers.change_plan(office.engine, ALICE, PlanName("later"))
    assert office.billing.settle(made.hold, {"pages": 10, "seconds": 7}) == 67


def test_a_settlement_of_what_has_no_price_any_more_is_refused(office: Office, path: Path) -> None:
    made = office.hold({"pages": 10, "seconds": 0})
    with pytest.raises(Unpriced, match='no price for the meter "words"'):
        office.billing.settle(made.hold, {"words": 1})
    gone = config(path, TEXT.replace("  default:", "  changed:"))
    with Billing(gone) as other, pytest.raises(HoldRefused, match="has no price of job for"):
        other.settle(made.hold, {"pages": 1})
    assert office.row(made).state is HoldState.OPEN


def test_what_is_wrong_with_the_configuration_is_told_whole(path: Path) -> None:
    text = TEXT.replace('buffer_usd: "0.000050"', "buffer_usd: much").replace('"0.000020"', "x")
    with pytest.raises(ConfigError) as error:
        Billing(config(path, text))
    assert {problem.path for problem in error.value.problems} == {
        "buffer_usd",
        "plans.default.prices.render.pages.tiered[1].usd",
    }


def test_an_unknown_customer_is_unknown_before_anything_else(office: Office) -> None:
    customers.add_customer(office.engine, CustomerId("bob"), PlanName("missing"))
    with pytest.raises(HoldRefused, match="the plan 'missing' has no price of job"):
        office.billing.hold("bob", "job", {"pages": 1}, HOUR)


def test_who_asks_for_nothing_of_what_has_a_price_holds_one_micro(office: Office) -> None:
    assert office.hold({"seconds": 0}).amount == 1
    assert office.hold({}).amount == 1
