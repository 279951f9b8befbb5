"""Quotas and usage: what a customer has left of each quota, and how much was used, this period.

A quota's definition is copied here when a period begins, so that what a running period gives does
not change with the configuration, and replay does not read it. ``held`` is what open holds have
set aside. One row counts the usage that tiered and volume prices depend on.
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from finomw.money.periods import Period
from finomw.store.env import Environment, Txn
from finomw.types import Counts, CustomerId, UnixMicroseconds

_encode = msgspec.msgpack.Encoder().encode


class QuotaRow(msgspec.Struct, frozen=True, array_like=True):
    """One quota of one customer in one period; units, or micros where ``money``.

    ``end`` is ``None`` for a quota that is given once.
    """

    meters: tuple[str, ...]
    money: bool
    start: UnixMicroseconds
    end: UnixMicroseconds | None
    units: int
    used: int = 0
    held: int = 0

    @property
    def left(self) -> int:
        """What may still be set aside."""
        return max(0, self.units - self.used - self.held)

    @property
    def period(self) -> Period:
        """Which period the row is of."""
        return Period(self.start, self.end)


class UsageRow(msgspec.Struct, frozen=True, array_like=True):
    """What one customer used in one period, and what open holds may add, by meter."""

    start: UnixMicroseconds
    end: UnixMicroseconds | None
    used: Counts
    held: Counts

    @property
    def period(self) -> Period:
        """Which period the row is of."""
        return Period(self.start, self.end)


_decode_quota = msgspec.msgpack.Decoder(QuotaRow).decode
_decode_usage = msgspec.msgpack.Decoder(UsageRow).decode


class Quotas:
    """Quota rows by customer and name, usage rows by customer."""

    def __init__(self, env: Environment) -> None:
        self._quotas = env.table("quotas")
        self._usage = env.table("usage")

    def get(self, txn: Txn, customer: CustomerId, quota: str) -> QuotaRow | None:
        """Return a customer's quota, ``None`` before its first period."""
        row = txn.get(_key(customer, quota), db=self._quotas)
        return None if row is None else _decode_quota(row)

    def put(self, txn: Txn, customer: CustomerId, quota: str, row: QuotaRow) -> None:
        """Write a customer's quota."""
        txn.put(_key(customer, quota), _encode(row), db=self._quotas)

    def remove(self, txn: Txn, customer: CustomerId, quota: str) -> None:
        """Forget a customer's quota."""
        txn.delete(_key(customer, quota), db=self._quotas)

    def of(self, txn: Txn, customer: CustomerId) -> Iterator[tuple[str, QuotaRow]]:
        """Yield a customer's quotas by name."""
        prefix = _key(customer, "")
        cursor = txn.cursor(db=self._quotas)
        more = cursor.set_range(prefix)
        while more and (key := bytes(cursor.key())).startswith(prefix):
            yield key[len(prefix) :].decode(), _decode_quota(cursor.value())
            more = cursor.next()

    def usage(self, txn: Txn, customer: CustomerId) -> UsageRow | None:
        """Return a customer's usage, ``None`` before its first period."""
        row = txn.get(customer.encode(), db=self._usage)
        return None if row is None else _decode_usage(row)

    def put_usage(self, txn: Txn, customer: CustomerId, row: UsageRow) -> None:
        """Write a customer's usage."""
        txn.put(customer.encode(), _encode(row), db=self._usage)


def _key(customer: CustomerId, quota: str) -> bytes:
    return customer.encode() + b"\0" + quota.encode()
