"""Small node directories for tests: made, opened, dropped as a kill would drop them, compared."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from finomw import limits
from finomw.engine import charge
from finomw.engine.directory import create
from finomw.engine.engine import Engine
from finomw.engine.keys import hash_token
from finomw.engine.policy import BelowZero
from finomw.journal.files import Files
from finomw.testing.clock import ManualClock
from finomw.types import (
    CustomerId,
    HoldId,
    Lsn,
    Micros,
    OnCrash,
    PlanName,
    Refusal,
    RouteName,
    UsageStatus,
)

SEGMENT = limits.SEGMENT_SIZE_MIN
STATE = 4 * limits.MIB
ALICE = CustomerId("alice")
PLAN = PlanName("default")
ROUTE = RouteName("chat")
KEY = hash_token("fino_test")


def make(path: Path, state_size: int = STATE) -> Path:
    create(path, SEGMENT, state_size)
    return path


def open_node(path: Path, files: Files | None = None, clock: ManualClock | None = None) -> Engine:
    """Open an engine that nobody shares."""
    return Engine(path, clock or ManualClock(), files or Files(), BelowZero())


def drop(engine: Engine) -> None:
    """Let go of an engine as the system does when its process is killed: nothing is flushed."""
    if engine._worker is not None:
        engine._worker[1].close()
        engine._worker[2].close()
    engine._closed = True
    engine._opened.close()


def hold(
    engine: Engine,
    amount: Micros,
    customer: CustomerId = ALICE,
    *,
    buffer: Micros = 0,
    on_crash: OnCrash = OnCrash.RELEASE,
    flat: bool = False,
) -> charge.Held | Refusal:
    request = charge.HoldRequest(
        customer, KEY, ROUTE, amount, {"requests": 1}, buffer, on_crash, "v1"
    )
    if flat:
        request = request._replace(settle=lambda counts, used: amount)
    return charge.hold(engine, request)


def held(engine: Engine, amount: Micros, **options: Any) -> charge.Held:
    """Make a hold that must be admitted."""
    done = hold(engine, amount, **options)
    assert isinstance(done, charge.Held), done
    return done


def settle(engine: Engine, name: HoldId, price: Micros) -> charge.Ended:
    return charge.settle(engine, name, price, {"requests": 1}, UsageStatus.KNOWN)


def dump(engine: Engine) -> dict[str, object]:
    """Return all that the state says, to be compared."""
    store = engine.store
    with store.read() as txn:
        return {
            "tail": store.meta.tail(txn),
            "workers": store.meta.last_worker(txn),
            "accounts": list(store.accounts.items(txn)),
            "ledger": list(store.ledger.items(txn)),
            "keys": list(store.keys.items(txn)),
            "holds": list(store.holds.items(txn)),
            "ended": list(store.holds.ended(txn)),
            **{
                name: [(bytes(key), bytes(row)) for key, row in txn.cursor(db=table)]
                for name, table in {
                    "quotas": store.quotas._quotas,
                    "usage": store.quotas._usage,
                    "grants": store.grants._table,
                    "lots": store.grants._lots,
                    "names": store.ledger._names,
                }.items()
            },
        }


def journal_bytes(path: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in (path / "journal").iterdir()}


def fill_to(engine: Engine, lsn: Lsn, customer: CustomerId = ALICE) -> None:
    """Hold and settle nothing until the tail has passed an LSN."""
    while engine.tail() < lsn:
        settle(engine, held(engine, 0, customer=customer).hold, 0)
