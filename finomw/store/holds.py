"""Holds: what is set aside for calls in flight, and what became of it.

The table's key is worker and number, so all open holds of a dead worker are one cursor walk. A row
says all that its ending needs, so that a sweep never reads the configuration. A hold's id is
``<node>-<worker>-<number>``: the worker's id is never used again, so the hold's is not either.
Explicit holds belong to worker 0, which is nobody: their number is the journal record's, and they
end by their expiry, not by a worker's death. Ended holds move to a table of their own, so that
the open ones stay few.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator
from typing import NamedTuple

import msgspec

from finomw.errors import InvalidValue, NotFound, quoted
from finomw.money import steps
from finomw.money.funding import Parts, Spent
from finomw.store.env import Environment, Table, Txn
from finomw.types import (
    Counts,
    CustomerId,
    HoldId,
    HoldState,
    KeyHash,
    Micros,
    OnCrash,
    PlanName,
    RouteName,
    UnixMicroseconds,
    UsageStatus,
    WorkerId,
)

_PLACE = struct.Struct(">QQ")
_PART_MAX = 2**64 - 1
_PART = rf"(0|[1-9][0-9]{{0,{len(str(_PART_MAX)) - 1}}})"
"""A part of an id as it is spelt: one hold has one spelling, because entries are named by it."""
_encode = msgspec.msgpack.Encoder().encode

NOBODY = WorkerId(0)
"""The worker of explicit holds."""


class Step(msgspec.Struct, frozen=True, array_like=True):
    """How far a call under way was settled in steps.

    ``counts`` are all so far, ``price`` in micros their price at the usage ``used``: what the call
    costs if it ends here. ``spent`` is what steps took, ``booked`` the counts that they charged:
    fewer, where the last steps only recorded theirs.
    """

    counts: Counts
    usage: UsageStatus
    note: str
    price: Micros
    used: Counts
    booked: Counts
    spent: Spent


class HoldRow(msgspec.Struct, frozen=True, array_like=True):
    """One hold: ``parts`` of the customer's sources, for at most the counts in ``ceiling``.

    ``counted`` are the units that the customer's usage reckons with while the hold is open.
    ``used`` and ``others`` are the usage and the other holds' counts that its worst case reckoned
    with. ``steps`` counts the entries that made it what it is: one, one for each extension, and one
    for each settlement in steps; ``step`` is the last of these, and ``parts`` what they left.
    ``settle_price`` is set where the ceiling is exactly what will be used.
    ``started`` says that a part of the answer may have reached the client. ``ended``, ``charged``
    (micros) and ``counts`` are set exactly when ``state`` is not open.
    """

    customer: CustomerId
    key: KeyHash
    route: RouteName
    plan: PlanName
    price_version: str
    choice: str
    parts: Parts
    ceiling: Counts
    counted: Counts
    on_crash: OnCrash
    cap: bool
    since: UnixMicroseconds
    expires: UnixMicroseconds | None = None
    resource: str = ""
    settle_price: Micros | None = None
    used: Counts = {}
    others: Counts = {}
    steps: int = 1
    started: bool = False
    state: HoldState = HoldState.OPEN
    ended: UnixMicroseconds | None = None
    charged: Micros | None = None
    counts: Counts | None = None
    step: Step | None = None

    @property
    def settled(self) -> Micros | None:
        """Micros charged so far: by steps, and when it has ended in all; ``None`` for nothing."""
        if self.charged is not None or self.step is None:
            return self.charged
        return self.step.spent.wallet + self.step.spent.credit

    @property
    def spent(self) -> Spent:
        """What steps took so far."""
        return steps.nothing_of(self.parts) if self.step is None else self.step.spent

    @property
    def whole(self) -> Parts:
        """The parts before any step took of them."""
        return self.parts if self.step is None else steps.whole(self.parts, self.step.spent)

    @property
    def amount(self) -> Micros:
        """Micros set aside of wallet and credit."""
        return self.parts.money


class NamedHold(NamedTuple):
    """A hold with its id."""

    hold: HoldId
    row: HoldRow


_decode = msgspec.msgpack.Decoder(HoldRow).decode


class Holds:
    """Holds by worker and number."""

    def __init__(self, env: Environment, node: str) -> None:
        self._open = env.table("holds")
        self._ended = env.table("holds.ended")
        self._node = node
        self._spelt = re.compile(f"{re.escape(node)}-{_PART}-{_PART}")

    def id_of(self, worker: WorkerId, number: int) -> HoldId:
        """Return the id of a worker's hold."""
        return HoldId(f"{self._node}-{worker}-{number}")

    def place_of(self, hold: HoldId) -> bytes:
        """Return the key of a hold; raises `InvalidValue` for what is no id of this node."""
        found = self._spelt.fullmatch(hold)
        if found is not None:
            worker, number = int(found[1]), int(found[2])
            if worker <= _PART_MAX and number <= _PART_MAX:
                return _PLACE.pack(worker, number)
        raise InvalidValue(f"hold {quoted(hold)} is not one of this node")

    def worker_of(self, hold: HoldId) -> WorkerId:
        """Return whose hold it is; raises `InvalidValue` for what is no id of this node."""
        return WorkerId(_PLACE.unpack(self.place_of(hold))[0])

    def put(self, txn: Txn, place: bytes, row: HoldRow) -> None:
        """Write an open hold's row."""
        txn.put(place, _encode(row), db=self._open)

    def need(self, txn: Txn, hold: HoldId) -> tuple[bytes, HoldRow]:
        """Return an open hold with its key; raises `NotFound`."""
        place = self.place_of(hold)
        row = txn.get(place, db=self._open)
        if row is None:
            raise NotFound(f"hold {hold} is not open")
        return place, _decode(row)

    def need_explicit(self, txn: Txn, hold: HoldId) -> tuple[bytes, HoldRow, UnixMicroseconds]:
        """Return an open explicit hold with its key and expiry.

        Raises `NotFound`, and `InvalidValue` for a request's hold.
        """
        place, row = self.need(txn, hold)
        if row.expires is None:
            raise InvalidValue(f"hold {hold} is a request's: it has no expiry to extend")
        return place, row, row.expires

    def find(self, txn: Txn, hold: HoldId) -> HoldRow | None:
        """Return a hold, open or ended; ``None`` where there never was one."""
        place = self.place_of(hold)
        row = txn.get(place, db=self._open)
        if row is None:
            row = txn.get(place, db=self._ended)
        return None if row is None else _decode(row)

    def end(self, txn: Txn, place: bytes, row: HoldRow) -> None:
        """Move a hold that has ended out of the open ones."""
        txn.delete(place, db=self._open)
        txn.put(place, _encode(row), db=self._ended)

    def workers(self, txn: Txn) -> list[WorkerId]:
        """Return the workers that have open holds; explicit holds have none."""
        found: list[WorkerId] = []
        cursor = txn.cursor(db=self._open)
        more = cursor.set_range(_PLACE.pack(NOBODY + 1, 0))
        while more:
            worker, _ = _PLACE.unpack(cursor.key())
            found.append(WorkerId(worker))
            more = cursor.set_range(_PLACE.pack(worker + 1, 0))
        return found

    def of(self, txn: Txn, worker: WorkerId) -> list[NamedHold]:
        """Return a worker's open holds, oldest first; those of ``NOBODY`` are the explicit ones."""
        found: list[NamedHold] = []
        cursor = txn.cursor(db=self._open)
        more = cursor.set_range(_PLACE.pack(worker, 0))
        while more:
            owner, number = _PLACE.unpack(cursor.key())
            if owner != worker:
                break
            found.append(NamedHold(self.id_of(worker, number), _decode(cursor.value())))
            more = cursor.next()
        return found

    def ids_of(self, txn: Txn, worker: WorkerId) -> list[HoldId]:
        """Return the ids of a worker's open holds, oldest first, without reading them."""
        found: list[HoldId] = []
        cursor = txn.cursor(db=self._open)
        if cursor.set_range(_PLACE.pack(worker, 0)):
            for place in cursor.iternext(keys=True, values=False):
                owner, number = _PLACE.unpack(place)
                if owner != worker:
                    break
                found.append(self.id_of(worker, number))
        return found

    def count(self, txn: Txn) -> int:
        """Return how many holds are open, of all workers."""
        return int(txn.stat(self._open)["entries"])

    def items(self, txn: Txn) -> Iterator[NamedHold]:
        """Yield every open hold."""
        yield from self._walk(txn, self._open)

    def ended(self, txn: Txn) -> Iterator[NamedHold]:
        """Yield every ended hold."""
        yield from self._walk(txn, self._ended)

    def _walk(self, txn: Txn, table: Table) -> Iterator[NamedHold]:
        for key, row in txn.cursor(db=table):
            yield NamedHold(self.id_of(*_PLACE.unpack(key)), _decode(row))
