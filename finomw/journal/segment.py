"""The segments of one journal: found by LSN, opened once, created ahead.

Segments have one size for the life of the directory, so an LSN alone says which file it lies in,
and the next segment's name is known before it is needed: it is created whole and durable ahead of
its first record, under its final name. Mappings stay open as long as the engine does: a flush
error is reported to descriptors that were open when it happened, and to no later one.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from zlib import crc32

from finomw.errors import JournalDamaged, RecordingFailed
from finomw.journal.files import Files, FileTooShort, MappedFile
from finomw.journal.format import (
    ALIGNMENT,
    HEADER_SIZE,
    SegmentHeader,
    decode_segment_header,
    encode_segment_header,
)
from finomw.types import Lsn

SUFFIX = ".seg"


class MissingSegment(Exception):
    """The segment that is needed has not been created; `Segments.create` makes it."""

    def __init__(self, base: Lsn) -> None:
        super().__init__(base)
        self.base = base


class Segment:
    """One mapped segment; positions are LSNs."""

    __slots__ = ("base", "end", "file", "header", "seed")

    def __init__(self, file: MappedFile, header: SegmentHeader) -> None:
        self.file = file
        self.header = header
        self.base = header.base
        self.end = header.base + header.size
        self.seed = crc32(header.salt)

    def store(self, lsn: Lsn, record: bytes) -> None:
        """Store a record, its first word last: a record cut short reads as none."""
        offset = lsn - self.base
        self.file.store(offset + ALIGNMENT, record[ALIGNMENT:])
        self.file.store_word(offset, int.from_bytes(record[:ALIGNMENT], "little"))

    def zero(self, lsn: Lsn, length: int) -> None:
        """Zero bytes, the first word first: what is half zeroed reads as none."""
        offset = lsn - self.base
        self.file.store_word(offset, 0)
        self.file.store(offset + ALIGNMENT, bytes(length - ALIGNMENT))

    def rest(self, lsn: Lsn) -> memoryview:
        """Return all bytes from ``lsn`` to the segment's end, uncopied."""
        return self.file.view(lsn - self.base)

    def withdraw(self, lsn: Lsn) -> None:
        """Make whatever stands at ``lsn`` read as no record."""
        if lsn < self.end and self.file.load_word(lsn - self.base):
            self.file.store_word(lsn - self.base, 0)

    def restore(self, lsn: Lsn, end: Lsn) -> None:
        """Store bytes onto themselves, so that the next flush writes them again."""
        start, stop = max(lsn, self.base) - self.base, min(end, self.end) - self.base
        self.file.store(start, self.file.load(start, stop - start))


class Segments:
    """All segments of the journal in one directory."""

    def __init__(
        self, files: Files, directory: Path, size: int, node: bytes, incarnation: int
    ) -> None:
        self.files = files
        self.directory = directory
        self.size = size
        self._node = node
        self._incarnation = incarnation
        self._opened: dict[Lsn, Segment] = {}

    def path(self, base: Lsn) -> Path:
        """Return the path of the segment file at ``base``."""
        return self.directory / f"{base:016x}{SUFFIX}"

    def base_of(self, lsn: Lsn) -> Lsn:
        """Return the base of the segment that holds ``lsn``."""
        return lsn - lsn % self.size

    def at(self, base: Lsn) -> Segment:
        """Return the segment at ``base``.

        Raises `MissingSegment`, `JournalDamaged`, and `RecordingFailed` where the process may open
        no more files: that is no failed flush, and passes.
        """
        segment = self._opened.get(base)
        return segment if segment is not None else self._open(base)

    def _open(self, base: Lsn) -> Segment:
        path = self.path(base)
        try:
            file = self.files.map(path, self.size)
        except FileNotFoundError:
            raise MissingSegment(base) from None
        except FileTooShort as error:
            raise JournalDamaged(str(path), base, f"the segment is cut off: {error}") from error
        except OSError as error:
            raise RecordingFailed(f"{path}: cannot be mapped: {error.strerror}") from error
        with ExitStack() as undo:
            undo.callback(file.close)
            header = decode_segment_header(file.load(0, HEADER_SIZE), str(path), base)
            if header.node != self._node or header.size != self.size:
                hint = "put the right file back"
                raise JournalDamaged(str(path), base, "this segment belongs to another node", hint)
            undo.pop_all()
        segment = self._opened[base] = Segment(file, header)
        return segment

    def create(self, base: Lsn) -> None:
        """Create the segment at ``base``, durably, unless it is there; raises `OSError`."""
        if base in self._opened or self.files.exists(self.path(base)):
            return
        header = SegmentHeader(base, self.size, os.urandom(16), self._node, self._incarnation)
        self.files.allocate(self.path(base), self.size, encode_segment_header(header))

    def bases(self) -> list[Lsn]:
        """Return the bases of all segment files, oldest first."""
        names = self.files.names(self.directory)
        stems = [name.removesuffix(SUFFIX) for name in names if name.endswith(SUFFIX)]
        return sorted(int(stem, 16) for stem in stems)

    def between(self, start: Lsn, end: Lsn) -> Iterator[Segment]:
        """Yield the segments that hold bytes of ``[start, end)``, oldest first."""
        for base in range(self.base_of(start), end, self.size):
            yield self.at(base)

    def close(self) -> None:
        """Unmap everything."""
        for segment in self._opened.values():
            segment.file.close()
        self._opened.clear()
