"""The ledger: append-only entries, in the order of the journal records that made them.

The key of an entry is its customer, the number of its journal record and its place in it, so one
customer's newest entries are one short cursor walk whatever the size of the whole. Entries that
do not come from calls are also found by their name ``(source, source_id)``; a call's names are
unique by construction (hold id, step, kind, fund), which saves the request path an index.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import NamedTuple

import msgspec

from finomw.errors import InvariantBroken
from finomw.money.entries import Entry
from finomw.store.env import Environment, Txn
from finomw.types import CustomerId

_PLACE = struct.Struct(">QB")
_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(Entry).decode


class LedgerRow(NamedTuple):
    """An entry with its place: the number of its journal record, and its index there."""

    number: int
    place: int
    entry: Entry


class Ledger:
    """Ledger entries by customer."""

    def __init__(self, env: Environment) -> None:
        self._table = env.table("ledger")
        self._names = env.table("ledger.names")

    def append(self, txn: Txn, customer: CustomerId, number: int, place: int, entry: Entry) -> None:
        """Write an entry; its place must be new."""
        key = _prefix(customer) + _PLACE.pack(number, place)
        if not txn.put(key, _encode(entry), db=self._table, overwrite=False):
            raise InvariantBroken(f"the ledger has an entry {number}/{place} of {customer!r}")

    def name(self, txn: Txn, customer: CustomerId, number: int, place: int, entry: Entry) -> None:
        """Make an entry known by its source and source id; the name must be new."""
        key = _name_key(customer, entry.source, entry.source_id)
        if not txn.put(key, _PLACE.pack(number, place), db=self._names, overwrite=False):
            raise InvariantBroken(f"the ledger names {entry.source}/{entry.source_id} already")

    def find(self, txn: Txn, customer: CustomerId, source: str, source_id: str) -> LedgerRow | None:
        """Return the entry with this name, ``None`` without one; entries of calls have none."""
        key = txn.get(_name_key(customer, source, source_id), db=self._names)
        if key is None:
            return None
        row = txn.get(_prefix(customer) + key, db=self._table)
        if row is None:
            raise InvariantBroken(f"the ledger names a missing entry of {customer!r}")
        number, place = _PLACE.unpack(key)
        return LedgerRow(number, place, _decode(row))

    def newest_first(self, txn: Txn, customer: CustomerId) -> Iterator[LedgerRow]:
        """Yield a customer's entries from the last to the first."""
        prefix = _prefix(customer)
        cursor = txn.cursor(db=self._table)
        behind = prefix + b"\xff" * _PLACE.size
        more = cursor.prev() if cursor.set_range(behind) else cursor.last()
        while more and (key := bytes(cursor.key())).startswith(prefix):
            number, place = _PLACE.unpack(key[len(prefix) :])
            yield LedgerRow(number, place, _decode(cursor.value()))
            more = cursor.prev()

    def erase(self, txn: Txn, customer: CustomerId) -> int:
        """Remove all of a customer's entries, whose sums must be 0; return how many."""
        count = 0
        for table in (self._table, self._names):
            cursor = txn.cursor(db=table)
            prefix = _prefix(customer)
            more = cursor.set_range(prefix)
            while more and bytes(cursor.key()).startswith(prefix):
                count += table is self._table
                more = cursor.delete()
        return count

    def count(self, txn: Txn) -> int:
        """Return how many entries there are."""
        return int(txn.stat(self._table)["entries"])

    def items(self, txn: Txn) -> Iterator[tuple[CustomerId, Entry]]:
        """Yield every entry with its customer: by customer, oldest first."""
        for key, row in txn.cursor(db=self._table):
            yield CustomerId(bytes(key)[: -_PLACE.size - 1].decode()), _decode(row)


def _prefix(customer: CustomerId) -> bytes:
    """Return the part of the key that is the customer's; ids hold no NUL."""
    return customer.encode() + b"\0"


def _name_key(customer: CustomerId, source: str, source_id: str) -> bytes:
    return b"\0".join((customer.encode(), source.encode(), source_id.encode()))
