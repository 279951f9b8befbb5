"""The engine against the model ledger: any sequence of operations, kills and replays agrees."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import nodes
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from finomw.engine import charge, customers
from finomw.engine.sweep import sweep
from finomw.engine.verify import verify
from finomw.errors import Conflict, NotFound
from finomw.money.account import admit
from finomw.money.entries import KIND_NAMES
from finomw.testing.clock import ManualClock
from finomw.testing.model import ModelLedger
from finomw.types import CustomerId, HoldId, OnCrash, PlanName, Refusal

A, B, NOBODY = CustomerId("a"), CustomerId("b"), CustomerId("nobody")
FILLER = CustomerId("filler")
"""Not in the model; its records bring the end of the segment near."""
CUSTOMERS = st.sampled_from([A, B, A, B, NOBODY])
AMOUNTS = st.one_of(st.integers(0, 300), st.sampled_from([0, 1, 100, 500]))
SOMEWHERE = st.integers(0, 2**16)
Result = TypeVar("Result")


def outcome(act: Callable[[], Result]) -> Result | type[Exception]:
    """Return what came out, or which of the expected errors."""
    try:
        return act()
    except (Conflict, NotFound) as error:
        return type(error)


class EngineAgainstModel(RuleBasedStateMachine):
    """Every rule does the same to both and compares what they answer."""

    def __init__(self) -> None:
        super().__init__()
        self.home = Path(tempfile.mkdtemp(prefix="finomw-model-"))
        self.path = nodes.make(self.home / "node", 1 << 20)
        self.clock = ManualClock()
        self.engine = nodes.open_node(self.path, clock=self.clock)
        self.model = ModelLedger()
        self.owner = 0
        self.ended: list[str] = []

    @initialize(buffer=st.sampled_from([None, 0, 50]), near_the_end=st.booleans())
    def add_customers(self, buffer: int | None, near_the_end: bool) -> None:
        if near_the_end:
            customers.add_customer(self.engine, FILLER, PlanName("default"))
            nodes.fill_to(self.engine, nodes.SEGMENT - 2_000, FILLER)
        customers.add_customer(self.engine, A, PlanName("default"))
        customers.add_customer(self.engine, B, PlanName("default"), buffer=buffer)
        self.model.add_customer(A)
        self.model.add_customer(B, buffer)

    @rule(customer=CUSTOMERS)
    def add_again(self, customer: CustomerId) -> None:
        if customer != NOBODY:
            with pytest.raises(Conflict):
                customers.add_customer(self.engine, customer, PlanName("default"))

    @rule(
        customer=CUSTOMERS,
        amount=st.sampled_from([100, 250, 250, 1000]),
        name=st.sampled_from("123456"),
        note=st.sampled_from(["", "", "", "a bonus"]),
    )
    def grant(self, customer: CustomerId, amount: int, name: str, note: str) -> None:
        def give() -> bool:
            return customers.grant(self.engine, customer, amount, "test", name, note).repeated

        expected = outcome(lambda: self.model.grant(customer, amount, "test", name, note))
        assert outcome(give) == expected

    @rule(
        customer=CUSTOMERS,
        amount=AMOUNTS,
        buffer=st.sampled_from([0, 0, 1, 50, 1000]),
        on_crash=st.sampled_from(OnCrash),
    )
    def hold(self, customer: CustomerId, amount: int, buffer: int, on_crash: OnCrash) -> None:
        expected = self.model.refusal(customer, amount, buffer)
        done = nodes.hold(self.engine, amount, customer, buffer=buffer, on_crash=on_crash)
        if isinstance(done, Refusal):
            assert done is expected
        else:
            assert expected is None
            assert (
                self.model.hold(customer, done.hold, amount, buffer, on_crash, self.owner) is None
            )

    @precondition(lambda self: self.model.holds)
    @rule(which=SOMEWHERE)
    def start(self, which: int) -> None:
        name = self.pick(which)
        charge.start(self.engine, charge.Held(HoldId(name), 0, 0))
        self.model.start(name)

    @precondition(lambda self: self.model.holds)
    @rule(which=SOMEWHERE, price=st.sampled_from(["below", "at", "above", "nothing", "far above"]))
    def settle(self, which: int, price: str) -> None:
        name = self.pick(which)
        amount = self.model.holds[name].amount
        micros = {
            "below": amount // 2,
            "at": amount,
            "above": amount + 1,
            "nothing": 0,
            "far above": amount + 700,
        }[price]
        self.model.settle(name, micros)
        ended = nodes.settle(self.engine, HoldId(name), micros)
        assert ended.charged == micros
        self.ended.append(name)

    @precondition(lambda self: self.model.holds)
    @rule(which=SOMEWHERE)
    def release(self, which: int) -> None:
        name = self.pick(which)
        customer = self.model.release(name)
        ended = charge.release(self.engine, HoldId(name))
        assert ended.charged == 0
        assert ended.account.balance == self.model.balance(customer)
        self.ended.append(name)

    @precondition(lambda self: self.ended)
    @rule(which=SOMEWHERE)
    def end_again(self, which: int) -> None:
        name = HoldId(self.ended[which % len(self.ended)])
        for again in (
            lambda: nodes.settle(self.engine, name, 1),
            lambda: charge.release(self.engine, name),
            lambda: charge.start(self.engine, charge.Held(name, 0, 0)),
        ):
            assert outcome(again) is NotFound

    @rule(microseconds=st.integers(1, 10**9))
    def time_passes(self, microseconds: int) -> None:
        self.clock.advance(microseconds)

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

    @rule()
    def sweep(self) -> None:
        self.ended += [n for n, hold in self.model.holds.items() if hold.owner != self.owner]
        assert sweep(self.engine) == self.model.sweep(self.owner)

    @invariant()
    def agrees(self) -> None:
        for customer, expected in self.model.customers.items():
            account = customers.get_account(self.engine, CustomerId(customer))
            rows = customers.ledger(self.engine, CustomerId(customer), 10_000)[::-1]
            entries = [(KIND_NAMES[row.entry.kind], row.entry.amount) for row in rows]
            assert entries == expected.entries
            assert account.balance == sum(amount for _, amount in entries)
            assert account.balance == self.model.balance(customer)
            assert account.held == self.model.held(customer)
            assert (account.blocked_at is not None) == expected.blocked
            for amount in (0, 1, 100, 1000):
                for buffer in (0, 50):
                    effective = buffer if account.buffer is None else account.buffer
                    assert admit(account, amount, effective) is self.model.refusal(
                        customer, amount, buffer
                    )
        with self.engine.store.read() as txn:
            holds = {name: row.amount for name, row in self.engine.store.holds.items(txn)}
        assert holds == {name: hold.amount for name, hold in self.model.holds.items()}

    def teardown(self) -> None:
        assert verify(self.engine).faults == ()
        self.engine.close()
        shutil.rmtree(self.home)

    def pick(self, which: int) -> str:
        return sorted(self.model.holds)[which % len(self.model.holds)]

    def reopen(self) -> None:
        self.engine = nodes.open_node(self.path, clock=self.clock)
        self.owner += 1


TestEngineAgainstModel = EngineAgainstModel.TestCase
TestEngineAgainstModel.settings = settings(
    derandomize=True, max_examples=25, stateful_step_count=40, deadline=None
)
