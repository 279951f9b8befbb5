"""Verify: prove that what is stored adds up, while workers run.

Reads the journal's chain from where it can begin to the tail of one snapshot of the state, and in
the same snapshot compares every balance with the sum of its ledger and every ``held`` with the open
holds. Reads only; what it finds is returned, not mended.
"""

from __future__ import annotations

from collections import Counter
from typing import NamedTuple

from finomw.engine.checkpoint import oldest_start
from finomw.engine.engine import Engine
from finomw.errors import JournalDamaged
from finomw.journal.format import Tail
from finomw.journal.reader import Reader
from finomw.journal.recovery import has_record
from finomw.store.env import Txn
from finomw.types import CustomerId, Fund, Lsn


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
        checked = _check_state(engine, txn)
    faults = check_journal(engine, tail) + checked.faults
    return Verified(
        tail.number, tail.end, checked.customers, checked.entries, checked.open_holds, tuple(faults)
    )


def check_journal(engine: Engine, tail: Tail) -> list[str]:
    """Follow the chain to the tail that the state names; return what is wrong with it.

    It begins where a start could: at LSN 0, or at the tail of the oldest kept checkpoint.
    """
    segments, start = engine.segments, oldest_start(engine)
    if start is None:
        return [f"{segments.directory}: was pruned, and no checkpoint says what came before"]
    reader = Reader(segments, start)
    try:
        if start.end < tail.end and has_record(segments, start):
            for record in reader:
                if record.end >= tail.end:
                    break
    except JournalDamaged as error:
        return [str(error)]
    if reader.tail == tail or start.end > tail.end:
        return []
    if oldest_start(engine) != start:
        # It was pruned meanwhile, maybe under the reader.
        return check_journal(engine, tail)
    path = segments.path(segments.base_of(reader.tail.end - 1))
    return [
        f"{path}: the journal's chain ends at LSN {reader.tail.end} after "
        f"{reader.tail.number} records; the state says LSN {tail.end} after {tail.number}"
    ]


def ledger_sums(engine: Engine, txn: Txn) -> Counter[tuple[CustomerId, Fund]]:
    """Return the sum of each customer's and fund's entries, in micros."""
    sums: Counter[tuple[CustomerId, Fund]] = Counter()
    for customer, entry in engine.store.ledger.items(txn):
        sums[customer, entry.fund] += entry.amount
    return sums


class _Checked(NamedTuple):
    customers: int
    entries: int
    open_holds: int
    faults: list[str]


def _check_state(engine: Engine, txn: Txn) -> _Checked:
    """Compare sums in one snapshot: accounts with entries and holds, quotas with holds."""
    store = engine.store
    sums = ledger_sums(engine, txn)
    held: Counter[tuple[CustomerId, str]] = Counter()
    open_holds = 0
    for _, row in store.holds.items(txn):
        open_holds += 1
        held[row.customer, "open holds"] += 1
        held[row.customer, "held"] += row.parts.wallet
        held[row.customer, "credit_held"] += row.parts.credit
        for part in row.parts.quotas:
            held[row.customer, f"quota {part.quota} from {part.start}"] += part.amount
        for meter, count in row.counted.items():
            held[row.customer, f"usage of {meter}"] += count
    faults = []
    customers = 0
    for customer, account in store.accounts.items(txn):
        customers += 1
        usage = store.quotas.usage(txn, customer)
        pairs = [
            ("balance", account.balance, sums.pop((customer, Fund.WALLET), 0)),
            ("credit_used", account.credit_used, -sums.pop((customer, Fund.CREDIT), 0)),
            ("open holds", account.open_holds, held.pop((customer, "open holds"), 0)),
            ("held", account.held, held.pop((customer, "held"), 0)),
            ("credit_held", account.credit_held, held.pop((customer, "credit_held"), 0)),
        ]
        for name, quota in store.quotas.of(txn, customer):
            key = f"quota {name} from {quota.start}"
            pairs.append((key, quota.held, held.pop((customer, key), 0)))
        for meter, count in (usage.held if usage else {}).items():
            key = f"usage of {meter}"
            pairs.append((key, count, held.pop((customer, key), 0)))
        faults += [
            f"{customer}: {what} is {says}, its entries and open holds come to {total}"
            for what, says, total in pairs
            if says != total
        ]
    known = {customer for customer, _ in store.accounts.items(txn)}
    owners = {customer for customer, _ in (*sums, *held)}
    faults += [f"{customer}: entries or holds without a customer" for customer in owners - known]
    return _Checked(customers, store.ledger.count(txn), open_holds, faults)
