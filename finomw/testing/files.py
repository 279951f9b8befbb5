"""A disk that fails when told to, and keeps what a power cut would leave.

Operations are counted by kind: ``allocate``, ``map``, ``flush``, ``write``, ``rename``, ``sync``
(of a directory). The N-th from now can be made to fail, once or for good. Mapped files behave like
Linux after a failed flush: the pages that were to be written count as clean, so that the next
flush reports success for data that is gone; only what is stored again reaches the disk.
"""

from __future__ import annotations

import errno
import os
from collections import Counter
from pathlib import Path

from finomw import limits
from finomw.journal.files import Files, MappedFile


class FaultyFiles(Files):
    """The real file system, with faults."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self._faults: dict[str, tuple[int, bool, int]] = {}
        self._disks: dict[Path, bytearray] = {}
        self._dirty: dict[Path, set[int]] = {}

    def fail(
        self, kind: str, at: int = 1, *, for_good: bool = False, error: int = errno.EIO
    ) -> None:
        """Make the ``at``-th operation of this kind from now fail, or all from that one on."""
        self._faults[kind] = (self.counts[kind] + at, for_good, error)

    def mend(self) -> None:
        """Let everything succeed from now on."""
        self._faults.clear()

    def power_cut(self) -> None:
        """Leave of every mapped file what its disk holds; nothing may be mapped any more."""
        for path, disk in self._disks.items():
            path.write_bytes(disk)
        self._disks.clear()
        self._dirty.clear()

    def step(self, kind: str, path: Path) -> None:
        """Count one operation, and fail it if that was asked for; raises `OSError`."""
        self.counts[kind] += 1
        at, for_good, error = self._faults.get(kind, (0, False, 0))
        if self.counts[kind] == at or (for_good and self.counts[kind] > at):
            raise OSError(error, os.strerror(error), str(path))

    def touched(self, path: Path, offset: int, length: int) -> None:
        """Note that bytes of a mapped file were stored."""
        end = -(-(offset + length) // limits.PAGE)
        self._dirty[path].update(range(offset // limits.PAGE, end if length else 0))

    def flushed(self, file: MappedFile) -> None:
        """Write a mapped file's dirty pages to its disk, or lose them."""
        dirty = self._dirty[file.path]
        try:
            self.step("flush", file.path)
            for page in dirty:
                at = page * limits.PAGE
                kept = file.load(at, limits.PAGE)
                self._disks[file.path][at : at + len(kept)] = kept
        finally:
            dirty.clear()

    def map(self, path: Path, size: int) -> MappedFile:
        """Map an existing file."""
        self.step("map", path)
        file = _FaultyFile(self, path, size)
        if path not in self._disks:
            self._disks[path] = bytearray(path.read_bytes())
            self._dirty[path] = set()
        return file

    def allocate(self, path: Path, size: int, head: bytes) -> None:
        """Create a file of zeros that opens with ``head``."""
        self.step("allocate", path)
        super().allocate(path, size, head)

    def write(self, path: Path, data: bytes) -> None:
        """Replace a small file."""
        self.step("write", path)
        super().write(path, data)

    def rename(self, source: Path, target: Path) -> None:
        """Give a file another name."""
        self.step("rename", target)
        super().rename(source, target)

    def sync_directory(self, directory: Path) -> None:
        """Make the directory's entries durable."""
        self.step("sync", directory)
        super().sync_directory(directory)


class _FaultyFile(MappedFile):
    """A mapped file that tells its disk what happens to it."""

    __slots__ = ("_files",)

    def __init__(self, files: FaultyFiles, path: Path, size: int) -> None:
        super().__init__(path, size)
        self._files = files

    def store(self, offset: int, data: bytes) -> None:
        """Store bytes into the mapping."""
        super().store(offset, data)
        self._files.touched(self.path, offset, len(data))

    def store_word(self, offset: int, value: int) -> None:
        """Store an aligned unsigned 64-bit word."""
        super().store_word(offset, value)
        self._files.touched(self.path, offset, 8)

    def flush(self) -> None:
        """Write all stored bytes to the disk, or fail and lose them."""
        self._files.flushed(self)
