"""The LMDB environment: the node's state, shared by all its processes, never flushed.

LMDB gives what the request path needs: one writer at a time on the whole machine, readers that
never wait, and transactions that a killed process cannot leave half done. It is opened with
``writemap`` and without sync, so after a power cut it is worthless; the journal is the truth, and
the state is rebuilt from it. The file is allocated to its map size at once: a store into a sparse
map on a full disk would kill the process with SIGBUS.

Rules that LMDB does not forgive: a transaction begins and ends on one thread with no ``await``
inside; nobody opens and closes ``lock.mdb`` beside the environment; an environment never crosses
a fork.
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
StateUnreadable = lmdb.Error


class Environment:
    """One opened LMDB environment."""

    def __init__(self, directory: Path, size: int) -> None:
        self.directory = directory
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

    def table(self, name: str) -> Table:
        """Open a named table, creating it when missing."""
        return self._env.open_db(name.encode())

    @contextmanager
    def read(self) -> Iterator[Txn]:
        """Open a snapshot of everything committed; never hold it across an ``await``."""
        with self._env.begin(buffers=False) as txn:
            yield txn

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

    def close(self) -> None:
        """Close the environment; none of its transactions may be open."""
        self._env.close()


def allocate(directory: Path, size: int) -> None:
    """Give the state's file all the disk space it may ever use.

    Raises `DirectoryError` when the disk has no room. Opening ``data.mdb`` beside LMDB is
    harmless on Linux, unlike ``lock.mdb``: LMDB keeps its locks in the latter.
    """
    path = directory / DATA
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
