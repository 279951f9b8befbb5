"""A disk that fails when told to, and keeps what a power cut would leave.

Operations are counted by kind: ``allocate``, ``map``, ``flush``, ``write`` (of any file that is not
mapped), ``rename``, ``unlink``, ``sync`` (of a directory) and ``list``. The N-th from now can be
made to fail, once or for good. Mapped files behave like Linux after a failed flush: the pages that
were to be written count as clean, so that the next flush reports success for data that is gone;
only what is stored again reaches the disk. Names that are new, changed or gone are so on the disk
once their directory was synced.
"""

from __future__ import annotations

import errno
import os
from collections import Counter
from collections.abc import Callable
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
        self._unnamed: set[Path] = set()
        self._renamed: list[tuple[Path, Path, bytes | None]] = []
        self._unlinked: list[tuple[Path, bytes]] = []

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
        for source, target, replaced in reversed(self._renamed):
            if target.exists():
                target.rename(source)
            if replaced is not None and target.parent.exists():
                target.write_bytes(replaced)
        for path in self._unnamed:
            path.unlink(missing_ok=True)
        # Any of those that were removed may be there again: the worst is that only the first is.
        for path, content in self._unlinked[:1]:
            path.write_bytes(content)
        self._disks.clear()
        self._dirty.clear()
        self._unnamed.clear()
        self._renamed.clear()
        self._unlinked.clear()

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

    def names(self, directory: Path) -> list[str]:
        """Return the names in a directory, sorted."""
        self.step("list", directory)
        return super().names(directory)

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
        if not path.exists():
            self._unnamed.add(path)
        super().allocate(path, size, head)

    def write(self, path: Path, data: bytes) -> None:
        """Replace a small file."""
        self.step("write", path)
        super().write(path, data)

    def fill(self, path: Path, write: Callable[[int], None]) -> None:
        """Create a large file."""
        self.step("write", path)
        super().fill(path, write)
        self._unnamed.add(path)

    def append(self, path: Path, data: bytes) -> None:
        """Write behind a file's last byte."""
        self.step("write", path)
        super().append(path, data)

    def rename(self, source: Path, target: Path) -> None:
        """Give a file another name."""
        self.step("rename", target)
        replaced = target.read_bytes() if target.exists() else None
        names = (source, target, replaced)
        self._renamed.append(names)
        try:
            super().rename(source, target)
        except OSError:
            if source.exists():
                self._renamed.remove(names)
            raise
        for path in [path for path in self._disks if path.is_relative_to(source)]:
            new = target / path.relative_to(source)
            self._disks[new], self._dirty[new] = self._disks.pop(path), self._dirty.pop(path)

    def unlink(self, path: Path) -> None:
        """Remove a file."""
        self.step("unlink", path)
        content = bytes(self._disks.pop(path, b"")) or path.read_bytes()
        self._dirty.pop(path, None)
        self._unlinked.append((path, content))
        super().unlink(path)

    def sync_directory(self, directory: Path) -> None:
        """Make the directory's entries durable."""
        self.step("sync", directory)
        super().sync_directory(directory)
        self._unnamed = {path for path in self._unnamed if path.parent != directory}
        self._renamed = [names for names in self._renamed if names[1].parent != directory]
        self._unlinked = [gone for gone in self._unlinked if gone[0].parent != directory]


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
