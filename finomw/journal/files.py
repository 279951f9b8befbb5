"""The operating-system seam: every file operation whose outcome a crash can change.

Journal code asks this object and nothing else, so that a test can put another one in its place
that records what was stored and flushed, builds what a disk could hold after a power cut, or
fails the N-th operation. Nothing is ever grown sparsely: a store into a mapped hole on a full
disk is a SIGBUS, while an allocation fails with an error that can be handled.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import secrets
import shutil
from collections.abc import Callable
from pathlib import Path

from finomw import limits

_FILL = bytes(limits.MIB)
_DRAFT = ".draft"


class FileTooShort(OSError):
    """A file has fewer bytes than what is to be mapped."""


class MappedFile:
    """A file of fixed size, mapped shared; offsets and lengths are bytes.

    Words are 8 bytes, aligned, stored and loaded by one machine instruction, so that another
    process never sees half of one.
    """

    __slots__ = ("_bytes", "_fd", "_map", "_words", "path", "size")

    def __init__(self, path: Path, size: int, *, writable: bool = True) -> None:
        self.path = path
        self.size = size
        self._fd = os.open(path, (os.O_RDWR if writable else os.O_RDONLY) | os.O_CLOEXEC)
        try:
            if os.fstat(self._fd).st_size < size:
                raise FileTooShort(f"{path}: shorter than {size} bytes")
            access = mmap.ACCESS_WRITE if writable else mmap.ACCESS_READ
            self._map = mmap.mmap(self._fd, size, access=access)
        except BaseException:
            os.close(self._fd)
            raise
        self._bytes = memoryview(self._map)
        self._words = self._bytes.cast("Q")

    def load(self, offset: int, length: int) -> bytes:
        """Return bytes from the mapping."""
        return self._map[offset : offset + length]

    def view(self, offset: int) -> memoryview:
        """Return the mapping from ``offset`` on, uncopied; let go of it before `close`."""
        return self._bytes[offset:]

    def store(self, offset: int, data: bytes) -> None:
        """Store bytes into the mapping; they reach the disk at the next `flush`, or before."""
        self._map[offset : offset + len(data)] = data

    def load_word(self, offset: int) -> int:
        """Return the aligned unsigned 64-bit word at ``offset``."""
        return self._words[offset >> 3]

    def store_word(self, offset: int, value: int) -> None:
        """Store an aligned unsigned 64-bit word at ``offset``, whole or not at all."""
        self._words[offset >> 3] = value

    def flush(self) -> None:
        """Write all stored bytes to the disk; raises `OSError` when that cannot be known."""
        os.fdatasync(self._fd)

    def will_need(self, offset: int, length: int) -> None:
        """Ask for pages to be read in the background, so that storing into them does not wait."""
        start = offset & -limits.PAGE
        length = min(length, self.size - start)
        if length > 0:
            self._map.madvise(mmap.MADV_WILLNEED, start, length)

    def close(self) -> None:
        """Unmap and close; stored bytes stay in the page cache."""
        self._words.release()
        self._bytes.release()
        self._map.close()
        os.close(self._fd)


class Files:
    """The real file system."""

    def names(self, directory: Path) -> list[str]:
        """Return the names in a directory, sorted."""
        return sorted(os.listdir(directory))

    def exists(self, path: Path) -> bool:
        """Say whether the path exists."""
        return path.exists()

    def map(self, path: Path, size: int) -> MappedFile:
        """Map an existing file of at least ``size`` bytes."""
        return MappedFile(path, size)

    def allocate(self, path: Path, size: int, head: bytes) -> None:
        """Create a file of zeros that opens with ``head``, complete and durable, or not at all.

        An existing file is never replaced; its being there already is not an error, since another
        process may have been faster. Zeros are written, not only reserved: then a later flush
        has no metadata to write. The pages are dropped from the cache, because flushing one dirty
        page of the large folios that a bulk write leaves behind costs three times as much.
        """
        draft = _draft_of(path)
        fd = os.open(draft, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            try:
                os.posix_fallocate(fd, 0, size)
                for offset in range(0, size, len(_FILL)):
                    _write_whole(fd, _FILL[: size - offset], offset)
                _write_whole(fd, head, 0)
                os.fsync(fd)
                os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
            finally:
                os.close(fd)
            with contextlib.suppress(FileExistsError):
                os.link(draft, path)
        finally:
            os.unlink(draft)
        self.sync_directory(path.parent)

    def write(self, path: Path, data: bytes) -> None:
        """Replace a small file, durably: afterwards it is the old one or the new one, whole."""
        draft = _draft_of(path)
        fd = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            try:
                _write_whole(fd, data, 0)
                os.fsync(fd)
            finally:
                os.close(fd)
            self.rename(draft, path)
        except OSError:
            draft.unlink(missing_ok=True)
            raise

    def fill(self, path: Path, write: Callable[[int], None]) -> None:
        """Create a large file out of what ``write`` writes to a descriptor, durably or not at all.

        Its name is not durable yet: it is a draft's.
        """
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        with contextlib.ExitStack() as undo:
            undo.callback(os.unlink, path)
            try:
                write(fd)
                os.fsync(fd)
            finally:
                os.close(fd)
            undo.pop_all()

    def copy(self, source: Path, target: Path) -> None:
        """Copy a large file under a name that is not taken, durably or not at all."""

        def write(fd: int) -> None:
            with source.open("rb") as file, open(fd, "wb", closefd=False) as copy:
                shutil.copyfileobj(file, copy, limits.MIB)

        self.fill(target, write)
        self.sync_directory(target.parent)

    def copy_tree(self, source: Path, target: Path) -> None:
        """Copy a directory with all that is in it, also behind links; durable afterwards."""
        shutil.copytree(source, target, ignore_dangling_symlinks=True)
        os.sync()

    def append(self, path: Path, data: bytes) -> None:
        """Write ``data`` behind a file's last byte, durably, and let the cache forget the file."""
        fd = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
        try:
            _write_whole(fd, data, os.fstat(fd).st_size)
            os.fsync(fd)
            os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(fd)

    def unlink(self, path: Path) -> None:
        """Remove a file, durably: a file that is removed later is not gone before this one."""
        os.unlink(path)
        self.sync_directory(path.parent)

    def remove_drafts(self, directory: Path) -> None:
        """Remove what killed processes left half made; no process may be making anything."""
        for name in os.listdir(directory):
            if name.endswith(_DRAFT):
                (directory / name).unlink(missing_ok=True)

    def rename(self, source: Path, target: Path) -> None:
        """Give a file another name in the same directory, durably."""
        os.rename(source, target)
        self.sync_directory(target.parent)

    def sync_directory(self, directory: Path) -> None:
        """Make the directory's entries durable."""
        fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)


class ReadOnlyFiles(Files):
    """Files that are read and nothing else, also where nothing may be written."""

    def map(self, path: Path, size: int) -> MappedFile:
        """Map an existing file of at least ``size`` bytes, to be read."""
        return MappedFile(path, size, writable=False)


def _draft_of(path: Path) -> Path:
    """Return a name nobody else uses: threads of one process may make the same file at once."""
    return path.with_name(f"{path.name}.{secrets.token_hex(8)}{_DRAFT}")


def _write_whole(fd: int, data: bytes, offset: int) -> None:
    """Write all of ``data``, though the system may take it in pieces."""
    view = memoryview(data)
    while view:
        written = os.pwrite(fd, view, offset)
        view = view[written:]
        offset += written
