"""Verify: prove that what is stored adds up, while workers run.

Reads the journal's chain from its beginning to the tail of one snapshot of the state, and in the
same snapshot compares every balance with the sum of its ledger and every ``held`` with the open
holds. Reads only; what it finds is returned, not mended.
"""

from __future__ import annotations

from collections import defaultdict
from typing import NamedTuple

from finomw.engine.engine import Engine
from finomw.errors import JournalDamaged
from finomw.journal.format import START, Tail
from finomw.journal.reader import Reader
from finomw.store.env import Txn
from finomw.types import CustomerId, Lsn


class Verified(NamedTuple):
    """What was checked, and every fault found, a line each."""

    records: int
    end: Lsn
    customers: int
    entries: int
    open_holds: int
    faults: tuple[str, ...]


def verify(engine: Engine) -> Verified:
    """Check the whole directory against itself; raises only when it cannot be read at all."""
    with engine.store.read() as txn:
        tail = engine.store.meta.tail(txn)
        customers, entries, holds, faults = _check_state(engine, txn)
    faults = _check_journal(engine, tail) + faults
    return Verified(tail.number, tail.end, customers, entries, holds, tuple(faults))


def _check_journal(engine: Engine, tail: Tail) -> list[str]:
    """Follow the chain to the tail that the state names."""
    reader = Reader(engine.segments, START)
    try:
        if tail.number:
            for record in reader:
                if record.end >= tail.end:
                    break
    except JournalDamaged as error:
        return [str(error)]
    if reader.tail == tail:
        return []
    path = engine.segments.path(engine.segments.base_of(reader.tail.end - 1))
    return [
        f"{path}: the journal's chain ends at LSN {reader.tail.end} after "
        f"{reader.tail.number} records; the state says LSN {tail.end} after {tail.number}"
    ]


def _check_state(engine: Engine, txn: Txn) -> tuple[int, int, int, list[str]]:
    """Compare sums in one snapshot."""
    store = engine.store
    sums: defaultdict[CustomerId, int] = defaultdict(int)
    entries = 0
    for customer, entry in store.ledger.items(txn):
        sums[customer] += entry.amount
        entries += 1
    held: defaultdict[CustomerId, int] = defaultdict(int)
    open_holds = 0
    for _, row in store.holds.items(txn):
        held[row.customer] += row.amount
        open_holds += 1
    faults = []
    customers = 0
    for customer, account in store.accounts.items(txn):
        customers += 1
        total, set_aside = sums.pop(customer, 0), held.pop(customer, 0)
        if account.balance != total:
            faults.append(f"{customer}: balance is {account.balance}, its ledger sums to {total}")
        if account.held != set_aside:
            faults.append(f"{customer}: held is {account.held}, its open holds are {set_aside}")
    faults += [f"{customer}: a ledger without a customer" for customer in sums]
    faults += [f"{customer}: open holds without a customer" for customer in held]
    return customers, entries, open_holds, faults
