"""Appending: one record, stored behind the tail while the store's write lock is held.

The caller holds the lock of the LMDB transaction that applies the record, so there is one writer
on the whole machine, log order is apply order, and the tail in LMDB moves exactly when the
transaction commits. A record is encoded first and stored as the last step before that commit. A
process that dies between the two leaves a ghost, which the next record overwrites.
"""

from __future__ import annotations

from typing import NamedTuple

from finomw import limits
from finomw.errors import InvalidValue
from finomw.journal.format import HEADER_SIZE, Tail, encode_record, record_size
from finomw.journal.segment import Segments
from finomw.types import Lsn


class Encoded(NamedTuple):
    """A record ready to be stored, and the tail behind it."""

    tail: Tail
    data: bytes


class Writer:
    """Encodes and stores records into the segments of one journal."""

    def __init__(self, segments: Segments) -> None:
        self._segments = segments

    def encode(self, tail: Tail, durable: Lsn, body: bytes, attachment: bytes = b"") -> Encoded:
        """Return the record that goes behind ``tail``; nothing is stored yet.

        ``durable`` is the watermark to stamp the record with. Raises `InvalidValue` for a record
        that no segment can hold, `MissingSegment` where the next segment has yet to be created.
        """
        segments = self._segments
        size = record_size(len(body), len(attachment))
        if len(body) > limits.RECORD_BODY_MAX or size > segments.size - HEADER_SIZE:
            raise InvalidValue(f"a journal record of {size} bytes does not fit a segment")
        lsn = tail.end
        segment = segments.at(segments.base_of(lsn - 1))
        if lsn + size > segment.end:
            # A ghost that fitted here would read as the log's continuation: take it out.
            segment.withdraw(lsn)
            segment = segments.at(segment.end)
            lsn = segment.base + HEADER_SIZE
        data, crc = encode_record(segment.seed, lsn, durable, tail.crc, body, attachment)
        return Encoded(Tail(lsn, lsn + size, crc, tail.number + 1), data)

    def store(self, record: Encoded) -> None:
        """Store a record, the last step before the commit; nothing is flushed.

        Zeroes it again, under the same lock, when an exception (a signal's, say) cuts in.
        """
        lsn = record.tail.lsn
        segment = self._segments.at(self._segments.base_of(lsn))
        stored = False
        try:
            segment.store(lsn, record.data)
            stored = True
        finally:
            if not stored:
                segment.zero(lsn, len(record.data))

    def prepare_next(self, tail: Tail) -> None:
        """Create the segment after the one in use, unless it is there; raises `OSError`."""
        self._segments.create(self._segments.base_of(tail.end - 1) + self._segments.size)
