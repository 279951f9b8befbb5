"""Ending the holds that nobody will end, by what the hold itself says; and grants at their date.

A worker that holds its lock is alive, and its holds are its own, however long a stream takes: no
timer ever ends a live call's hold. A free lock means dead, at once. Its own holds a worker ends
too, where the call that made one is gone without having ended it: who is alive claims. A hold
whose answer had not started is released; a started one, and one of a flat price, is settled at
its hold; one that was settled in steps, at its last step.
"""

from __future__ import annotations

from finomw.engine import records
from finomw.engine.due import expiries
from finomw.engine.engine import Engine
from finomw.errors import NotFound
from finomw.journal.workers import heal
from finomw.store.env import Txn
from finomw.store.holds import NOBODY
from finomw.types import HoldId, OnCrash, UsageStatus, WorkerId


def sweep(engine: Engine) -> int:
    """End all holds that nobody will end; return how many there were. Raises `RecordingFailed`."""
    engine.store.forget_dead_readers()
    with engine.store.read() as txn:
        holding = engine.store.holds.workers(txn)
    known = {slot.worker for slot in engine.control.slots() if slot.worker}
    ended = 0
    for worker in sorted(known | set(holding)):
        if worker != engine.worker and not engine.workers.alive(worker):
            ended += _end_all(engine, worker)
            heal(engine.control, engine.workers, engine.segments, engine.tail())
            engine.workers.forget(worker)
    engine.workers.forget_unborn(engine.directory.start_lock)
    return ended + end_unclaimed(engine) + _end_expired(engine)


def end_unclaimed(engine: Engine) -> int:
    """End this worker's own holds that no call claims; return how many. Raises `RecordingFailed`.

    Only the process itself knows them, so each one does this, whoever keeps house.
    """
    with engine.store.read() as txn:
        open_holds = engine.store.holds.ids_of(txn, engine.worker)
    # Claimed before there was a row, and until there is none: what was open when the rows were
    # read and is not claimed now has ended meanwhile, or was given up.
    unclaimed = [hold for hold in open_holds if hold not in engine.claims]
    return sum(_end(engine, hold, "no call claimed it") for hold in unclaimed)


def expire_grants(engine: Engine) -> int:
    """Take back what is unspent of grants whose date has passed; return how many there were.

    A customer's next call would do it first, but may never come. Raises `RecordingFailed`.
    """
    store, now = engine.store, engine.clock.now()
    commands: list[records.Expire] = []
    with store.read() as txn:
        for customer in store.grants.customers_with_lots(txn):
            account = store.accounts.need(txn, customer)
            commands += expiries(store, txn, customer, account, now)
    for command in commands:
        engine.execute(command)
    return len(commands)


def _end_expired(engine: Engine) -> int:
    """End the explicit holds whose expiry has passed."""
    with engine.store.read() as txn:
        explicit = engine.store.holds.of(txn, NOBODY)
    now = engine.clock.now()
    return sum(
        _end(engine, named.hold, "the hold expired")
        for named in explicit
        if named.row.expires is not None and named.row.expires <= now
    )


def _end_all(engine: Engine, worker: WorkerId) -> int:
    with engine.store.read() as txn:
        holds = engine.store.holds.of(txn, worker)
    return sum(_end(engine, named.hold, f"worker {worker} died") for named in holds)


def _end(engine: Engine, hold: HoldId, note: str) -> bool:
    """End one hold; ``False`` when another process was faster, or has just extended it."""

    def decide(txn: Txn) -> records.Settle | records.Release:
        _, row = engine.store.holds.need(txn, hold)
        now = engine.clock.now()
        if row.expires is not None and row.expires > now:
            raise NotFound(f"hold {hold} was extended")
        last = row.step
        if last is not None:
            said = f"{last.note}; {note}" if last.note else note
            return records.Settle(now, hold, last.price, last.counts, last.usage, said, last.used)
        if row.settle_price is not None:
            price, known = row.settle_price, UsageStatus.KNOWN
            return records.Settle(now, hold, price, row.ceiling, known, note)
        if row.started or row.on_crash is OnCrash.SETTLE:
            return records.Settle(now, hold, 0, {}, UsageStatus.PARTIAL, note, whole=True)
        return records.Release(now, hold, note)

    try:
        engine.decide(decide)
    except NotFound:
        return False
    return True
