"""Ending the holds of dead workers, by what the hold itself says.

A worker that holds its lock is alive, and its holds are its own, however long a stream takes: no
timer ever ends a live call's hold. A free lock means dead, at once. A hold whose answer had not
started is released; a started one, and one of a flat price, is settled at its hold.
"""

from __future__ import annotations

from finomw.engine import charge
from finomw.engine.engine import Engine
from finomw.errors import NotFound
from finomw.journal.workers import heal
from finomw.types import HoldId, OnCrash, UsageStatus, WorkerId


def sweep(engine: Engine) -> int:
    """End the holds of every dead worker; return how many there were. Raises `RecordingFailed`."""
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
    return ended


def _end_all(engine: Engine, worker: WorkerId) -> int:
    with engine.store.read() as txn:
        holds = engine.store.holds.of(txn, worker)
    return sum(_end(engine, hold, f"worker {worker} died") for hold in holds)


def _end(engine: Engine, hold: HoldId, note: str) -> bool:
    """End one hold; ``False`` when another process was faster."""
    try:
        with engine.store.read() as txn:
            _, row = engine.store.holds.need(txn, hold)
        if row.started or row.on_crash is OnCrash.SETTLE:
            flat = row.on_crash is OnCrash.SETTLE and not row.started
            usage = UsageStatus.KNOWN if flat else UsageStatus.PARTIAL
            charge.settle(engine, hold, row.amount, row.ceiling if flat else {}, usage, note)
        else:
            charge.release(engine, hold, note)
    except NotFound:
        return False
    return True
