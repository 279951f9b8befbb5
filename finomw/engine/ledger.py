"""Reading a customer's ledger: newest first, filtered, with the balance after each entry.

The balance after an entry is worked out backwards from the account: the newest entry left what the
account says now. So the last entries of a customer cost the same however long the ledger is.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from finomw.engine.engine import Engine
from finomw.money.entries import Entry
from finomw.types import CustomerId, EntryKind, Fund, Micros, UnixMicroseconds


class Line(NamedTuple):
    """An entry and what it left in its fund: the balance, or minus what is owed on the credit.

    ``number`` is the journal record's, the same for all entries that were made together.
    """

    number: int
    entry: Entry
    left: Micros


class Filter(NamedTuple):
    """Which entries to return: from ``since`` up to, but not including, ``until``."""

    since: UnixMicroseconds | None = None
    until: UnixMicroseconds | None = None
    kinds: frozenset[EntryKind] = frozenset()
    source: str = ""

    def takes(self, entry: Entry) -> bool:
        """Say whether an entry is one of those."""
        return (
            (self.since is None or entry.at >= self.since)
            and (self.until is None or entry.at < self.until)
            and (not self.kinds or entry.kind in self.kinds)
            and (not self.source or entry.source == self.source)
        )


def ledger(
    engine: Engine, customer: CustomerId, limit: int, wanted: Filter | None = None
) -> list[Line]:
    """Return up to ``limit`` of a customer's entries, newest first. Raises `NotFound`."""
    wanted = wanted or Filter()
    lines: list[Line] = []
    for line in _backwards(engine, customer):
        if len(lines) >= limit:
            break
        if wanted.takes(line.entry):
            lines.append(line)
    return lines


def _backwards(engine: Engine, customer: CustomerId) -> Iterator[Line]:
    with engine.store.read() as txn:
        account = engine.store.accounts.need(txn, customer)
        left = {Fund.WALLET: account.balance, Fund.CREDIT: -account.credit_used}
        for row in engine.store.ledger.newest_first(txn, customer):
            fund = row.entry.fund
            yield Line(row.number, row.entry, left[fund])
            left[fund] -= row.entry.amount
