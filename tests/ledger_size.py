"""How long the last entries of one customer take in a large ledger; run by hand.

    python tests/ledger_size.py --entries 5000000

Fills a node directory with calls of many customers, in turn, then opens it anew and reads the last
100 entries of some of them, as ``finomw ledger`` does. The rows go directly into the store, many in
one transaction, but through the same code as a call's: each account is the sum of its entries, and
what is read is compared with what was written. Ends with status 1 where it is slower than it must
be.
"""

from __future__ import annotations

import argparse
import random
import statistics
import sys
import tempfile
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from finomw import limits
from finomw.engine.directory import create
from finomw.engine.engine import Engine, close_engine, open_engine
from finomw.engine.ledger import Line, ledger
from finomw.engine.policy import BelowZero
from finomw.money.account import Account
from finomw.money.entries import CALL_SOURCE, CallDetail, Entry
from finomw.store.env import Txn
from finomw.types import CustomerId, EntryKind, Fund, PlanName, RouteName, UsageStatus

LAST = 100
"""How many entries are read, and remembered of each customer."""
MOST_NS = 100 * 10**6
"""How long reading them may take, in nanoseconds."""

_CALLS_EACH_TRANSACTION = 20_000
_ENTRIES_EACH_CALL = 3
_BYTES_EACH_ENTRY = 500
"""Room in the state, with what pages that were split leave empty."""
_START = 1_767_225_600_000_000
_GRANT = 10**12
_HELD = 5_000
_ASKED = 20
"""Of how many customers the last entries are read."""


class Filled(NamedTuple):
    """What was written: how many entries, and the last of each customer, newest first."""

    entries: int
    last: dict[CustomerId, list[Line]]


class Filling:
    """Writes the entries of grants and calls, with record numbers that go up."""

    def __init__(self, engine: Engine, customers: int, seed: int) -> None:
        self._engine = engine
        self._random = random.Random(seed)
        self._ids = [CustomerId(f"customer-{number:06}") for number in range(customers)]
        self._accounts: dict[CustomerId, Account] = {}
        self._last = {who: deque[Line](maxlen=LAST) for who in self._ids}
        self._number = 0
        self._entries = 0

    def run(self, entries: int) -> Filled:
        """Write at least this many entries."""
        with self._engine.store.write() as txn:
            for who in self._ids:
                account = Account(PlanName("default"), _START, anchor=_START)
                self._engine.store.accounts.add(txn, who, account)
                self._accounts[who] = account
                self._post(txn, who, [self._entry(EntryKind.GRANT, _GRANT, "manual", "first")])
        while self._entries < entries:
            calls = -(-(entries - self._entries) // _ENTRIES_EACH_CALL)
            with self._engine.store.write() as txn:
                for _ in range(min(calls, _CALLS_EACH_TRANSACTION)):
                    self._call(txn, self._random.choice(self._ids))
        return Filled(self._entries, {who: list(last)[::-1] for who, last in self._last.items()})

    def _call(self, txn: Txn, who: CustomerId) -> None:
        """Write the hold of a call, and its settlement, as two journal records would."""
        tokens = self._random.randrange(1, 1_000)
        place = f"0a1b2c3d-1-{self._number}/1"
        detail = CallDetail(
            RouteName("chat"), {"tokens": tokens}, UsageStatus.KNOWN, "1a2b3c4d5e6f", "small-1"
        )
        held = self._entry(EntryKind.HOLD, -_HELD, CALL_SOURCE, f"{place}/hold/wallet")
        back = self._entry(
            EntryKind.HOLD_RELEASE, _HELD, CALL_SOURCE, f"{place}/hold_release/wallet"
        )
        paid = self._entry(
            EntryKind.SETTLEMENT, -5 * tokens, CALL_SOURCE, f"{place}/settlement/wallet", detail
        )
        self._post(txn, who, [held])
        self._post(txn, who, [back, paid])

    def _entry(
        self,
        kind: EntryKind,
        amount: int,
        source: str,
        source_id: str,
        call: CallDetail | None = None,
    ) -> Entry:
        at = _START + self._number * 1_000
        return Entry(kind, Fund.WALLET, amount, source, source_id, at, call=call)

    def _post(self, txn: Txn, who: CustomerId, entries: list[Entry]) -> None:
        self._number += 1
        self._entries += len(entries)
        left = self._accounts[who].balance
        for entry in entries:
            left += entry.amount
            self._last[who].append(Line(self._number, entry, left))
        self._accounts[who] = self._engine.store.accounts.post(
            txn, who, self._accounts[who], entries, self._number, BelowZero()
        )


def fill(directory: Path, entries: int, customers: int, seed: int = 1) -> Filled:
    """Make a node directory and fill it with at least this many entries."""
    size = entries * _BYTES_EACH_ENTRY + customers * 2_000 + limits.STATE_SIZE_MIN
    create(directory, limits.SEGMENT_SIZE_MIN, -(-size // limits.PAGE) * limits.PAGE)
    engine = open_engine(directory)
    try:
        return Filling(engine, customers, seed).run(entries)
    finally:
        close_engine(engine)


def read(engine: Engine, filled: Filled) -> Iterator[int]:
    """Read some customers' last entries; yield what each reading took, in nanoseconds."""
    for who in list(filled.last)[:: max(1, len(filled.last) // _ASKED)]:
        began = engine.clock.monotonic()
        lines = ledger(engine, who, LAST)
        took = engine.clock.monotonic() - began
        if lines != filled.last[who]:
            raise SystemExit(f"{who}: what was read is not what was written")
        yield took


def main() -> int:
    """Fill, read and report."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--entries", type=int, default=5_000_000, help="how many at least")
    parser.add_argument("--customers", type=int, default=1_000)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="finomw-ledger-") as folder:
        directory = Path(folder, "data")
        filled = fill(directory, arguments.entries, arguments.customers)
        print(f"{filled.entries:,} entries of {arguments.customers:,} customers are written")
        engine = open_engine(directory)
        took = sorted(read(engine, filled))
        close_engine(engine)
    print(
        f"the last {LAST} entries of one customer: {took[0] / 1e6:.2f} ms at best, "
        f"{statistics.median(took) / 1e6:.2f} ms in the median, {took[-1] / 1e6:.2f} ms at worst, "
        f"of {len(took)} customers"
    )
    return 0 if took[-1] < MOST_NS else 1


if __name__ == "__main__":
    sys.exit(main())
