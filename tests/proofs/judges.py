"""What must hold of everything that a crash can leave, judged against what really happened.

Quickly for every image: the journal that is recovered is an exact prefix of what was committed,
with all that was said to be durable, and behind it at most one record that was not committed.
Thoroughly, once for each journal that came out: a new machine opens the image, replays it through
the engine's rules into a real LMDB, sweeps, and must agree with the model ledger about everything.
"""

from __future__ import annotations

from bisect import bisect_right
from random import Random

import msgspec
import worlds

from finomw.engine import records
from finomw.engine.engine import Engine
from finomw.engine.sweep import sweep
from finomw.engine.verify import verify
from finomw.errors import FinomwError
from finomw.journal.format import START, StoredRecord, Tail
from finomw.journal.writer import Encoded
from finomw.testing.calls import ModelLedger, ModelRequest
from finomw.testing.disk import SimulatedDisk
from finomw.testing.model import ModelHold
from finomw.testing.plans import DAY, ModelPlan, ModelPrice
from finomw.types import Fund, Lsn

PLAN = ModelPlan("default", {"x": ModelPrice((1,))}, 1, (), (Fund.WALLET,), DAY)
"""One micro for each ``x``."""


class Broken(Exception):
    """An image of what the disk could hold breaks a promise."""


class Truth:
    """What happened: what was committed, what was ever stored, what was said to be durable."""

    def __init__(self) -> None:
        self.committed: list[Tail] = []
        self.stored: dict[tuple[Lsn, int], int] = {}
        self.durable: Lsn = 0

    def commit(self, record: Encoded) -> None:
        self.committed.append(record.tail)

    def store(self, record: Encoded) -> None:
        self.stored[record.tail.lsn, record.tail.crc] = record.tail.number

    def recovered(self, found: list[StoredRecord]) -> None:
        """Go on from what a recovery found."""
        self.committed = [
            Tail(record.lsn, record.end, record.crc, number)
            for number, record in enumerate(found, start=1)
        ]

    def checkpoint(self, dice: Random) -> Tail:
        """Return a place that a start may read from: the beginning, or what is durable."""
        durable = bisect_right(self.committed, self.durable, key=lambda tail: tail.end)
        before = durable - dice.randrange(8)
        return self.committed[before - 1] if before > 0 and dice.random() < 0.75 else START

    def judge(self, found: list[StoredRecord], start: Tail = START) -> int:
        """Return how many ghosts there are, 0 or 1; raise `Broken` for anything worse.

        ``found`` is what was recovered behind ``start``.
        """
        committed = self.committed
        common = start.number
        for record, real in zip(found, committed[common:], strict=False):
            if (record.lsn, record.end, record.crc) != real[:3]:
                break
            common += 1
        if common < len(committed) and committed[common].end <= self.durable:
            raise Broken(
                f"LSN {committed[common].lsn} is lost, but everything up to {self.durable} was "
                "said to be durable"
            )
        ghosts = found[common - start.number :]
        if len(ghosts) > 1:
            raise Broken(f"{len(ghosts)} records after LSN {ghosts[0].lsn} were never committed")
        for ghost in ghosts:
            if self.stored.get((ghost.lsn, ghost.crc)) != common + 1:
                raise Broken(f"the record at LSN {ghost.lsn} was invented")
        return len(ghosts)


def judge_books(disk: SimulatedDisk, directory: worlds.SimulatedDirectory) -> None:
    """Open an image, sweep, and compare all it says with the model ledger."""
    try:
        with worlds.opened_image(disk, directory) as engine:
            _judge_engine(engine)
    except FinomwError as error:
        raise Broken(f"an image does not open: {error!r}") from error


def _judge_engine(engine: Engine) -> None:
    found = worlds.read_back(engine.segments.files, engine.directory).records
    model = model_of(found, engine.directory.node.short_id)
    _compare(engine, model, "replayed")
    living = int(engine.worker)
    model.sweep(living, engine.clock.now())
    sweep(engine)
    _compare(engine, model, "swept")
    with engine.store.read() as txn:
        stranded = list(engine.store.holds.items(txn))
    if stranded:
        raise Broken(f"holds are stranded: {stranded}")
    faults = verify(engine).faults
    if faults:
        raise Broken("; ".join(faults))


def _compare(engine: Engine, model: ModelLedger, when: str) -> None:
    with engine.store.read() as txn:
        accounts = dict(engine.store.accounts.items(txn))
    if set(accounts) != set(model.customers):
        raise Broken(f"{when}: customers are {sorted(accounts)}, not {sorted(model.customers)}")
    for customer, account in accounts.items():
        books = model.customers[customer]
        says = (account.balance, account.held, account.spent_total, account.credited_total)
        must = (model.balance(customer), model.held(customer), books.spent, books.credited)
        if says != must:
            raise Broken(f"{when}: {customer} has {says}, the model {must}")
        if (account.blocked_at is not None) != books.blocked:
            raise Broken(f"{when}: the block mark of {customer} is not the model's")
        if account.credited_total != account.balance + account.held + account.spent_total:
            raise Broken(f"{when}: money of {customer} was made or lost")


def model_of(found: list[StoredRecord], node: str) -> ModelLedger:
    """Work out with the model what records come to."""
    model = ModelLedger()
    for record in found:
        try:
            command, _ = records.decode(record.body)
        except msgspec.MsgspecError as error:
            raise Broken(f"the record at LSN {record.lsn} cannot be read") from error
        _redo(model, command, node)
    return model


def _redo(model: ModelLedger, command: records.AnyCommand, node: str) -> None:
    match command:
        case records.OpenWorker():
            pass
        case records.AddCustomer():
            model.add_customer(command.customer, command.plan, command.at, command.buffer)
        case records.Grant():
            name = (command.source, command.source_id)
            repeated = model.grant(command.customer, command.amount, name, command.note, command.at)
            if repeated:
                raise Broken(f"the grant {name} was recorded twice")
        case records.Hold():
            request = ModelRequest(
                command.customer,
                PLAN,
                command.ceiling,
                command.buffer,
                command.on_crash,
                owner=command.worker,
                flat=command.settle_price is not None,
            )
            hold = model.prepare(request, command.at)
            if not isinstance(hold, ModelHold) or hold.wallet != command.parts.wallet:
                raise Broken(f"the model does not admit {command}: {hold}")
            model.open(f"{node}-{command.worker}-{command.number}", hold)
        case records.Start():
            model.start(command.hold)
        case records.Settle(whole=True):
            model.settle_whole(command.hold)
        case records.Settle():
            model.settle(command.hold, command.counts)
        case records.Release():
            model.release(command.hold)
        case _:
            raise Broken(f"no history makes {command}")
