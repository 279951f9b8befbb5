"""A journal of its own for tests: segments and a writer, and the tail that LMDB would keep."""

from __future__ import annotations

from pathlib import Path

from finomw import limits
from finomw.journal.files import Files
from finomw.journal.format import START, StoredRecord, Tail, record_size
from finomw.journal.reader import Reader
from finomw.journal.segment import MissingSegment, Segments
from finomw.journal.writer import Writer
from finomw.types import Lsn

SIZE = limits.SEGMENT_SIZE_MIN
NODE = b"n" * 16


def segments_in(directory: Path, files: Files | None = None, node: bytes = NODE) -> Segments:
    return Segments(files or Files(), directory, SIZE, node, 1)


class Journal:
    """Appends as the engine does; ``durable`` is what records are stamped with."""

    def __init__(self, directory: Path, files: Files | None = None) -> None:
        self.segments = segments_in(directory, files)
        self.segments.create(0)
        self.writer = Writer(self.segments)
        self.tail = START
        self.durable: Lsn = 0

    def append(self, body: bytes, attachment: bytes = b"") -> Lsn:
        """Append a record that commits; return its LSN."""
        self.tail = self.ghost(body, attachment)
        return self.tail.lsn

    def ghost(self, body: bytes, attachment: bytes = b"") -> Tail:
        """Store a record whose writer dies before the commit; return the tail that never was."""
        try:
            record = self.writer.encode(self.tail, self.durable, body, attachment)
        except MissingSegment as missing:
            self.segments.create(missing.base)
            record = self.writer.encode(self.tail, self.durable, body, attachment)
        self.writer.store(record)
        return record.tail

    def fill(self, left: int) -> None:
        """Append until exactly ``left`` bytes of the segment are free."""
        base = self.segments.base_of(self.tail.end - 1)
        while (free := base + SIZE - self.tail.end - left) > 0:
            body = min(free - record_size(0, 0), 1024)
            if 0 < free - record_size(body, 0) < record_size(8, 0):
                body -= 64
            self.append(b"f" * body)
        assert free == 0

    def close(self) -> None:
        self.segments.close()


def read(segments: Segments) -> tuple[list[StoredRecord], Reader]:
    reader = Reader(segments, START)
    return list(reader), reader
