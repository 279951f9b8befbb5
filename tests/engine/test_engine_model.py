"""The engine against the model ledger: any sequence of operations, kills and replays agrees.

The model starts from the same plans, and every step does the same to both. What they answer is
compared, and after each step all that they say about every customer.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from typing import TypeVar

import nodes
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from msgspec.structs import replace

from finomw.engine import charge, customers, grants, ledger
from finomw.engine.extend import Extension, extend
from finomw.engine.reconcile import Difference, reconcile
from finomw.engine.sweep import expire_grants, sweep
from finomw.engine.verify import verify
from finomw.errors import Conflict, InvalidValue, NotFound
from finomw.money.entries import KIND_NAMES
from finomw.money.funding import QuotaPart
from finomw.money.periods import Per
from finomw.money.pricing import PriceList
from finomw.money.quotas import Quota
from finomw.money.rates import MeterPrice, Tiers
from finomw.money.terms import Terms
from finomw.store.holds import HoldRow
from finomw.testing.calls import ModelLedger, ModelRequest
from finomw.testing.clock import ManualClock
from finomw.testing.model import ModelHold
from finomw.testing.plans import DAY, HOUR, WEEK, ModelPlan, ModelPrice, ModelQuota
from finomw.types import (
    Counts,
    CustomerId,
    Fund,
    HoldId,
    HoldState,
    OnCrash,
    PlanName,
    Refusal,
    Status,
    UsageStatus,
)

FILLER, NOBODY = CustomerId("filler"), CustomerId("nobody")
"""Not in the model; the first one's records bring the end of the segment near."""
NAMES = ["a", "b", "a", "b", "c"]
"""The last one is not there from the beginning."""
LENGTHS = {HOUR: Per.HOUR, DAY: Per.DAY, WEEK: Per.WEEK, None: Per.ONCE}
ORDERS = [
    (Fund.WALLET,),
    (Fund.WALLET, Fund.CREDIT),
    (Fund.CREDIT, Fund.WALLET),
    (Fund.CREDIT,),
    (),
]
SOMEWHERE = st.integers(0, 2**16)
COUNTS = st.fixed_dictionaries({"x": st.integers(0, 9), "y": st.integers(0, 6)})
Result = TypeVar("Result")


@st.composite
def prices(draw: st.DrawFn) -> ModelPrice:
    kind = draw(st.sampled_from(["flat", "tiered", "tiered", "volume"]))
    if kind == "flat":
        return ModelPrice((draw(st.sampled_from([0, 1, 3, 7])),))
    bounds = tuple(sorted(draw(st.sets(st.integers(1, 25), min_size=1, max_size=2))))
    rates = st.lists(st.integers(0, 9), min_size=len(bounds) + 1, max_size=len(bounds) + 1)
    return ModelPrice(tuple(draw(rates)), bounds, kind == "volume")


@st.composite
def quotas(draw: st.DrawFn) -> tuple[ModelQuota, ...]:
    names = draw(st.lists(st.sampled_from(["q", "r", "s"]), max_size=2, unique=True))
    made = []
    for name in names:
        length = draw(st.sampled_from(list(LENGTHS)))
        money = draw(st.booleans())
        meters = draw(st.sampled_from([("x",), ("y", "x"), ("x", "y")]))
        units = draw(st.sampled_from([1, 4, 10, 30]))
        roll_over = length is not None and draw(st.booleans())
        made.append(ModelQuota(name, () if money else meters, units, money, length, roll_over))
    return tuple(made)


@st.composite
def plans(draw: st.DrawFn) -> list[ModelPlan]:
    return [
        ModelPlan(
            name,
            {"x": draw(prices()), "y": draw(prices())},
            draw(st.sampled_from([1, 2, 3])),
            draw(quotas()),
            draw(st.sampled_from(ORDERS)),
            draw(st.sampled_from([DAY, WEEK])),
        )
        for name in ("gold", "iron")
    ]


class Compiled:
    """A model's plan as the engine takes it."""

    def __init__(self, plan: ModelPlan) -> None:
        self.prices = PriceList.of(
            {meter: self._price(price, plan.scale) for meter, price in plan.prices.items()}, "up"
        )
        self.terms = Terms(
            tuple(
                Quota(q.name, q.meters, q.units, q.money, LENGTHS[q.length], q.roll_over)
                for q in plan.quotas
            ),
            plan.order,
            LENGTHS[plan.usage_length],
        )

    def _price(self, price: ModelPrice, scale: int) -> MeterPrice:
        rates = tuple(Fraction(rate, scale) for rate in price.rates)
        if not price.bounds:
            return rates[0]
        return Tiers("volume" if price.volume else "tiered", price.bounds, rates)


def outcome(act: Callable[[], Result]) -> Result | type[Exception]:
    """Return what came out, or which of the expected errors."""
    try:
        return act()
    except (Conflict, NotFound, InvalidValue) as error:
        return type(error)


class EngineAgainstModel(RuleBasedStateMachine):
    """Every rule does the same to both and compares what they answer."""

    def __init__(self) -> None:
        super().__init__()
        memory = Path("/dev/shm")
        self.home = Path(
            tempfile.mkdtemp(prefix="finomw-model-", dir=memory if memory.is_dir() else None)
        )
        self.path = nodes.make(self.home / "node", 1 << 21)
        self.clock = ManualClock()
        self.engine = nodes.open_node(self.path, clock=self.clock)
        self.model = ModelLedger()
        self.plans: dict[str, ModelPlan] = {}
        self.owner = 0
        self.ended: dict[str, tuple[HoldState, int, int]] = {}
        self.given: list[tuple[CustomerId, tuple[object, ...]]] = []

    @initialize(
        made=plans(), credit=st.sampled_from([0, 60, 500]), near_the_end=st.sampled_from([0, 0, 1])
    )
    def begin(self, made: list[ModelPlan], credit: int, near_the_end: bool) -> None:
        self.plans = {plan.name: plan for plan in made}
        self.compiled = {plan.name: Compiled(plan) for plan in made}
        if near_the_end:
            customers.add_customer(self.engine, FILLER, PlanName("none"))
            nodes.fill_to(self.engine, nodes.SEGMENT - 2_000, FILLER)
        self.add_customer("a", "gold", None)
        self.add_customer("b", "iron", 50)
        self.grant("a", 500, "0", "", None)
        self.grant("b", 100, "0", "", 20)
        self.set_terms("b", credit, None)

    @rule(
        name=st.sampled_from(NAMES),
        plan=st.sampled_from(["gold", "iron"]),
        buffer=st.sampled_from([None, 0, 50]),
    )
    def add_customer(self, name: str, plan: str, buffer: int | None) -> None:
        now = self.clock.now()
        expected = outcome(lambda: self.model.add_customer(name, plan, now, buffer))
        add = customers.add_customer
        done = outcome(lambda: add(self.engine, CustomerId(name), PlanName(plan), buffer=buffer))
        assert done == expected

    # What owners give and take.

    @rule(
        who=st.sampled_from(NAMES),
        amount=st.sampled_from([20, 100, 100, 500]),
        name=st.sampled_from("123456"),
        note=st.sampled_from(["", "", "", "a bonus"]),
        hours=st.sampled_from([None, None, 1, 30]),
    )
    def grant(self, who: str, amount: int, name: str, note: str, hours: int | None) -> None:
        # Never two at once: which of those expires first is nobody's business.
        expires = None if hours is None else self.clock.now() + hours * HOUR + len(self.given)
        content = (amount, "test", name, note, expires)
        self.given.append((CustomerId(who), content))
        self.give_again(-1)

    @precondition(lambda self: self.given)
    @rule(which=SOMEWHERE)
    def give_again(self, which: int) -> None:
        who, (amount, source, name, note, expires) = self.given[which % len(self.given)]
        named, now = (source, name), self.clock.now()
        expected = outcome(
            lambda: self.model.grant(who, amount, named, note, now, expires)  # type: ignore[arg-type]
        )
        done = outcome(
            lambda: (
                grants.grant(
                    self.engine,
                    who,
                    amount,
                    source,
                    name,
                    note,
                    expires,  # type: ignore[arg-type]
                ).repeated
            )
        )
        assert done == expected

    @rule(
        who=st.sampled_from(NAMES), amount=st.sampled_from([5, 40, 500]), name=st.sampled_from("pq")
    )
    def pay(self, who: str, amount: int, name: str) -> None:
        give, named = self.model.grant, ("bank", name)
        expected = outcome(lambda: give(who, amount, named, "", self.clock.now(), fund=Fund.CREDIT))
        done = outcome(
            lambda: grants.pay(self.engine, CustomerId(who), amount, "bank", name).repeated
        )
        assert done == expected

    @rule(
        who=st.sampled_from(NAMES),
        which=SOMEWHERE,
        amount=st.sampled_from(["whole", "half", "rest", "too much"]),
        name=st.sampled_from(["1", "r1", "r2", "r3", "r4"]),
    )
    def refund(self, who: str, which: int, amount: str, name: str) -> None:
        account = self.model.customers.get(who)
        known = sorted(account.grants) if account else []
        of = known[which % len(known)] if known else ("test", "unknown")
        grant = account.grants[of] if account and known else None
        left = grant.amount - grant.refunded if grant else 1
        micros = {
            "whole": grant.amount if grant else 1,
            "half": max(1, left // 2),
            "rest": max(1, left),
            "too much": left + 1,
        }[amount]
        named = ("test", name)
        expected = outcome(lambda: self.model.refund(who, micros, named, of, ""))
        back = grants.refund
        done = outcome(lambda: back(self.engine, CustomerId(who), micros, *named, of).repeated)
        assert done == expected

    @rule(who=st.sampled_from(NAMES), ends=st.booleans())
    def suspend_or_resume(self, who: str, ends: bool) -> None:
        mine, theirs = (
            (self.model.resume, customers.resume)
            if ends
            else (self.model.suspend, customers.suspend)
        )
        expected = outcome(lambda: mine(who))
        assert outcome(lambda: theirs(self.engine, CustomerId(who), "a reason")) == expected

    @rule(
        who=st.sampled_from(NAMES),
        credit_limit=st.sampled_from([None, 0, 60, 500]),
        buffer=st.sampled_from([None, 0, 70]),
    )
    def set_terms(self, who: str, credit_limit: int | None, buffer: int | None) -> None:
        expected = outcome(lambda: self.model.set_terms(who, credit_limit, buffer))
        change = customers.set_terms
        done = outcome(lambda: change(self.engine, CustomerId(who), credit_limit, buffer))
        assert done == expected

    @rule(
        who=st.sampled_from(NAMES),
        plan=st.sampled_from(["gold", "iron"]),
        how=st.sampled_from(["subscribe", "change", "change", "leave"]),
    )
    def change_plan(self, who: str, plan: str, how: str) -> None:
        now, customer, engine = self.clock.now(), CustomerId(who), self.engine
        name = PlanName(plan)
        if how == "subscribe":
            expected = outcome(lambda: self.model.subscribe(who, plan, now))
            done = outcome(lambda: customers.subscribe(engine, customer, name, "UTC"))
        elif how == "change":
            expected = outcome(lambda: self.model.change_plan(who, plan))
            done = outcome(lambda: customers.change_plan(engine, customer, name))
        else:
            expected = outcome(lambda: self.model.change_plan(who, ""))
            done = outcome(lambda: customers.unsubscribe(engine, customer))
        assert done == expected

    @rule(who=st.sampled_from(["b", "c", "c"]), erase=st.booleans())
    def delete(self, who: str, erase: bool) -> None:
        expected = outcome(lambda: self.model.delete(who, erase))
        delete = customers.delete_customer
        assert outcome(lambda: delete(self.engine, CustomerId(who), erase)) == expected

    # Calls.

    @rule(
        who=st.sampled_from(["a", "b"]),
        ceilings=st.lists(COUNTS, min_size=2, max_size=4),
        buffer=st.sampled_from([0, 30]),
        order=st.permutations(range(4)),
    )
    def hold_several_and_settle(
        self, who: str, ceilings: list[Counts], buffer: int, order: list[int]
    ) -> None:
        """Whatever order calls end in, and whatever they use, no hold is too small."""
        before = set(self.model.holds)
        for ceiling in ceilings:
            self.hold(who, ceiling, buffer, OnCrash.RELEASE, False, "usual")
        made = sorted(set(self.model.holds) - before)
        for place in order:
            if place < len(made):
                which = sorted(self.model.holds).index(made[place])
                self.settle(which, ceilings[place], "within" if place % 2 else "at")

    @rule(
        who=st.sampled_from(["a", "a", "a", *NAMES, NOBODY]),
        ceiling=COUNTS,
        buffer=st.sampled_from([0, 0, 30, 1000]),
        on_crash=st.sampled_from(OnCrash),
        cap=st.booleans(),
        kind=st.sampled_from(["usual", "usual", "flat", "explicit"]),
    )
    def hold(
        self, who: str, ceiling: Counts, buffer: int, on_crash: OnCrash, cap: bool, kind: str
    ) -> None:
        account = self.model.customers.get(who)
        plan = self.plans.get(account.plan if account else "gold") or self.plans["gold"]
        explicit, flat = kind == "explicit", kind == "flat"
        expires = self.clock.now() + 2 * HOUR if explicit else None
        wanted = ModelRequest(
            who,
            plan,
            ceiling,
            buffer,
            on_crash,
            cap,
            flat,
            None if explicit else self.owner,
            expires,
        )
        expected = self.model.prepare(wanted, self.clock.now())
        compiled = self.compiled[plan.name]
        request = charge.HoldRequest(
            CustomerId(who),
            nodes.KEY,
            nodes.ROUTE,
            compiled.prices.worst,
            ceiling,
            buffer,
            on_crash,
            "v1",
            plan=PlanName(plan.name),
            terms=compiled.terms,
            counted=plan.counted,
            cap=cap,
            reservation=None if expires is None else charge.Reservation(expires),
            settle=compiled.prices.price if flat else None,
        )
        done = charge.hold(self.engine, request)
        if isinstance(expected, Refusal):
            assert done is expected
        else:
            assert isinstance(done, charge.Held), (done, expected)
            assert done.amount == expected.wallet + expected.credit
            self.model.open(done.hold, expected)

    @precondition(lambda self: self.model.holds)
    @rule(which=SOMEWHERE)
    def start(self, which: int) -> None:
        name = self.pick(which)
        charge.start(self.engine, charge.Held(HoldId(name), 0, 0))
        self.model.start(name)

    @precondition(lambda self: self.model.holds)
    @rule(which=SOMEWHERE, counts=COUNTS, how=st.sampled_from(["within", "within", "at", "above"]))
    def settle(self, which: int, counts: Counts, how: str) -> None:
        name = self.pick(which)
        hold = self.model.holds[name]
        if how == "within":
            used = {meter: min(counts[meter], most) for meter, most in hold.ceiling.items()}
        else:
            more = 5 if how == "above" else 0
            used = {meter: most + more * counts[meter] for meter, most in hold.ceiling.items()}
        before = whole(hold)
        price = self.compiled[hold.plan.name].prices.price
        done = charge.settle(self.engine, HoldId(name), price, used, UsageStatus.KNOWN)
        assert done.charged == self.model.settle(name, used)
        if how != "above" or hold.cap:
            assert done.charged <= before
        self.ended[name] = (HoldState.SETTLED, self.clock.now(), done.charged)

    @precondition(lambda self: self.model.holds)
    @rule(which=SOMEWHERE)
    def settle_whole(self, which: int) -> None:
        name = self.pick(which)
        done = charge.settle_whole(self.engine, HoldId(name), {}, UsageStatus.MISSING)
        assert done.charged == self.model.settle_whole(name)
        self.ended[name] = (HoldState.SETTLED, self.clock.now(), done.charged)

    @precondition(lambda self: self.model.holds)
    @rule(which=SOMEWHERE)
    def release(self, which: int) -> None:
        name = self.pick(which)
        customer = self.model.holds[name].customer
        charged = sum(self.model.holds[name].charged.values())
        stepped = self.model.release(name)
        ended = charge.release(self.engine, HoldId(name))
        assert ended.charged == charged
        assert ended.account.balance == self.model.balance(customer)
        state = HoldState.SETTLED if stepped else HoldState.RELEASED
        self.ended[name] = (state, self.clock.now(), charged)

    @precondition(lambda self: self.model.holds)
    @rule(which=SOMEWHERE, counts=COUNTS, record=st.sampled_from([False, False, True]))
    def step(self, which: int, counts: Counts, record: bool) -> None:
        name = self.pick(which)
        price = self.compiled[self.model.holds[name].plan.name].prices.price
        expected = outcome(lambda: self.model.step(name, counts, record))
        done = outcome(
            lambda: (
                charge.step(
                    self.engine, HoldId(name), price, counts, UsageStatus.PARTIAL, record=record
                ).charged
            )
        )
        assert done == expected

    @precondition(lambda self: self.model.holds)
    @rule(which=SOMEWHERE, counts=st.lists(COUNTS, min_size=1, max_size=4))
    def run_long(self, which: int, counts: list[Counts]) -> None:
        """Step a call whose counts grow, as they do."""
        total: Counts = {}
        for more in counts:
            total = {meter: total.get(meter, 0) + count for meter, count in more.items()}
            self.step(which, total, False)

    @precondition(lambda self: self.model.holds)
    @rule(
        which=SOMEWHERE,
        hours=st.integers(1, 4),
        ceiling=st.one_of(st.none(), COUNTS),
        buffer=st.sampled_from([0, 30]),
    )
    def extend(self, which: int, hours: int, ceiling: Counts | None, buffer: int) -> None:
        explicit = sorted(name for name, hold in self.model.holds.items() if hold.expires)
        name = explicit[which % len(explicit)] if explicit else self.pick(which)
        expires = self.clock.now() + hours * HOUR
        worst = self.compiled[self.model.holds[name].plan.name].prices.worst
        extension = Extension(expires, worst, ceiling, buffer)
        expected = outcome(lambda: self.model.extend(name, expires, ceiling, buffer))
        done = outcome(lambda: extend(self.engine, HoldId(name), extension))
        told = done if isinstance(done, Refusal | type) else None
        assert told == expected, (done, expected, self.engine.tail())
        assert told is not None or done == self.engine.tail(), (done, expected, self.engine.tail())

    @precondition(lambda self: self.ended)
    @rule(which=SOMEWHERE)
    def end_again(self, which: int) -> None:
        name = HoldId(sorted(self.ended)[which % len(self.ended)])
        extension = Extension(1, lambda *_: 0, None, 0)
        for again in (
            lambda: nodes.settle(self.engine, name, 1),
            lambda: charge.release(self.engine, name),
            lambda: charge.start(self.engine, charge.Held(name, 0, 0)),
            lambda: extend(self.engine, name, extension),
        ):
            assert outcome(again) is NotFound

    # Time, and what it brings.

    @rule(microseconds=st.sampled_from([1, HOUR // 2, HOUR, 7 * HOUR, DAY, 3 * WEEK]))
    def time_passes(self, microseconds: int) -> None:
        self.clock.advance(microseconds)

    @rule()
    def sweep(self) -> None:
        now = self.clock.now()
        dead = self.model.sweep(self.owner, now)
        assert sweep(self.engine) == len(dead)
        with self.engine.store.read() as txn:
            for name in dead:
                row = self.engine.store.holds.find(txn, HoldId(name))
                assert row is not None
                assert row.charged is not None
                self.ended[name] = (row.state, now, row.charged)

    @rule()
    def expire(self) -> None:
        for customer in self.model.customers:
            self.model.expire(customer, self.clock.now())
        expire_grants(self.engine)

    # What goes wrong.

    @rule(
        who=st.sampled_from(NAMES),
        fund=st.sampled_from(Fund),
        amount=st.sampled_from([-7, 13, 4_000]),
    )
    def corrupt_and_reconcile(self, who: str, fund: Fund, amount: int) -> None:
        if who not in self.model.customers:
            return
        customer, store, alerts = CustomerId(who), self.engine.store, self.engine.health().alerts
        with store.write() as txn:
            account = store.accounts.need(txn, customer)
            found = account.balance + amount
            if fund is Fund.WALLET:
                difference = Difference(customer, fund, found, account.balance)
                account = replace(account, balance=found)
            else:
                found = account.credit_used - amount
                difference = Difference(customer, fund, found, account.credit_used)
                account = replace(account, credit_used=found)
            store.accounts.put(txn, customer, account)
        assert len(verify(self.engine).faults) == 1
        assert reconcile(self.engine).differences == (difference,)
        assert self.engine.health().alerts == alerts + 1
        assert reconcile(self.engine).differences == ()
        self.model.corrupt(who, fund, amount)

    @rule()
    def close_and_open(self) -> None:
        self.engine.close()
        self.reopen()

    @rule()
    def kill_and_open(self) -> None:
        nodes.drop(self.engine)
        self.reopen()

    @rule(loss=st.sampled_from(["control", "state", "both"]))
    def kill_and_rebuild(self, loss: str) -> None:
        before = nodes.dump(self.engine)
        nodes.drop(self.engine)
        if loss != "state":
            (self.path / "control").unlink()
        if loss != "control":
            shutil.rmtree(self.path / "state")
        self.reopen()
        assert nodes.dump(self.engine) == before

    # What has to be true at any time.

    @invariant()
    def agrees(self) -> None:
        faults = verify(self.engine).faults
        assert faults == (), faults
        for name in self.model.customers:
            self.agrees_about_money(name)
            self.agrees_about_quotas(name)

    def agrees_about_money(self, name: str) -> None:
        expected, customer = self.model.customers[name], CustomerId(name)
        account = customers.get_account(self.engine, customer)
        rows = [row.entry for row in ledger.ledger(self.engine, customer, 10_000)[::-1]]
        entries = [(KIND_NAMES[row.kind], row.fund, row.amount) for row in rows]
        assert entries == expected.entries
        assert account.balance == sum(e.amount for e in rows if e.fund is Fund.WALLET)
        assert account.credit_used == -sum(e.amount for e in rows if e.fund is Fund.CREDIT)
        assert (account.balance, account.credit_used) == (
            self.model.balance(name),
            self.model.owed(name),
        )
        assert account.held == self.model.held(name)
        assert account.credit_held == self.model.held(name, Fund.CREDIT)
        assert account.open_holds == len(self.model.holds_of(name))
        assert (account.blocked_at is not None) == expected.blocked
        assert account.status is Status[expected.status.upper()]
        assert (account.plan, account.anchor) == (expected.plan, expected.anchor)
        assert account.credited_total == expected.credited
        assert account.spent_total == expected.spent
        assert account.lots == len(expected.lots())
        with self.engine.store.read() as txn:
            for source, source_id in expected.grants:
                row = self.engine.store.grants.get(txn, customer, source, source_id)
                grant = expected.grants[source, source_id]
                assert row is not None
                assert (row.refunded, row.unspent) == (grant.refunded, grant.unspent)

    def agrees_about_quotas(self, name: str) -> None:
        expected, customer = self.model.customers[name], CustomerId(name)
        with self.engine.store.read() as txn:
            rows = dict(self.engine.store.quotas.of(txn, customer))
            usage = self.engine.store.quotas.usage(txn, customer)
        assert set(rows) == set(expected.quotas)
        for quota, period in expected.quotas.items():
            row = rows[quota]
            assert (row.meters, row.money, row.units) == (
                period.meters,
                period.money,
                period.units,
            )
            assert (row.start, row.end, row.used) == (period.start, period.end, period.used)
            assert row.held == self.model.quota_held(name, quota)
            assert row.used + row.held <= row.units
        assert (usage is None) == (expected.usage is None)
        if usage is not None and expected.usage is not None:
            assert (usage.start, usage.end) == (expected.usage.start, expected.usage.end)
            assert plain(usage.used) == plain(expected.usage.used)
            open_counts = [hold.counted for hold in self.model.holds_of(name)]
            assert plain(usage.held) == plain(
                {m: sum(counts.get(m, 0) for counts in open_counts) for m in ("x", "y")}
            )

    @invariant()
    def agrees_about_holds(self) -> None:
        holds = self.engine.store.holds
        with self.engine.store.read() as txn:
            rows = {named.hold: named.row for named in holds.items(txn)}
            ended = {named.hold: named.row for named in holds.ended(txn)}
        assert set(rows) == set(self.model.holds)
        for name, hold in self.model.holds.items():
            check_hold(rows[HoldId(name)], hold)
        told = {n: r for n, r in ended.items() if r.customer != FILLER}
        assert {n: (r.state, r.ended, r.charged) for n, r in told.items()} == self.ended
        for row in (*rows.values(), *ended.values()):
            assert (row.ended is None) == (row.state is HoldState.OPEN)
            assert (row.charged is None) == (row.counts is None) == (row.ended is None)

    def teardown(self) -> None:
        self.engine.close()
        shutil.rmtree(self.home)

    def pick(self, which: int) -> str:
        return sorted(self.model.holds)[which % len(self.model.holds)]

    def reopen(self) -> None:
        self.engine = nodes.open_node(self.path, clock=self.clock)
        self.owner += 1


def plain(counts: Counts) -> Counts:
    return {meter: count for meter, count in counts.items() if count}


def whole(hold: ModelHold) -> int:
    """Return what a hold had before steps took of it, in micros."""
    quotas = zip(hold.parts, hold.taken, strict=False)
    taken = sum(used for part, used in quotas if part.money)
    return hold.amount + taken + sum(hold.within.values())


def check_hold(row: HoldRow, hold: ModelHold) -> None:
    parts = row.parts
    assert parts.quotas == tuple(QuotaPart(*part) for part in hold.parts)
    assert (parts.wallet, parts.credit, parts.order) == (hold.wallet, hold.credit, hold.order)
    assert (row.ceiling, row.counted) == (hold.ceiling, hold.counted)
    assert (row.used, row.others) == (hold.used, hold.others)
    assert (row.started, row.expires) == (hold.started, hold.expires)
    assert row.settle_price == hold.settle_price
    assert (row.step is None) == (hold.last is None)
    if row.step is not None:
        assert (row.step.counts, row.step.price) == hold.last
        charged = hold.charged or {Fund.WALLET: 0, Fund.CREDIT: 0}
        assert {Fund.WALLET: row.spent.wallet, Fund.CREDIT: row.spent.credit} == charged


TestEngineAgainstModel = EngineAgainstModel.TestCase
TestEngineAgainstModel.settings = settings(
    derandomize=True, max_examples=30, stateful_step_count=40, deadline=None
)
