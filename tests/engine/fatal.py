"""A file system that kills its process before the N-th operation, counted from when it is armed."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from finomw.journal.files import Files, MappedFile


class Fatal(Files):
    """Counts every operation that a crash can fall before, or into; reading is none."""

    def __init__(self) -> None:
        self.done = 0
        self._fatal = 0

    def arm(self, fatal: int) -> None:
        """Count from now on, and kill at one of the operations; 0 is none of them."""
        self.done, self._fatal = 0, fatal

    def step(self) -> None:
        self.done += 1
        if self.done == self._fatal:
            os.kill(os.getpid(), 9)

    def map(self, path: Path, size: int) -> MappedFile:
        return _FatalFile(self, path, size)

    def allocate(self, path: Path, size: int, head: bytes) -> None:
        self.step()
        super().allocate(path, size, head)

    def write(self, path: Path, data: bytes) -> None:
        self.step()
        super().write(path, data)

    def fill(self, path: Path, write: Callable[[int], None]) -> None:
        self.step()

        def half(fd: int) -> None:
            write(fd)
            self.step()

        super().fill(path, half)

    def copy_tree(self, source: Path, target: Path) -> None:
        self.step()
        super().copy_tree(source, target)

    def append(self, path: Path, data: bytes) -> None:
        self.step()
        super().append(path, data)

    def unlink(self, path: Path) -> None:
        self.step()
        super().unlink(path)

    def rename(self, source: Path, target: Path) -> None:
        self.step()
        super().rename(source, target)

    def sync_directory(self, directory: Path) -> None:
        self.step()
        super().sync_directory(directory)


class _FatalFile(MappedFile):
    __slots__ = ("_files",)

    def __init__(self, files: Fatal, path: Path, size: int) -> None:
        super().__init__(path, size)
        self._files = files

    def store(self, offset: int, data: bytes) -> None:
        half = len(data) // 2
        super().store(offset, data[:half])
        self._files.step()
        super().store(offset + half, data[half:])

    def store_word(self, offset: int, value: int) -> None:
        self._files.step()
        super().store_word(offset, value)

    def flush(self) -> None:
        self._files.step()
        super().flush()
