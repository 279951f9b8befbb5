"""The reserve: room for the ending of every open hold, which nothing else may use.

A call that was let in must be able to end on a full disk. So whatever is recorded must leave room,
in segments that exist and in the state's allocated map, for the start and the ending of every open
hold of the node, of one more, and for one transaction. Only what ends a hold or says that its
answer began is recorded without asking, and the opening of a worker: without one, nobody could end
what a crash left. (Extending a hold asks: it could be done without end, and the hold ends as well
without it. So do periods and expiries: a call under way needs neither.)

Both rooms are measured now and then. In between it is enough to count: each record since opened at
most one hold, and took at most one transaction's room of the state.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import NamedTuple

from finomw import limits
from finomw.engine import records
from finomw.journal.format import HEADER_SIZE, Tail
from finomw.journal.segment import MissingSegment, Segments
from finomw.journal.writer import Encoded
from finomw.store import Store
from finomw.store.env import StateFull, Txn
from finomw.types import Lsn

_ENDING = limits.ENDING_BYTES_MAX
_STATE_ENDING = limits.STATE_ENDING_BYTES
_FREE = (records.Settle, records.Release, records.Start, records.OpenWorker)


class Space(NamedTuple):
    """How much room there is, in bytes.

    ``state_used`` of ``state_size`` bytes of the state were ever in use. The journal's disk has
    ``disk_free`` bytes; ``low`` says that these are not enough for a few segments and the state's
    next growth: then new calls will soon be refused, while those under way can end.
    """

    open_holds: int
    state_used: int
    state_size: int
    disk_free: int
    low: bool


class Reserve:
    """Checks the reserve of one node, for one process; call it with the write lock held."""

    def __init__(self, store: Store, segments: Segments) -> None:
        self._store = store
        self._segments = segments
        # Up to where counting is enough: the segment's end, a sum of both, a record's number.
        self._segment_end: Lsn = 0
        self._journal_most = 0
        self._number_most = 0

    def check(self, txn: Txn, command: records.AnyCommand, record: Encoded) -> None:
        """Raise unless the reserve stays whole when this record, already applied, is stored.

        Raises `MissingSegment` for the segment to be created, `StateFull` where the state has to
        grow, and for nothing that uses the reserve rightly.
        """
        tail = record.tail
        if isinstance(command, _FREE) and len(record.data) <= _ENDING:
            return
        if (
            tail.number > self._number_most
            or tail.end > self._segment_end
            or tail.end + tail.number * _ENDING > self._journal_most
        ):
            self._measure(txn, tail)

    def _measure(self, txn: Txn, tail: Tail) -> None:
        endings = self._store.holds.count(txn) + 1
        room = self._journal_room(tail.end, endings * _ENDING)
        left = self._store.room().left
        slack = left - endings * _STATE_ENDING - limits.STATE_TRANSACTION_BYTES
        if slack < 0:
            raise StateFull("the state has no room for the endings of the open holds")
        size = self._segments.size
        self._segment_end = self._segments.base_of(tail.end - 1) + size
        self._journal_most = tail.end + room - (endings - tail.number) * _ENDING
        self._number_most = tail.number + slack // (limits.STATE_TRANSACTION_BYTES + _STATE_ENDING)

    def _journal_room(self, end: Lsn, needed: int) -> int:
        """Return the bytes behind ``end`` that endings can use, as far as ``needed`` goes.

        Raises `MissingSegment` for the first segment that is not there.
        """
        room = 0
        for base, usable in self._ahead(end):
            if not self._segments.exists(base):
                raise MissingSegment(self._segments.path(base), base)
            room += usable
            if room >= needed:
                break
        return room

    def _ahead(self, end: Lsn) -> Iterator[tuple[Lsn, int]]:
        """Yield each segment from the one in use on, with what endings can surely use of it.

        An ending that does not fit a segment's rest leaves it unused.
        """
        size = self._segments.size
        base = self._segments.base_of(end - 1)
        yield base, base + size - end - _ENDING
        while True:
            base += size
            yield base, size - HEADER_SIZE - _ENDING

    def space(self) -> Space:
        """Return how much room there is, and whether that is little; raises `OSError`."""
        store, segments = self._store, self._segments
        with store.read() as txn:
            holds = store.holds.count(txn)
        room = store.room()
        disk = os.statvfs(segments.directory)
        free = disk.f_bavail * disk.f_frsize
        wanted = limits.LOW_SPACE_SEGMENTS * segments.size + store.next_growth()
        return Space(holds, room.used, room.size, free, free < wanted)

    def prepare(self) -> None:
        """Create the segments that twice the reserve needs; raises `OSError`."""
        with self._store.read() as txn:
            end = self._store.meta.tail(txn).end
            needed = 2 * (self._store.holds.count(txn) + 1) * _ENDING
        for base, usable in self._ahead(end):
            self._segments.create(base)
            needed -= usable
            if needed <= 0:
                return
