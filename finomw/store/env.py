"""The LMDB environment: the node's state, shared by all its processes, never flushed.

LMDB gives what the request path needs: one writer at a time on the whole machine, readers that
never wait, and transactions that a killed process cannot leave half done. It is opened with
``writemap`` and without sync, so after a power cut it is worthless; the journal is the truth, and
the state is rebuilt from it. The file is allocated to its map size at once: a store into a sparse
map on a full disk would kill the process with SIGBUS.

Whatever LMDB raises leaves this room as an error of finomw's. Rules that it does not forgive: a
transaction begins and ends on one thread with no ``await`` inside; nobody opens and closes
``lock.mdb`` beside the environment; an environment never crosses a fork.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeAlias

import lmdb

from finomw import limits
from finomw.errors import DirectoryError, RecordingFailed

Txn: TypeAlias = "lmdb.Transaction"
Table: TypeAlias = "lmdb._Database"

DATA = "data.mdb"
_TABLES_MAX = 16


class StateUnreadable(DirectoryError):
    """LMDB cannot open the state: it is damaged, or too many processes read it."""


class Environment:
    """One opened LMDB environment, with all the disk space it may ever use.

    Raises `StateUnreadable`, and `DirectoryError` when the disk has no room.
    """

    def __init__(self, directory: Path, size: int) -> None:
        self.directory = directory
        try:
            self._env = lmdb.open(
                str(directory),
                map_size=size,
                max_dbs=_TABLES_MAX,
                max_readers=limits.STATE_READERS_MAX,
                writemap=True,
                sync=False,
                metasync=False,
                meminit=False,
                mode=0o600,
            )
        except lmdb.Error as error:
            raise StateUnreadable(f"{directory / DATA}: cannot be opened: {error}") from error
        try:
            _allocate(directory / DATA, size)
        except DirectoryError:
            self._env.close()
            raise

    def table(self, name: str) -> Table:
        """Open a named table, creating it when missing."""
        try:
            return self._env.open_db(name.encode())
        except lmdb.Error as error:
            raise StateUnreadable(f"{self.directory / DATA}: {name}: {error}") from error

    @contextmanager
    def read(self) -> Iterator[Txn]:
        """Open a snapshot of everything committed; never hold it across an ``await``."""
        try:
            with self._env.begin(buffers=False) as txn:
                yield txn
        except lmdb.Error as error:
            raise RecordingFailed(f"{self.directory / DATA}: {error}") from error

    @contextmanager
    def write(self) -> Iterator[Txn]:
        """Open the one write transaction of the node: commits at the end, aborts on an exception.

        A caller may abort it itself and leave normally. Raises `RecordingFailed` when the state
        is full.
        """
        try:
            with self._env.begin(write=True) as txn:
                yield txn
        except lmdb.MapFullError as error:
            raise RecordingFailed(
                f"{self.directory / DATA}: the state is full; raise storage.state_size"
            ) from error
        except lmdb.Error as error:
            raise RecordingFailed(f"{self.directory / DATA}: {error}") from error

    def forget_dead_readers(self) -> int:
        """Drop the snapshots of killed processes; return how many there were.

        Each keeps every page that was freed since from being used again, until the state is full.
        """
        try:
            return int(self._env.reader_check())
        except lmdb.Error as error:
            raise RecordingFailed(f"{self.directory / DATA}: {error}") from error

    def copy_to(self, fd: int) -> None:
        """Write a compact copy of one snapshot to an open file; writers go on meanwhile."""
        try:
            self._env.copyfd(fd, compact=True)
        except lmdb.Error as error:
            raise RecordingFailed(f"{self.directory / DATA}: cannot be copied: {error}") from error

    def close(self) -> None:
        """Close the environment; none of its transactions may be open."""
        self._env.close()


def _allocate(path: Path, size: int) -> None:
    """Reserve the disk space before anything is stored into the map.

    Opening ``data.mdb`` beside LMDB is harmless on Linux, unlike ``lock.mdb``: LMDB keeps its
    locks in the latter.
    """
    fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    try:
        os.posix_fallocate(fd, 0, size)
    except OSError as error:
        raise DirectoryError(f"{path}: cannot allocate {size} bytes: {error.strerror}") from error
    finally:
        os.close(fd)


def set_aside(directory: Path) -> None:
    """Rename an unbelievable state's file, so that a new one is made; nobody may have it open."""
    path = directory / DATA
    if path.exists():
        path.rename(path.with_name(f"{DATA}.old"))
