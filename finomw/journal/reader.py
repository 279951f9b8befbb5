"""Reading the journal from a known position to where it ends.

The reader follows the chain: a record is the log's continuation only when its LSN is its place
and its CRC covers its predecessor's. Where that stops holding, the log ends for the reader; what
the end means (a tail, a torn write, damage) is decided in ``recovery.py``. It maps one segment at a
time, so that a journal of any length can be read.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing

from finomw.journal.format import HEADER_SIZE, START, StoredRecord, Tail, decode_record
from finomw.journal.segment import MissingSegment, Segments, Window
from finomw.types import Lsn


class Reader:
    """Iterates over the records after ``start``; ``tail`` is what has been read so far.

    With ``until``, records from that LSN on are left alone.
    """

    def __init__(self, segments: Segments, start: Tail, until: Lsn | None = None) -> None:
        self._segments = segments
        self._until = until
        self.tail = start
        self.stamp = 0

    def __iter__(self) -> Iterator[StoredRecord]:
        """Yield records until the chain ends; ``stamp`` is the highest durable LSN they name."""
        with closing(Window(self._segments)) as window:
            while not self._reached() and (record := self._next(window)) is not None:
                if self._until is not None and record.lsn >= self._until:
                    return
                self.tail = Tail(record.lsn, record.end, record.crc, self.tail.number + 1)
                self.stamp = max(self.stamp, record.durable)
                yield record

    def _reached(self) -> bool:
        """Say whether nothing more is wanted: then what lies behind is not even looked at."""
        return self._until is not None and self.tail.end >= self._until

    def _next(self, window: Window) -> StoredRecord | None:
        return _after(self._segments, window, self.tail.end, self.tail.crc)


def _after(
    segments: Segments, window: Window, end: Lsn, previous: int | None
) -> StoredRecord | None:
    """Look behind the end of a record, then at the start of the segment after it.

    Without ``previous``, its CRC, the latter could not be told from what follows another record.
    """
    base = segments.base_of(end - 1)
    places = (end, base + segments.size + HEADER_SIZE)
    for lsn in places if previous is not None else places[:1]:
        try:
            segment = window.at(segments.base_of(lsn - 1))
        except MissingSegment:
            return None
        record = decode_record(segment.rest(lsn), segment.seed, lsn, previous)
        if record is not None:
            return record
    return None


def reaches(segments: Segments, start: Lsn, end: Lsn) -> bool:
    """Say whether records follow one another from ``start``, the end of one, exactly to ``end``."""
    lsn, previous = start, None
    with closing(Window(segments)) as window:
        while lsn < end:
            record = _after(segments, window, lsn, previous)
            if record is None and previous is None:
                # Perhaps the next segment goes on; or else the rest of this one is lost.
                previous = _crc_of(segments, window, lsn)
                if previous is not None:
                    record = _after(segments, window, lsn, previous)
            if record is None:
                return False
            lsn, previous = record.end, record.crc
    return lsn == end


def _crc_of(segments: Segments, window: Window, end: Lsn) -> int | None:
    """Return the CRC of the record that ends at ``end``, ``None`` where it cannot be read.

    It is found from its segment's beginning; what ends at the journal's has that of ``START``.
    """
    base = segments.base_of(end - 1)
    try:
        segment = window.at(base)
    except MissingSegment:
        return None
    lsn, crc = base + HEADER_SIZE, START.crc if base == 0 else None
    while lsn < end:
        record = decode_record(segment.rest(lsn), segment.seed, lsn, crc)
        if record is None:
            return None
        lsn, crc = record.end, record.crc
    return crc if lsn == end else None


def read_at(segments: Segments, lsn: int) -> StoredRecord | None:
    """Return the record that starts at ``lsn``, whatever it follows; ``None`` without one."""
    with closing(Window(segments)) as window:
        try:
            segment = window.at(segments.base_of(lsn))
        except MissingSegment:
            return None
        return decode_record(segment.rest(lsn), segment.seed, lsn, None)
