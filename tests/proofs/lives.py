"""Lives of a node that is watched: what it did, what it acknowledged, what it must still be.

Each record that the engine commits is done to the model ledger too, and the model is kept as it
was after each of them. So whatever happens to the node, there is one answer to what it may be
afterwards: the model after some record, and none before the last acknowledged one.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from proving import ProofFailed

# isort: split

import nodes

from finomw.engine import charge, customers, grants, records
from finomw.engine.checkpoint import make_checkpoint, prune
from finomw.engine.directory import create
from finomw.engine.engine import Engine
from finomw.engine.policy import BelowZero
from finomw.engine.verify import verify
from finomw.errors import FinomwError
from finomw.journal.files import Files
from finomw.money.entries import KIND_NAMES
from finomw.node.housekeeper import Housekeeper
from finomw.testing.calls import ModelLedger, ModelRequest
from finomw.testing.clock import ManualClock
from finomw.testing.plans import DAY, ModelPlan, ModelPrice
from finomw.types import CustomerId, Fund, HoldId, OnCrash, PlanName, Refusal, UsageStatus

SEGMENT = 1 << 16
STATE = 1 << 20
FAT = "x" * 20_000
"""The choice of a call whose record fills a third of a segment."""
MODEL_PLAN = ModelPlan("default", {"n": ModelPrice((1,))}, 1, (), (Fund.WALLET,), DAY)
"""One micro for each ``n``."""

Command = records.AnyCommand
Effect = Callable[[Any], object]


class Money(NamedTuple):
    """What one customer has, spent and owes, and every entry that made it so."""

    balance: int
    held: int
    credited: int
    spent: int
    credit_used: int
    open_holds: int
    entries: tuple[tuple[str, Fund, int], ...]


Books = dict[str, Money]


def books_of_model(model: ModelLedger) -> Books:
    """Return everybody's money as the model has it."""
    return {
        name: Money(
            model.balance(name),
            model.held(name),
            account.credited,
            account.spent,
            model.owed(name),
            len(model.holds_of(name)),
            tuple(tuple(entry) for entry in account.entries),  # type: ignore[misc]
        )
        for name, account in model.customers.items()
    }


def books_of_engine(engine: Engine) -> Books:
    """Return everybody's money as the engine has it."""
    entries: dict[str, list[tuple[str, Fund, int]]] = {}
    store = engine.store
    with store.read() as txn:
        for customer, entry in store.ledger.items(txn):
            line = (KIND_NAMES[entry.kind], entry.fund, entry.amount)
            entries.setdefault(customer, []).append(line)
        return {
            customer: Money(
                account.balance,
                account.held,
                account.credited_total,
                account.spent_total,
                account.credit_used,
                account.open_holds,
                tuple(entries.get(customer, ())),
            )
            for customer, account in store.accounts.items(txn)
        }


class Watched(Engine):
    """An engine that tells its life of each record it commits."""

    def __init__(self, life: Life, files: Files) -> None:
        self.life = life
        super().__init__(life.path, life.clock, files, BelowZero())

    def _transact(self, decide: Callable[[Any], Any]) -> Any:
        commands: list[Command] = []

        def watched(txn: Any) -> Any:
            commands.append(decide(txn))
            return commands[-1]

        before = self.tail()
        done = super()._transact(watched)
        if self.tail() != before:
            self.life.committed(commands[-1])
        return done


class Life:
    """One node from its making on, on files that may fail; `errors` is what it was refused."""

    def __init__(self, path: Path, files: Files) -> None:
        self.path = path
        self.files = files
        self.clock = ManualClock()
        self.model = ModelLedger()
        self.kept = [pickle.dumps(self.model)]
        self.acknowledged = 0
        self.errors: list[FinomwError] = []
        self._engine: Watched | None = None
        self._effect: Effect | None = None
        self._names = 0

    @property
    def engine(self) -> Watched:
        assert self._engine is not None
        return self._engine

    def committed(self, command: Command) -> None:
        """Do to the model what the engine has committed."""
        if not isinstance(command, records.OpenWorker):
            assert self._effect is not None, command
            self._effect(command)
        self.kept.append(pickle.dumps(self.model))

    def model_after(self, records: int) -> ModelLedger:
        """Return the model as it was after so many records."""
        model: ModelLedger = pickle.loads(self.kept[records])
        return model

    # What happens to a node; each returns whether it was done.

    def _try(self, act: Callable[[], object], effect: Effect | None = None) -> bool:
        """Do something that may fail, but with one of our errors and nothing else."""
        self._effect = effect
        try:
            act()
        except FinomwError as error:
            self.errors.append(error)
            return False
        finally:
            self._effect = None
        return True

    def _acknowledged(self, act: Callable[[], object], effect: Effect | None = None) -> bool:
        """Do something whose success says that all before it is on disk."""
        failed = self.engine.control.failed
        done = self._try(act, effect)
        if done and failed:
            raise ProofFailed("acknowledged after a failed flush")
        if done:
            self.acknowledged = len(self.kept) - 1
            end = self.engine.tail()
            if self.engine.durable() < end:
                raise ProofFailed("acknowledged what is not durable")
        return done

    def make(self) -> bool:
        return self._try(lambda: create(self.path, SEGMENT, STATE, self.files))

    def open(self) -> bool:
        """Open the node; it must be what it was, or an earlier self that forgot nothing said."""

        def act() -> None:
            self._engine = Watched(self, self.files)

        if not self._try(act):
            return False
        self.agree()
        return True

    def agree(self) -> None:
        """Prove that the engine is the model after a record, and go on from there."""
        tail = self.engine.store.tail()
        count = tail.number
        assert self.acknowledged <= count < len(self.kept), (self.acknowledged, count)
        self.model = self.model_after(count)
        del self.kept[count + 1 :]
        assert books_of_engine(self.engine) == books_of_model(self.model)
        with self.engine.store.read() as txn:
            holds = {named.hold for named in self.engine.store.holds.items(txn)}
        assert holds == set(self.model.holds)

        def check() -> None:
            faults = verify(self.engine).faults
            assert faults == (), faults

        self._try(check)

    def close(self) -> None:
        """Close the engine: that never fails."""
        self.engine.close()
        self._engine = None

    def kill(self) -> None:
        """Let go of the engine as the system does when its process is killed."""
        if self._engine is not None:
            nodes.drop(self._engine)
            self._engine = None

    def meet(self, who: str, amount: int) -> None:
        """Add a customer with money."""
        customer, clock = CustomerId(who), self.clock
        self._acknowledged(
            lambda: customers.add_customer(self.engine, customer, PlanName("default")),
            lambda _: self.model.add_customer(who, "default", clock.now()),
        )
        self.give(who, amount)

    def give(self, who: str, amount: int, note: str = "") -> None:
        """Give money; asked for once more, it is not given twice."""
        self._names += 1
        name = ("test", str(self._names))
        for _ in range(2):
            self._acknowledged(
                lambda: grants.grant(self.engine, CustomerId(who), amount, *name, note),
                lambda _: self.model.grant(who, amount, name, note, self.clock.now()),
            )

    def hold(
        self, who: str, amount: int, *, choice: str = "", on_crash: OnCrash = OnCrash.RELEASE
    ) -> HoldId | None:
        """Set money aside; return the hold, or ``None`` where there was trouble or no money."""
        wanted = ModelRequest(who, MODEL_PLAN, {"n": amount}, 0, on_crash)
        if who not in self.model.customers:
            return None
        expected = self.model.prepare(wanted, self.clock.now())
        made: list[HoldId] = []

        def effect(command: records.Hold) -> None:
            hold = self.engine.store.holds.id_of(command.worker, command.number)
            assert not isinstance(expected, Refusal), expected
            self.model.open(hold, expected)

        def act() -> None:
            request = charge.HoldRequest(
                CustomerId(who),
                nodes.KEY,
                nodes.ROUTE,
                amount,
                {"n": amount},
                0,
                on_crash,
                "v1",
                choice,
            )
            done = charge.hold(self.engine, request)
            if isinstance(expected, Refusal):
                assert done is expected
            else:
                assert isinstance(done, charge.Held), done
                made.append(done.hold)

        self._try(act, effect)
        return made[0] if made else None

    def settle(self, hold: HoldId, price: int) -> None:
        """Charge for a hold, and wait until that is on disk."""
        counts = {"n": price}

        def act() -> None:
            charge.settle(self.engine, hold, price, counts, UsageStatus.KNOWN)
            self.engine.flush()

        self._acknowledged(act, lambda _: self.model.settle(hold, counts))

    def release(self, hold: HoldId) -> None:
        """Give a hold back, and wait until that is on disk."""

        def act() -> None:
            charge.release(self.engine, hold)
            self.engine.flush()

        self._acknowledged(act, lambda _: self.model.release(hold))

    def call(self, who: str, amount: int, price: int, choice: str = "") -> None:
        """Hold and settle."""
        hold = self.hold(who, amount, choice=choice)
        if hold is not None:
            self.settle(hold, price)

    def flush(self) -> None:
        self._acknowledged(self.engine.flush)

    def keep_house(self) -> None:
        """Let the housekeeper do everything once; what dead workers held ends."""

        def effect(command: Command) -> None:
            if isinstance(command, records.Release):
                self.model.release(command.hold)
            else:
                assert isinstance(command, records.Settle)
                self.model.settle_whole(command.hold)

        def act() -> None:
            housekeeper = Housekeeper(self.engine)
            try:
                housekeeper.round()
            finally:
                housekeeper.stop()

        self._try(act, effect)

    def checkpoint(self) -> None:
        """Make a checkpoint, and remove what of the journal nobody needs any more."""

        def act() -> None:
            make_checkpoint(self.engine)
            prune(self.engine, 0)

        self._try(act)


def live(life: Life) -> None:
    """Live a whole life, as far as the disk lets: every kind of file operation is in it."""
    if not life.make():
        return
    if not life.open():
        return
    life.meet("alice", 5_000)
    life.meet("bob", 80)
    life.call("alice", 50, 60)
    small = life.hold("bob", 50)
    for amount in (10, 20, 30, 40):
        life.call("alice", amount, amount, FAT)
    if small is not None:
        life.release(small)
    life.checkpoint()
    life.call("bob", 90, 90)
    life.keep_house()
    life.hold("alice", 70, on_crash=OnCrash.SETTLE)
    life.hold("bob", 7, choice=FAT)
    life.close()
    if not life.open():
        return
    life.keep_house()
    life.call("alice", 90, 99, FAT)
    life.checkpoint()
    life.hold("bob", 5)
    life.kill()
    if not life.open():
        return
    life.keep_house()
    life.call("bob", 3, 2)
    life.kill()
    (life.path / "control").unlink()
    if life.open():
        life.call("bob", 2, 1)
        life.close()
