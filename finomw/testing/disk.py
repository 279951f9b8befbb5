"""A disk in memory that knows everything a power cut could leave of it.

Mapped files keep, for each unit of the disk (a page of 4 KiB or a sector of 512 bytes), every
version since the last one that a flush has guaranteed; an image takes one of them for each unit,
independently. A flush guarantees what was stored before it began. A flush that fails behaves like
Linux: the pages count as clean, so only what is stored again reaches the disk; the error is told
once to each mapping that was there when it happened, to a later one only if nobody was told.
Names of files are durable when their directory was synced; until then an image has the old one or
the new one. Every operation calls `SimulatedDisk.step` first, where a test lets others run, takes
images, or raises, as a process that dies there.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random

from finomw import limits
from finomw.journal.files import Files, FileTooShort, MappedFile
from finomw.testing.pages import Content, Version

SECTOR = 512
_WORD = 8


class SimulatedFile(MappedFile):
    """One process's mapping of a file."""

    __slots__ = ("_content", "_disk", "_errors")

    def __init__(self, disk: SimulatedDisk, path: Path, content: Content, size: int) -> None:
        self.path = path
        self.size = size
        self._disk = disk
        self._content = content
        self._errors = content.errors if content.told else content.errors - 1
        self._bytes = memoryview(content.memory)
        self._words = self._bytes.cast("Q")

    def load(self, offset: int, length: int) -> bytes:
        """Return bytes as every process sees them."""
        return bytes(self._bytes[offset : offset + length])

    def store(self, offset: int, data: bytes) -> None:
        """Store bytes, in one or two pieces that others may see apart."""
        self._disk.step("store", self.path)
        cut = self._disk.tear(len(data))
        if cut:
            self._content.store(offset, data[:cut])
            self._disk.step("torn", self.path)
        self._content.store(offset + cut, data[cut:])

    def store_word(self, offset: int, value: int) -> None:
        """Store an aligned word."""
        self._disk.step("word", self.path)
        self._content.store(offset, value.to_bytes(_WORD, "little"))

    def flush(self) -> None:
        """Guarantee what was stored before now; raises `OSError` as the disk's faults say."""
        disk, content = self._disk, self._content
        disk.step("flush", self.path)
        writeback = content.begin(lose=disk.fails())
        waited = False
        try:
            disk.step("flushing", self.path)
            waited = content.errors == self._errors
        finally:
            content.finish(writeback, waited=waited)
        failed = content.errors != self._errors
        self._errors = content.errors
        content.told = True
        disk.step("flushed", self.path)
        if failed:
            raise OSError(errno.EIO, os.strerror(errno.EIO), str(self.path))

    def will_need(self, offset: int, length: int) -> None:
        """Nothing has to be read."""

    def close(self) -> None:
        """Nothing has to be unmapped."""


class SimulatedDisk(Files):
    """Files by path. ``unit`` is what the disk writes whole; ``tearing`` tears stores in two."""

    def __init__(self, unit: int = limits.PAGE, tearing: Random | None = None) -> None:
        self.unit = unit
        self.step: Callable[[str, Path], None] = _go_on
        self.old_life: Callable[[Path], bytes] = _nothing
        self.tearing = tearing
        self._names: dict[Path, Content] = {}
        self._older: dict[Path, list[Content | None]] = {}
        self._drafts = 0
        self._failing = 0

    def fail_flush(self, times: int = 1) -> None:
        """Let the disk refuse what the next flushes write."""
        self._failing = times

    def fails(self) -> bool:
        """Say whether the flush that begins now loses what it writes, and count it."""
        fails = self._failing > 0
        self._failing -= fails
        return fails

    def tear(self, length: int) -> int:
        """Return after how many bytes others may see a store of this length, or 0."""
        if self.tearing is None or length <= _WORD:
            return 0
        return self.tearing.randrange(length // _WORD) * _WORD

    def names(self, directory: Path) -> list[str]:
        """Return the names in a directory, sorted."""
        return sorted(path.name for path in self._names if path.parent == directory)

    def exists(self, path: Path) -> bool:
        """Say whether there is such a file."""
        return path in self._names

    def map(self, path: Path, size: int) -> MappedFile:
        """Map an existing file."""
        content = self._names.get(path)
        if content is None:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(path))
        if len(content.memory) < size:
            raise FileTooShort(f"{path}: shorter than {size} bytes")
        return SimulatedFile(self, path, content, size)

    def read(self, path: Path) -> bytes:
        """Return all that processes see of a file."""
        return bytes(self._names[path].memory)

    def allocate(self, path: Path, size: int, head: bytes) -> None:
        """Create a file that opens with ``head``, of zeros or of what `old_life` gives."""
        content = bytearray(size)
        old = self.old_life(path)[:size]
        content[: len(old)] = old
        content[: len(head)] = head
        draft = self._draft(path, content)
        if path not in self._names:
            self._names[path] = self._names[draft]
            self._older.setdefault(path, []).append(None)
        self._older.setdefault(draft, []).append(self._names.pop(draft))
        self.sync_directory(path.parent)

    def write(self, path: Path, data: bytes) -> None:
        """Replace a small file, durably."""
        self.rename(self._draft(path, bytearray(data)), path)

    def rename(self, source: Path, target: Path) -> None:
        """Give a file another name in the same directory, durably."""
        self.step("rename", target)
        self._older.setdefault(target, []).append(self._names.get(target))
        self._names[target] = self._names.pop(source)
        self._older.setdefault(source, []).append(self._names[target])
        self.sync_directory(target.parent)

    def sync_directory(self, directory: Path) -> None:
        """Make the directory's names durable."""
        self.step("sync", directory)
        for path in [path for path in self._older if path.parent == directory]:
            del self._older[path]

    def fill(self, path: Path, write: Callable[[int], None]) -> None:
        """Create a file out of what ``write`` writes to a descriptor; its name is not durable."""
        self.step("fill", path)
        with open(os.memfd_create("draft"), "w+b", buffering=0) as file:
            write(file.fileno())
            file.seek(0)
            self._names[path] = Content(bytearray(file.readall()), self.unit)
        self._older.setdefault(path, []).append(None)
        self.step("filled", path)

    def append(self, path: Path, data: bytes) -> None:
        """Write behind a file's last byte, durably."""
        self.step("append", path)
        self._names[path] = Content(self._names[path].memory + data, self.unit)

    def unlink(self, path: Path) -> None:
        """Remove a file, durably."""
        self.step("unlink", path)
        self._older.setdefault(path, []).append(self._names.pop(path))
        self.sync_directory(path.parent)

    def remove(self, path: Path) -> None:
        """Lose a file, as a disk may that was never told to keep it."""
        self._names.pop(path, None)
        self._older.pop(path, None)

    def evict(self, choose: Random) -> None:
        """Let go of clean pages, as a system short of memory does."""
        for content in self._names.values():
            content.evict(choose)

    def image(self, pick: Callable[[list[Version]], int]) -> tuple[SimulatedDisk, tuple[int, ...]]:
        """Return what a power cut now may leave, and which versions that is.

        ``pick`` returns the index of the version that the disk has of a unit.
        """
        image = type(self)(self.unit)
        picked: list[int] = []
        for path, content in self._entries(pick, picked):
            image._names[path] = Content(content.image(pick, picked), self.unit)
        return image, tuple(picked)

    def _entries(
        self, pick: Callable[[list[Version]], int], picked: list[int]
    ) -> Iterator[tuple[Path, Content]]:
        """Yield the names that the disk may have, with what they stand for."""
        unsynced = self._older
        for path, content in self._names.items():
            if path not in unsynced:
                yield path, content
        for path, older in unsynced.items():
            entries = [*older, self._names.get(path)]
            which = pick([Version(index, b"") for index in range(len(entries))])
            picked.append(which)
            chosen = entries[which]
            if chosen is not None:
                yield path, chosen

    def _draft(self, path: Path, content: bytearray) -> Path:
        """Write a file's bytes under a name that nobody else uses; the name is not durable."""
        self.step("draft", path)
        self._drafts += 1
        draft = path.with_name(f"{path.name}.{self._drafts}.draft")
        self._names[draft] = Content(content, self.unit)
        self._older[draft] = [None]
        self.step("drafted", path)
        return draft


def _go_on(_kind: str, _path: Path) -> None:
    """Let an operation happen."""


def _nothing(_path: Path) -> bytes:
    """Say that no earlier life's bytes lie where a file is made."""
    return b""
