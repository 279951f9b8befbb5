"""The disk space of the files that LMDB maps: allocated whole, before anything is stored.

A store into a mapped hole on a full disk is a SIGBUS, while an allocation fails with an error that
can be handled. So ``data.mdb`` is at every moment allocated to its end, and its size is the map's
size; ``lock.mdb`` is allocated before LMDB first sees it.

``data.mdb`` may be opened beside LMDB on Linux. ``lock.mdb`` may not, where this process has it
open: closing any descriptor of a file drops the process's locks on it.
"""

from __future__ import annotations

import contextlib
import mmap
import os
from pathlib import Path

from finomw import limits

DATA = "data.mdb"
LOCK = "lock.mdb"

_READER = 64
_LOCK_SIZE = -(-(limits.STATE_READERS_MAX * _READER + 1024) // limits.PAGE) * limits.PAGE
"""LMDB's lock file has a header and a cache line for each reader, and is used as long as it is."""


def size_of(data: Path) -> int:
    """Return the size of ``data.mdb`` in whole pages, 0 where there is none."""
    try:
        return os.stat(data).st_size // limits.PAGE * limits.PAGE
    except FileNotFoundError:
        return 0


def allocate(data: Path, size: int) -> None:
    """Have all of the file's space, unless it has it; raises `OSError`, and then nothing changed.

    Nobody may have stored anything beyond the file's present size.
    """
    fd = os.open(data, os.O_RDWR | os.O_CLOEXEC)
    try:
        status = os.fstat(fd)
        if status.st_size < size or status.st_blocks * 512 < size:
            _fill(fd, status.st_size, size)
    finally:
        os.close(fd)


def _fill(fd: int, present: int, size: int) -> None:
    """Allocate up to ``size``. A failed allocation leaves a part behind: that is cut off again.

    Where a file system only imitates this, what is there may be overwritten with what it was a
    moment ago, so that an allocated part is not touched.
    """
    start = present if os.fstat(fd).st_blocks * 512 >= present else 0
    try:
        os.posix_fallocate(fd, start, size - start)
    except OSError:
        with contextlib.suppress(OSError):
            os.ftruncate(fd, present)
        raise


def try_map(data: Path, size: int) -> None:
    """Do what LMDB does when it maps the file anew, which must not fail there; raises `OSError`.

    LMDB lets go of its old map first, and is of no use any more where it gets no new one.
    """
    fd = os.open(data, os.O_RDWR | os.O_CLOEXEC)
    try:
        os.ftruncate(fd, size)
        mmap.mmap(fd, size).close()
    finally:
        os.close(fd)


def allocate_locks(directory: Path) -> None:
    """Have all the space of ``lock.mdb``; raises `OSError`.

    No process at all may have the environment open.
    """
    fd = os.open(directory / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        os.posix_fallocate(fd, 0, _LOCK_SIZE)
    finally:
        os.close(fd)
