"""A file system that kills its process, as a crash would, at the N-th of its operations.

Every operation whose outcome a crash can change counts before it, in its middle where it has one,
and behind it where a name has changed; reading is none. So a test that arms it for 1, 2, 3, … until
a run is whole has tried every moment at which a process can die.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path

from finomw.journal.files import Files, MappedFile


class Fatal(Files):
    """The real file system, until the operation it is armed for."""

    def __init__(self, fatal: int = 0) -> None:
        self.done = 0
        self._fatal = fatal

    def arm(self, fatal: int) -> None:
        """Count from now on, and kill at one of the operations; 0 is none of them."""
        self.done, self._fatal = 0, fatal

    def step(self) -> None:
        """Count one moment; be gone if it is the one."""
        self.done += 1
        if self.done == self._fatal:
            os.kill(os.getpid(), signal.SIGKILL)

    def map(self, path: Path, size: int) -> MappedFile:
        """Map an existing file."""
        self.step()
        return _FatalFile(self, path, size)

    def allocate(self, path: Path, size: int, head: bytes) -> None:
        """Create a file of zeros that opens with ``head``."""
        self.step()
        super().allocate(path, size, head)

    def write(self, path: Path, data: bytes) -> None:
        """Replace a small file."""
        self.step()
        super().write(path, data)

    def fill(self, path: Path, write: Callable[[int], None]) -> None:
        """Create a large file out of what ``write`` writes."""

        def half(fd: int) -> None:
            write(fd)
            self.step()

        self.step()
        super().fill(path, half)
        self.step()

    def copy_tree(self, source: Path, target: Path) -> None:
        """Copy a directory with all that is in it."""
        self.step()
        super().copy_tree(source, target)

    def append(self, path: Path, data: bytes) -> None:
        """Write ``data`` behind a file's last byte, in two parts."""
        self.step()
        super().append(path, data[: len(data) // 2])
        self.step()
        super().append(path, data[len(data) // 2 :])
        self.step()

    def unlink(self, path: Path) -> None:
        """Remove a file."""
        self.step()
        super().unlink(path)
        self.step()

    def rename(self, source: Path, target: Path) -> None:
        """Give a file another name."""
        self.step()
        super().rename(source, target)
        self.step()

    def sync_directory(self, directory: Path) -> None:
        """Make the directory's entries durable."""
        self.step()
        super().sync_directory(directory)


class _FatalFile(MappedFile):
    """A mapped file whose stores, cut in two, and flushes count."""

    __slots__ = ("_files",)

    def __init__(self, files: Fatal, path: Path, size: int) -> None:
        super().__init__(path, size)
        self._files = files

    def store(self, offset: int, data: bytes) -> None:
        """Store bytes into the mapping."""
        half = len(data) // 16 * 8
        self._files.step()
        super().store(offset, data[:half])
        self._files.step()
        super().store(offset + half, data[half:])

    def store_word(self, offset: int, value: int) -> None:
        """Store an aligned unsigned 64-bit word."""
        self._files.step()
        super().store_word(offset, value)

    def flush(self) -> None:
        """Write all stored bytes to the disk."""
        self._files.step()
        super().flush()
