"""Steps: a call that is settled while it goes on, and what is left of it when its worker dies."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path

import nodes
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from processes import Child, Pipe

from finomw.engine import charge, customers, grants, invoice, ledger, records, simulate
from finomw.engine.engine import Engine
from finomw.engine.sweep import sweep
from finomw.engine.verify import verify
from finomw.errors import InvalidValue, InvariantBroken, NotFound
from finomw.money.periods import Per, Period
from finomw.money.plans import PricePlan, RoutePrices
from finomw.money.pricing import PriceList
from finomw.money.quotas import Quota
from finomw.money.rates import MeterPrice, Package, Tiers
from finomw.money.terms import Terms
from finomw.testing.clock import ManualClock
from finomw.types import (
    Counts,
    CustomerId,
    EntryKind,
    Fund,
    HoldId,
    HoldState,
    OnCrash,
    UsageStatus,
)

STEPPED, ONCE = CustomerId("stepped"), CustomerId("once")
PARTIAL, KNOWN = UsageStatus.PARTIAL, UsageStatus.KNOWN
METERS = ("x", "y")
CEILING = {"x": 40, "y": 20}


def terms(*quotas: Quota, order: tuple[Fund, ...] = (Fund.WALLET,)) -> Terms:
    return Terms(quotas, order, Per.MONTH)


def open_hold(
    engine: Engine, customer: CustomerId, prices: PriceList, with_terms: Terms, cap: bool = False
) -> HoldId:
    request = charge.HoldRequest(
        customer,
        nodes.KEY,
        nodes.ROUTE,
        prices.worst,
        CEILING,
        0,
        OnCrash.RELEASE,
        prices.version,
        plan=nodes.PLAN,
        terms=with_terms,
        counted=tuple(meter for meter in METERS if meter in prices.tiered_meters),
        cap=cap,
    )
    held = charge.hold(engine, request)
    assert isinstance(held, charge.Held), held
    return held.hold


RATES = st.fractions(0, 9, max_denominator=7)


@st.composite
def meter_prices(draw: st.DrawFn) -> MeterPrice:
    kind = draw(st.sampled_from(["rate", "rate", "package", "tiered", "volume"]))
    if kind == "rate":
        return draw(RATES)
    if kind == "package":
        return Package(draw(st.integers(1, 9)), draw(RATES))
    bounds = tuple(sorted(draw(st.sets(st.integers(1, 50), min_size=1, max_size=2))))
    rates = tuple(draw(RATES) for _ in range(len(bounds) + 1))
    return Tiers("tiered" if kind == "tiered" else "volume", bounds, rates)


@st.composite
def price_lists(draw: st.DrawFn) -> PriceList:
    return PriceList.of(
        {meter: draw(meter_prices()) for meter in METERS},
        draw(st.sampled_from(["up", "down", "half_up"])),
        minimum=draw(st.sampled_from([Fraction(0), Fraction(7), Fraction(31, 2)])),
    )


@st.composite
def sources(draw: st.DrawFn) -> Terms:
    quotas = []
    for name in draw(st.lists(st.sampled_from(["q", "r"]), max_size=2, unique=True)):
        money = draw(st.booleans())
        meters = () if money else draw(st.sampled_from([("x",), ("y", "x")]))
        quotas.append(Quota(name, meters, draw(st.integers(1, 40)), money, Per.MONTH, False))
    order = draw(st.sampled_from([(Fund.WALLET,), (Fund.WALLET, Fund.CREDIT), (Fund.CREDIT,)]))
    return terms(*quotas, order=order)


TOTALS = st.lists(
    st.fixed_dictionaries({"x": st.integers(0, 15), "y": st.integers(0, 9)}),
    min_size=1,
    max_size=6,
)


@given(
    prices=price_lists(),
    who_pays=sources(),
    more=TOTALS,
    cap=st.booleans(),
    wallet=st.sampled_from([5, 60, 5_000]),
)
@settings(derandomize=True, max_examples=120, deadline=None)
def test_any_number_of_steps_takes_what_one_settlement_takes(
    tmp_path_factory: pytest.TempPathFactory,
    prices: PriceList,
    who_pays: Terms,
    more: list[Counts],
    cap: bool,
    wallet: int,
) -> None:
    engine = nodes.open_node(nodes.make(tmp_path_factory.mktemp("steps") / "node"))
    try:
        for customer in (STEPPED, ONCE):
            customers.add_customer(engine, customer, nodes.PLAN)
            customers.set_terms(engine, customer, 10_000, 10_000)
            expires = engine.clock.now() + 10**12
            grants.grant(engine, customer, wallet, "test", "1", "", expires)
        totals = list(itertools.accumulate(more, lambda a, b: {m: a[m] + b[m] for m in a}))
        stepped = open_hold(engine, STEPPED, prices, who_pays, cap)
        once = open_hold(engine, ONCE, prices, who_pays, cap)
        for total in totals:
            charge.step(engine, stepped, prices.price, total, PARTIAL)
            assert verify(engine).faults == ()
        last = charge.settle(engine, stepped, prices.price, totals[-1], KNOWN)
        whole = charge.settle(engine, once, prices.price, totals[-1], KNOWN)
        assert last.charged == whole.charged
        assert last.account._replace(blocked_at=None) == whole.account._replace(blocked_at=None)
        assert verify(engine).faults == ()
        with engine.store.read() as txn:
            quotas = [dict(engine.store.quotas.of(txn, who)) for who in (STEPPED, ONCE)]
            usages = [engine.store.quotas.usage(txn, who) for who in (STEPPED, ONCE)]
            lots = [engine.store.grants.get(txn, who, "test", "1") for who in (STEPPED, ONCE)]
        for name, row in quotas[0].items():
            assert (row.used, row.held) == (quotas[1][name].used, quotas[1][name].held)
        assert (usages[0] is None) == (usages[1] is None)
        if usages[0] is not None and usages[1] is not None:
            assert (usages[0].used, usages[0].held) == (usages[1].used, usages[1].held)
        assert lots[0] is not None
        assert lots[1] is not None
        assert lots[0].unspent == lots[1].unspent
        units = [
            line.entry.call.counts
            for line in ledger.ledger(engine, STEPPED, 1_000)
            if line.entry.call is not None and line.entry.source_id.endswith("wallet")
        ]
        if who_pays.order == (Fund.WALLET,):
            added = {meter: sum(counts[meter] for counts in units) for meter in METERS}
            assert added == totals[-1]
    finally:
        engine.close()


SIMPLE = PriceList.of({"x": Fraction(3, 2), "y": Fraction(0)}, "up")
VOLUME = PriceList.of(
    {"x": Tiers("volume", (10,), (Fraction(5), Fraction(1))), "y": Fraction(0)}, "up"
)
Opened = Callable[..., HoldId]


@pytest.fixture
def engine(tmp_path: Path) -> Engine:
    opened = nodes.open_node(nodes.make(tmp_path / "node"), clock=ManualClock())
    customers.add_customer(opened, nodes.ALICE, nodes.PLAN)
    grants.grant(opened, nodes.ALICE, 1_000, "test", "1")
    return opened


def entries(engine: Engine) -> list[tuple[EntryKind, int, str, Counts]]:
    """Return the calls' entries, oldest first: kind, micros, the name behind the hold, counts."""
    return [
        (
            line.entry.kind,
            line.entry.amount,
            line.entry.source_id.partition("/")[2],
            {} if line.entry.call is None else line.entry.call.counts,
        )
        for line in reversed(ledger.ledger(engine, nodes.ALICE, 1_000))
        if line.entry.source == "call"
    ]


def row_of(engine: Engine, hold: HoldId) -> tuple[HoldState, int | None, Counts | None]:
    with engine.store.read() as txn:
        row = engine.store.holds.find(txn, hold)
    assert row is not None
    return row.state, row.charged, row.counts


def test_a_step_charges_what_its_total_costs_more_and_the_end_the_rest(engine: Engine) -> None:
    hold = open_hold(engine, nodes.ALICE, SIMPLE, terms())
    first = charge.step(engine, hold, SIMPLE.price, {"x": 1, "y": 1}, PARTIAL)
    second = charge.step(engine, hold, SIMPLE.price, {"x": 3, "y": 1}, PARTIAL)
    assert (first.charged, second.charged) == (2, 5)
    account = customers.get_account(engine, nodes.ALICE)
    assert (account.balance, account.held, account.spent_total) == (940, 55, 5)
    ended = charge.settle(engine, hold, SIMPLE.price, {"x": 5, "y": 2}, KNOWN)
    assert ended.charged == 8
    assert entries(engine) == [
        (EntryKind.HOLD, -60, "1/hold/wallet", {}),
        (EntryKind.HOLD_RELEASE, 2, "2/hold_release/wallet", {}),
        (EntryKind.SETTLEMENT, -2, "2/settlement/wallet", {"x": 1, "y": 1}),
        (EntryKind.HOLD_RELEASE, 3, "3/hold_release/wallet", {}),
        (EntryKind.SETTLEMENT, -3, "3/settlement/wallet", {"x": 2, "y": 0}),
        (EntryKind.HOLD_RELEASE, 55, "4/hold_release/wallet", {}),
        (EntryKind.SETTLEMENT, -3, "4/settlement/wallet", {"x": 2, "y": 1}),
    ]
    assert row_of(engine, hold) == (HoldState.SETTLED, 8, {"x": 5, "y": 2})
    assert customers.get_account(engine, nodes.ALICE).balance == 992
    engine.close()


def test_a_call_in_steps_is_one_call_on_an_invoice_and_in_a_simulation(engine: Engine) -> None:
    customers.set_terms(engine, nodes.ALICE, 500, None)
    hold = open_hold(engine, nodes.ALICE, SIMPLE, terms(order=(Fund.CREDIT,)))
    for count in (1, 2, 3):
        charge.step(engine, hold, SIMPLE.price, {"x": count, "y": 0}, PARTIAL)
    charge.settle(engine, hold, SIMPLE.price, {"x": 4, "y": 2}, KNOWN)
    [line] = invoice.invoice(engine, nodes.ALICE, Period(0, None)).lines
    assert (line.calls, line.units, line.amount) == (1, {"x": 4, "y": 2}, 6)
    routes: dict[str, tuple[RoutePrices, ...]] = {nodes.ROUTE: (RoutePrices(None, {"*": SIMPLE}),)}
    plan = PricePlan(nodes.PLAN, routes, None, Per.MONTH, ("wallet",), ())
    [told] = simulate.simulate(engine, plan, 0, lambda *_: None)
    assert (told.calls, told.kept, told.charged, told.simulated) == (1, 0, 6, 6)
    engine.close()


def test_a_total_that_falls_gives_nothing_back(engine: Engine) -> None:
    hold = open_hold(engine, nodes.ALICE, SIMPLE, terms())
    charge.step(engine, hold, SIMPLE.price, {"x": 10, "y": 0}, PARTIAL)
    assert charge.step(engine, hold, SIMPLE.price, {"x": 4, "y": 0}, PARTIAL).charged == 15
    assert charge.settle(engine, hold, SIMPLE.price, {"x": 4, "y": 0}, KNOWN).charged == 15
    assert verify(engine).faults == ()
    engine.close()


@pytest.mark.parametrize(
    ("prices", "record"), [(VOLUME, False), (SIMPLE, True)], ids=["volume", "estimate"]
)
def test_where_the_price_may_fall_steps_only_record_counts(
    engine: Engine, prices: PriceList, record: bool
) -> None:
    hold = open_hold(engine, nodes.ALICE, prices, terms())
    before = entries(engine)
    step = charge.step(engine, hold, prices.price, {"x": 10, "y": 0}, PARTIAL, record=record)
    assert step.charged == 0
    assert entries(engine) == before
    ended = charge.settle(engine, hold, prices.price, {"x": 11, "y": 0}, KNOWN)
    assert ended.charged == prices.price({"x": 11, "y": 0}, {})
    engine.close()


def test_what_a_release_leaves_of_a_stepped_call_is_what_its_steps_charged(engine: Engine) -> None:
    hold = open_hold(engine, nodes.ALICE, SIMPLE, terms())
    charge.step(engine, hold, SIMPLE.price, {"x": 10, "y": 0}, PARTIAL)
    charge.step(engine, hold, SIMPLE.price, {"x": 30, "y": 0}, PARTIAL, "estimated", record=True)
    assert charge.release(engine, hold, "failed").charged == 15
    assert row_of(engine, hold) == (HoldState.SETTLED, 15, {"x": 10, "y": 0})
    assert customers.get_account(engine, nodes.ALICE).balance == 985
    engine.close()


def test_a_recorded_step_does_not_keep_a_hold_from_its_release(engine: Engine) -> None:
    hold = open_hold(engine, nodes.ALICE, SIMPLE, terms())
    charge.step(engine, hold, SIMPLE.price, {"x": 30, "y": 0}, PARTIAL, "estimated", record=True)
    assert charge.release(engine, hold, "failed").charged == 0
    assert row_of(engine, hold)[0] is HoldState.RELEASED
    engine.close()


def test_an_overrun_is_charged_by_the_step_that_sees_it(engine: Engine) -> None:
    hold = open_hold(engine, nodes.ALICE, SIMPLE, terms())
    assert charge.step(engine, hold, SIMPLE.price, {"x": 100, "y": 0}, PARTIAL).charged == 150
    account = customers.get_account(engine, nodes.ALICE)
    assert (account.balance, account.held) == (850, 0)
    assert charge.settle(engine, hold, SIMPLE.price, {"x": 102, "y": 0}, KNOWN).charged == 153
    assert verify(engine).faults == ()
    engine.close()


@pytest.mark.parametrize(
    ("prices", "record", "charged"),
    [(SIMPLE, False, 15), (SIMPLE, True, 15), (VOLUME, False, 50)],
    ids=["charged", "estimated", "volume"],
)
@pytest.mark.parametrize("rebuilt", [False, True])
def test_a_dead_workers_call_costs_what_its_last_step_says(
    tmp_path: Path, engine: Engine, prices: PriceList, record: bool, charged: int, rebuilt: bool
) -> None:
    hold = open_hold(engine, nodes.ALICE, prices, terms())
    charge.start(engine, charge.Held(hold, 0, 0))
    note = "estimated: x" if record else ""
    charge.step(engine, hold, prices.price, {"x": 4, "y": 0}, PARTIAL, note, record=record)
    charge.step(engine, hold, prices.price, {"x": 10, "y": 0}, PARTIAL, note, record=record)
    nodes.drop(engine)
    if rebuilt:
        (tmp_path / "node" / "control").unlink()
    again = nodes.open_node(tmp_path / "node", clock=ManualClock())
    assert sweep(again) == 1
    assert row_of(again, hold) == (HoldState.SETTLED, charged, {"x": 10, "y": 0})
    [last] = ledger.ledger(again, nodes.ALICE, 1)
    assert last.entry.note == "; ".join(filter(None, (note, "worker 1 died")))
    assert customers.get_account(again, nodes.ALICE).balance == 1_000 - charged
    assert verify(again).faults == ()
    again.close()


def step_and_wait(pipe: Pipe, path: Path) -> None:
    """Settle one call in steps, estimate another, tell, and wait to be killed."""
    engine = nodes.open_node(path)
    for record in (False, True):
        hold = open_hold(engine, nodes.ALICE, SIMPLE, terms())
        for count in (4, 10):
            charge.step(engine, hold, SIMPLE.price, {"x": count, "y": 0}, PARTIAL, record=record)
    pipe.send(engine.worker)
    pipe.recv()


def test_a_killed_worker_s_steps_are_what_its_calls_cost(tmp_path: Path, engine: Engine) -> None:
    child = Child(step_and_wait, tmp_path / "node")
    child.receive()
    assert sweep(engine) == 0
    account = customers.get_account(engine, nodes.ALICE)
    assert (account.balance, account.held, account.spent_total) == (880, 105, 15)
    child.kill()
    assert sweep(engine) == 2
    account = customers.get_account(engine, nodes.ALICE)
    assert (account.balance, account.held, account.spent_total) == (970, 0, 30)
    assert verify(engine).faults == ()
    engine.close()


def test_only_a_call_under_way_is_settled_in_steps(engine: Engine) -> None:
    hold = open_hold(engine, nodes.ALICE, SIMPLE, terms())
    charge.settle(engine, hold, SIMPLE.price, {"x": 1, "y": 0}, KNOWN)
    with pytest.raises(NotFound):
        charge.step(engine, hold, SIMPLE.price, {"x": 2, "y": 0}, PARTIAL)
    request = charge.HoldRequest(
        nodes.ALICE, nodes.KEY, nodes.ROUTE, 5, {"x": 1}, 0, OnCrash.RELEASE, "v1"
    )
    explicit = charge.hold(
        engine, request._replace(reservation=charge.Reservation(engine.clock.now() + 1))
    )
    assert isinstance(explicit, charge.Held)
    with pytest.raises(InvalidValue, match="is explicit"):
        charge.step(engine, explicit.hold, SIMPLE.price, {"x": 1}, PARTIAL)
    counted = open_hold(engine, nodes.ALICE, VOLUME, terms())
    command = records.Step(engine.clock.now(), counted, 5, {"x": 1}, PARTIAL, "", {"x": 0}, True)
    with pytest.raises(InvariantBroken, match="its price may fall"):
        engine.execute(command)
    stepped = open_hold(engine, nodes.ALICE, SIMPLE, terms())
    charge.step(engine, stepped, SIMPLE.price, {"x": 1, "y": 0}, PARTIAL)
    with pytest.raises(InvariantBroken, match="but steps charged of it"):
        engine.execute(records.Release(engine.clock.now(), stepped, ""))
    engine.close()
