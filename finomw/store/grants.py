"""Grants as far as they can still be taken back: what was refunded of each, and what expires when.

All refunds of a grant together never exceed it, so a row counts them. A grant with an expiry date
is a lot: charges use up the lot that expires soonest first, so the row also knows what is left of
it, and an index by date finds the next one to expire.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Iterator

import msgspec
from msgspec.structs import replace

from finomw.errors import InvariantBroken
from finomw.store.env import Environment, Txn
from finomw.types import CustomerId, Fund, Micros, UnixMicroseconds

_DATE = struct.Struct(">Q")
_encode = msgspec.msgpack.Encoder().encode


class GrantRow(msgspec.Struct, frozen=True, array_like=True):
    """One grant: its amount and what refunds took back, in micros.

    ``unspent`` is what charges have left of an expiring grant; ``times`` how often something of
    it expired (a part that a call held at its date comes back later, and expires then).
    """

    source: str
    source_id: str
    fund: Fund
    amount: Micros
    refunded: Micros = 0
    expires: UnixMicroseconds | None = None
    unspent: Micros = 0
    times: int = 0


_decode = msgspec.msgpack.Decoder(GrantRow).decode


class Grants:
    """Grant rows by customer and name, and the expiring ones by customer and date."""

    def __init__(self, env: Environment) -> None:
        self._table = env.table("grants")
        self._lots = env.table("grants.lots")

    def get(self, txn: Txn, customer: CustomerId, source: str, source_id: str) -> GrantRow | None:
        """Return a grant by its name."""
        row = txn.get(_key(customer, source, source_id), db=self._table)
        return None if row is None else _decode(row)

    def put(self, txn: Txn, customer: CustomerId, row: GrantRow) -> None:
        """Write a grant; it is a lot as long as something of it is unspent and may expire."""
        key = _key(customer, row.source, row.source_id)
        txn.put(key, _encode(row), db=self._table)
        if row.expires is not None:
            lot = _lot_key(customer, row.expires, key)
            if row.unspent:
                txn.put(lot, key, db=self._lots)
            else:
                txn.delete(lot, db=self._lots)

    def lots(self, txn: Txn, customer: CustomerId) -> list[GrantRow]:
        """Return a customer's expiring grants with something unspent, soonest expiry first."""
        return list(self._walk(txn, customer.encode() + b"\0"))

    def reserved(
        self, txn: Txn, customer: CustomerId, held: Micros
    ) -> Iterator[tuple[GrantRow, Micros]]:
        """Yield a customer's lots, soonest expiry first, each with what calls hold of it.

        Of the ``held`` micros of the wallet: calls hold first what they would use up first.
        """
        for row in self._walk(txn, customer.encode() + b"\0"):
            part = min(held, row.unspent)
            held -= part
            yield row, part

    def use(self, txn: Txn, customer: CustomerId, amount: Micros) -> int:
        """Let a charge use up lots, soonest expiry first; return how many that emptied."""
        emptied = 0
        for row in self.lots(txn, customer):
            used = min(amount, row.unspent)
            amount -= used
            emptied += used == row.unspent
            self.put(txn, customer, replace(row, unspent=row.unspent - used))
            if not amount:
                break
        return emptied

    def erase(self, txn: Txn, customer: CustomerId) -> None:
        """Remove all of a customer's grants, none of which may be a lot any more."""
        prefix = customer.encode() + b"\0"
        cursor = txn.cursor(db=self._table)
        more = cursor.set_range(prefix)
        while more and bytes(cursor.key()).startswith(prefix):
            more = cursor.delete()

    def customers_with_lots(self, txn: Txn) -> list[CustomerId]:
        """Return the customers that have expiring grants."""
        found: list[CustomerId] = []
        cursor = txn.cursor(db=self._lots)
        more = cursor.first()
        while more:
            customer = bytes(cursor.key()).split(b"\0", 1)[0]
            found.append(CustomerId(customer.decode()))
            more = cursor.set_range(customer + b"\1")
        return found

    def _walk(self, txn: Txn, prefix: bytes) -> Iterator[GrantRow]:
        cursor = txn.cursor(db=self._lots)
        more = cursor.set_range(prefix)
        while more and bytes(cursor.key()).startswith(prefix):
            row = txn.get(cursor.value(), db=self._table)
            if row is None:
                raise InvariantBroken(f"a lot without its grant: {bytes(cursor.key())!r}")
            yield _decode(row)
            more = cursor.next()


def _key(customer: CustomerId, source: str, source_id: str) -> bytes:
    return b"\0".join((customer.encode(), source.encode(), source_id.encode()))


def _lot_key(customer: CustomerId, expires: UnixMicroseconds, key: bytes) -> bytes:
    """Order lots by date; the grant's own name would make the key too long, so its hash stands."""
    name = hashlib.blake2b(key, digest_size=16).digest()
    return customer.encode() + b"\0" + _DATE.pack(expires) + name
