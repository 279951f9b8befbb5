"""Open holds: money set aside for calls in flight, by the worker that made them.

The table's key is worker and number, so all holds of a dead worker are one cursor walk. A row
says all that its ending needs, so that a sweep never reads the configuration. A hold's id is
``<node>-<worker>-<number>``: the worker's id is never used again, so the hold's is not either.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator

import msgspec

from finomw.errors import InvalidValue, NotFound
from finomw.store.env import Environment, Txn
from finomw.types import (
    Counts,
    CustomerId,
    HoldId,
    Micros,
    OnCrash,
    RouteName,
    UnixMicroseconds,
    WorkerId,
)

_PLACE = struct.Struct(">QQ")
_encode = msgspec.msgpack.Encoder().encode


class HoldRow(msgspec.Struct, frozen=True, array_like=True):
    """One open hold: ``amount`` micros of the customer's balance, for the counts in ``ceiling``.

    ``started`` says that a part of the answer may have reached the client.
    """

    customer: CustomerId
    route: RouteName
    amount: Micros
    ceiling: Counts
    on_crash: OnCrash
    since: UnixMicroseconds
    price_version: str
    choice: str = ""
    started: bool = False


_decode = msgspec.msgpack.Decoder(HoldRow).decode


class Holds:
    """Open holds by worker and number."""

    def __init__(self, env: Environment, node: str) -> None:
        self._table = env.table("holds")
        self._node = node

    def id_of(self, worker: WorkerId, number: int) -> HoldId:
        """Return the id of a worker's hold."""
        return HoldId(f"{self._node}-{worker}-{number}")

    def place_of(self, hold: HoldId) -> bytes:
        """Return the key of a hold; raises `InvalidValue` for what is no id of this node."""
        node, *rest = hold.split("-")
        if node != self._node or len(rest) != 2 or not all(part.isdecimal() for part in rest):
            raise InvalidValue(f"hold {hold!r} is not one of this node")
        return _PLACE.pack(int(rest[0]), int(rest[1]))

    def put(self, txn: Txn, place: bytes, row: HoldRow) -> None:
        """Write a hold's row."""
        txn.put(place, _encode(row), db=self._table)

    def need(self, txn: Txn, hold: HoldId) -> tuple[bytes, HoldRow]:
        """Return an open hold with its key; raises `NotFound`."""
        place = self.place_of(hold)
        row = txn.get(place, db=self._table)
        if row is None:
            raise NotFound(f"hold {hold} is not open")
        return place, _decode(row)

    def remove(self, txn: Txn, place: bytes) -> None:
        """Take a hold that has ended out of the open ones."""
        txn.delete(place, db=self._table)

    def workers(self, txn: Txn) -> list[WorkerId]:
        """Return the workers that have open holds."""
        found: list[WorkerId] = []
        cursor = txn.cursor(db=self._table)
        more = cursor.first()
        while more:
            worker, _ = _PLACE.unpack(cursor.key())
            found.append(WorkerId(worker))
            more = cursor.set_range(_PLACE.pack(worker + 1, 0))
        return found

    def of(self, txn: Txn, worker: WorkerId) -> list[HoldId]:
        """Return a worker's open holds, oldest first."""
        found: list[HoldId] = []
        cursor = txn.cursor(db=self._table)
        more = cursor.set_range(_PLACE.pack(worker, 0))
        while more:
            owner, number = _PLACE.unpack(cursor.key())
            if owner != worker:
                break
            found.append(self.id_of(worker, number))
            more = cursor.next()
        return found

    def items(self, txn: Txn) -> Iterator[tuple[HoldId, HoldRow]]:
        """Yield every open hold."""
        for key, row in txn.cursor(db=self._table):
            yield self.id_of(*_PLACE.unpack(key)), _decode(row)
