"""The segments of one journal: found by LSN, opened once, created ahead.

Segments have one size for the life of the directory, so an LSN alone says which file it lies in,
and the next segment's name is known before it is needed: it is created whole and durable ahead of
its first record, under its final name. A flush error is reported to descriptors that were open when
it happened, and to no later one: so what may still have to be flushed stays mapped, and what is
wholly durable is let go of. Whoever only reads maps one segment at a time, in a `Window`: a journal
may have more segments than a process may open files.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from zlib import crc32

from finomw.errors import DirectoryError, JournalDamaged, RecordingFailed
from finomw.journal.files import Files, FileTooShort, MappedFile
from finomw.journal.format import (
    ALIGNMENT,
    HEADER_SIZE,
    MEND,
    SegmentHeader,
    decode_segment_header,
    encode_segment_header,
)
from finomw.types import Lsn

SUFFIX = ".seg"
_NAME = re.compile(rf"[0-9a-f]{{16}}{re.escape(SUFFIX)}")


class MissingSegment(JournalDamaged):
    """The segment that is needed is not there: `Segments.create` makes one that never was."""

    def __init__(self, path: Path, base: Lsn) -> None:
        super().__init__(str(path), base, "this segment of the journal is missing", MEND)
        self.base = base


class Segment:
    """One mapped segment; positions are LSNs.

    ``vouched`` says that a flush through this mapping has succeeded: whatever failed before it was
    there has been dealt with.
    """

    __slots__ = ("base", "end", "file", "header", "seed", "vouched")

    def __init__(self, file: MappedFile, header: SegmentHeader) -> None:
        self.file = file
        self.header = header
        self.base = header.base
        self.end = header.base + header.size
        self.seed = crc32(header.salt)
        self.vouched = False

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

    def close(self) -> None:
        """Unmap."""
        self.file.close()


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
        """Return the segment at ``base``, mapped until it is let go of; raises as `open`."""
        segment = self._opened.get(base)
        if segment is None:
            segment = self._opened[base] = self._open_named(base)
        return segment

    def _open_named(self, base: Lsn) -> Segment:
        """Map a segment to be written to; its name is durable before any of its records can be.

        Whoever created the file may have failed, or died, before its directory was on disk.
        """
        segment = self.open(base)
        try:
            self.files.sync_directory(self.directory)
        except OSError as error:
            segment.close()
            path = self.path(base)
            raise RecordingFailed(f"{path}: its name is not on disk: {error.strerror}") from error
        return segment

    def open(self, base: Lsn) -> Segment:
        """Map the segment at ``base`` once more; the caller closes it.

        Raises `MissingSegment`, `JournalDamaged`, and `RecordingFailed` where the process may open
        no more files: that is no failed flush, and passes.
        """
        path = self.path(base)
        try:
            file = self.files.map(path, self.size)
        except FileNotFoundError:
            raise MissingSegment(path, base) from None
        except FileTooShort as error:
            what = f"the segment is cut off: {error}"
            raise JournalDamaged(str(path), base, what, MEND) from error
        except OSError as error:
            raise RecordingFailed(f"{path}: cannot be mapped: {error.strerror}") from error
        with ExitStack() as undo:
            undo.callback(file.close)
            header = decode_segment_header(file.load(0, HEADER_SIZE), str(path), base)
            if header.node != self._node or header.size != self.size:
                what = "this segment belongs to another node"
                raise JournalDamaged(str(path), base, what, MEND)
            if header.incarnation > self._incarnation:
                what = (
                    f"this segment is of the node's incarnation {header.incarnation}, "
                    f"but node.json says {self._incarnation}"
                )
                raise JournalDamaged(str(path), base, what, "put the right node.json back")
            undo.pop_all()
        return Segment(file, header)

    def exists(self, base: Lsn) -> bool:
        """Say whether the segment at ``base`` has been created."""
        return base in self._opened or self.files.exists(self.path(base))

    def create(self, base: Lsn) -> None:
        """Create the segment at ``base``, durably, unless it is there; raises `OSError`."""
        if self.exists(base):
            return
        header = SegmentHeader(base, self.size, os.urandom(16), self._node, self._incarnation)
        self.files.allocate(self.path(base), self.size, encode_segment_header(header))

    def bases(self) -> list[Lsn]:
        """Return the bases of all segment files, oldest first; raises `DirectoryError`."""
        try:
            names = self.files.names(self.directory)
        except OSError as error:
            raise DirectoryError(f"{self.directory}: cannot be read: {error.strerror}") from error
        return sorted(int(name[:16], 16) for name in names if _NAME.fullmatch(name))

    def covering(self, start: Lsn, end: Lsn) -> range:
        """Return the bases of the segments that hold bytes of ``[start, end)``, oldest first."""
        return range(self.base_of(start), end, self.size)

    def between(self, start: Lsn, end: Lsn) -> Iterator[Segment]:
        """Yield the segments that hold bytes of ``[start, end)``, oldest first."""
        for base in self.covering(start, end):
            yield self.at(base)

    def let_go(self, durable: Lsn) -> None:
        """Unmap what lies wholly below ``durable``: a flush error cannot concern it any more.

        The segment that ends there stays: a writer may be looking at its end.
        """
        kept = self.base_of(durable - 1)
        for base in list(self._opened):
            if base < kept:
                self._opened.pop(base).close()

    def close(self) -> None:
        """Unmap everything."""
        for segment in self._opened.values():
            segment.close()
        self._opened.clear()


class Window:
    """One segment at a time, mapped apart from those that are written to.

    A later one is never of an earlier incarnation: such a segment is of a life that was given up.
    """

    def __init__(self, segments: Segments) -> None:
        self._segments = segments
        self._segment: Segment | None = None

    def at(self, base: Lsn) -> Segment:
        """Return the segment at ``base``; the one before is unmapped. Raises as `Segments.open`."""
        before = self._segment
        if before is not None and before.base == base:
            return before
        self.close()
        segment = self._segment = self._segments.open(base)
        if before is not None and before.base < base:
            _check_order(self._segments.path(base), before.header, segment.header)
        return segment

    def close(self) -> None:
        """Unmap."""
        if self._segment is not None:
            self._segment.close()
            self._segment = None


def _check_order(path: Path, before: SegmentHeader, header: SegmentHeader) -> None:
    if header.incarnation < before.incarnation:
        what = (
            f"this segment is of the node's incarnation {header.incarnation}, "
            f"but one before it of {before.incarnation}"
        )
        raise JournalDamaged(str(path), header.base, what, MEND)
