"""The LMDB environment: the node's state, shared by all its processes, never flushed.

LMDB gives what the request path needs: one writer at a time on the whole machine, readers that
never wait, and transactions that a killed process cannot leave half done. It is opened with
``writemap`` and without sync, so after a power cut it is worthless; the journal is the truth, and
the state is rebuilt from it.

The map is as large as the file, which is allocated whole (``space.py``), and grows while everybody
works: whoever needs room makes the file larger and takes a new map, others follow when they see
it. All of that happens under ``grow.lock``, because LMDB cuts the file to the size that it maps.

Whatever LMDB raises leaves this room as an error of finomw's. Rules that it does not forgive: a
transaction begins and ends on one thread with no ``await`` inside; nobody opens and closes
``lock.mdb`` beside the environment; an environment never crosses a fork.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import TracebackType
from typing import NamedTuple, TypeAlias

import lmdb
import msgspec

from finomw import limits
from finomw.errors import DirectoryError, FinomwError, RecordingFailed
from finomw.journal.locks import FileLock
from finomw.store import space
from finomw.store.gate import Gate, GateBusy

Txn: TypeAlias = "lmdb.Transaction"
Table: TypeAlias = "lmdb._Database"

DATA = space.DATA
_TABLES_MAX = 16
_GROW_LOCK = "grow.lock"
_GROW_SECONDS = 5
"""How long another process may take to make the file larger; a stopped one takes for ever."""
_DAMAGED = (msgspec.MsgspecError, lmdb.CorruptedError, lmdb.PageNotFoundError)


class StateUnreadable(DirectoryError):
    """LMDB cannot open the state: it is damaged, or too many processes read it."""


class StateFull(RecordingFailed):
    """A transaction has found no room in the map; nothing was changed, and `grow` may help."""


class Room(NamedTuple):
    """How much of the state is in use, and how large it is, in bytes; more was never in use."""

    used: int
    size: int

    @property
    def left(self) -> int:
        """Bytes that were never in use."""
        return self.size - self.used


class Environment:
    """One opened LMDB environment, of at least ``size`` bytes, all of them allocated.

    Raises `StateUnreadable`, and `DirectoryError` when the disk has no room.
    """

    def __init__(self, directory: Path, size: int) -> None:
        self.directory = directory
        self._data = directory / DATA
        self._gate = Gate()
        self._sizing = threading.Lock()
        with ExitStack() as undo:
            try:
                self._grow_lock = FileLock(directory / _GROW_LOCK)
            except OSError as error:
                raise DirectoryError(f"{directory}: cannot be opened: {error}") from error
            undo.callback(self._grow_lock.close)
            self._lock_size(DirectoryError)
            present = space.size_of(self._data)
            self._size = max(-(-size // limits.PAGE) * limits.PAGE, present)
            try:
                if present:
                    space.allocate(self._data, self._size)
                self._env = _open(directory, self._size)
                undo.callback(self._env.close)
                if not present:
                    # LMDB has made a file of holes, and has stored nothing into its map yet.
                    undo.callback(self._data.unlink)
                    space.allocate(self._data, self._size)
            except OSError as error:
                raise DirectoryError(
                    f"{self._data}: cannot allocate {self._size} bytes: {error.strerror}"
                ) from error
            self._grow_lock.release()
            undo.pop_all()

    def table(self, name: str) -> Table:
        """Open a named table, creating it when missing; before anything else is done here."""
        try:
            try:
                return self._open_table(name)
            except lmdb.MapResizedError:
                self.adopt()
                return self._open_table(name)
        except lmdb.Error as error:
            raise StateUnreadable(f"{self._data}: {name}: {error}") from error

    def _open_table(self, name: str) -> Table:
        # Without a transaction of ours, LMDB is waited for with the interpreter's lock held.
        thread = self._gate.enter()
        try:
            with self._env.begin(write=True) as txn:
                return self._env.open_db(name.encode(), txn=txn)
        finally:
            self._gate.leave(thread)

    def read(self) -> Transaction:
        """Open a snapshot of everything committed; never hold it across an ``await``."""
        return Transaction(self, write=False)

    def write(self) -> Transaction:
        """Open the one write transaction of the node: commits at the end, aborts on an exception.

        A caller may abort it itself and leave normally. Raises `StateFull` where the map is.
        """
        return Transaction(self, write=True)

    def begin(self, write: bool) -> tuple[Txn, int]:
        """Begin a transaction; return it with what `Gate.leave` needs. Use `read` and `write`.

        Where another process has made the state larger than this one's map, the map follows.
        """
        try:
            return self._begin(write)
        except lmdb.MapResizedError:
            self.adopt()
            return self._begin(write)

    def _begin(self, write: bool) -> tuple[Txn, int]:
        thread = self._gate.enter()
        txn = None
        try:
            txn = self._env.begin(write=write)
        finally:
            if txn is None:
                self._gate.leave(thread)
        return txn, thread

    def end(self, thread: int) -> None:
        """Let a transaction go that `begin` gave and that has ended."""
        self._gate.leave(thread)

    def room(self) -> Room:
        """Return how full the map was after the last commit; cheap, about 2 µs."""
        with self._passing():
            info = self._env.info()
        return Room((info["last_pgno"] + 1) * limits.PAGE, info["map_size"])

    def adopt(self) -> None:
        """Take the file's size for the map, if another process made it larger.

        Raises `RecordingFailed` where that cannot be, and then nothing has changed.
        """
        self._resize(larger=False)

    def grow(self) -> None:
        """Have a larger map: what another process allocated, else a quarter more, or the double.

        See ``limits.STATE_GROWTH``. Raises `RecordingFailed` where the disk has no room, or the
        state is as large as it may be, or a transaction of this process stays open; then nothing
        has changed.
        """
        self._resize(larger=True)

    def _resize(self, larger: bool) -> None:
        if self._gate.inside():
            raise RecordingFailed(f"{self._data}: cannot grow inside a transaction")
        with self._sizing:
            self._lock_size(RecordingFailed)
            try:
                size = space.size_of(self._data)
                if larger and size <= self._size:
                    size = self._size + self.next_growth()
                    if size == self._size:
                        raise StateFull(f"{self._data}: the state is full, as large as it may be")
                if size > self._size:
                    space.allocate(self._data, size)
                    space.try_map(self._data, size)
                    with self._gate.shut():
                        self._env.set_mapsize(size)
                    self._size = size
            except OSError as error:
                raise RecordingFailed(
                    f"{self._data}: no room for a state of {size} bytes: {error.strerror}"
                ) from error
            except (GateBusy, lmdb.Error) as error:
                raise RecordingFailed(f"{self._data}: cannot grow now: {error}") from error
            finally:
                self._grow_lock.release()

    def _lock_size(self, error: type[FinomwError]) -> None:
        if not self._grow_lock.exclusive_within(_GROW_SECONDS):
            raise error(
                f"{self._grow_lock.path}: another process has kept this for {_GROW_SECONDS} s; "
                "if it was stopped, continue or kill it"
            )

    def next_growth(self) -> int:
        """Return by how many bytes the state would grow; 0 where it may not."""
        size = self._size
        step = max(size // 4, min(limits.STATE_GROWTH, size)) // limits.PAGE * limits.PAGE
        return max(0, min(step, limits.STATE_SIZE_MAX - size))

    @contextmanager
    def _passing(self) -> Iterator[None]:
        """Keep the map where it is for a use that is no `Transaction`."""
        thread = self._gate.enter()
        try:
            yield
        except lmdb.Error as error:
            raise RecordingFailed(f"{self._data}: {error}") from error
        finally:
            self._gate.leave(thread)

    def forget_dead_readers(self) -> int:
        """Drop the snapshots of killed processes; return how many there were.

        Each keeps every page that was freed since from being used again, until the state is full.
        """
        with self._passing():
            return int(self._env.reader_check())

    def last_change(self) -> int:
        """Return the number of the last write transaction that committed; needs no transaction."""
        with self._passing():
            return int(self._env.info()["last_txnid"])

    def copy_to(self, fd: int) -> None:
        """Write a compact copy of one snapshot to an open file; writers go on meanwhile."""
        try:
            self._copy_to(fd)
        except RecordingFailed as failed:
            if not isinstance(failed.__cause__, lmdb.MapResizedError):
                raise
            # Another process has made the state larger; not a byte was written.
            self.adopt()
            self._copy_to(fd)

    def _copy_to(self, fd: int) -> None:
        with self._passing():
            self._env.copyfd(fd, compact=True)

    def close(self) -> None:
        """Close the environment; none of its transactions may be open."""
        self._env.close()
        self._grow_lock.close()


class Transaction:
    """A transaction as a context manager, which gives LMDB's own."""

    __slots__ = ("_env", "_thread", "_txn", "_write")

    def __init__(self, env: Environment, *, write: bool) -> None:
        self._env = env
        self._write = write

    def __enter__(self) -> Txn:
        """Begin; raises `RecordingFailed`."""
        try:
            self._txn, self._thread = self._env.begin(self._write)
        except lmdb.Error as error:
            raise self._translated(error) from error
        return self._txn

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Commit, or abort after an exception; LMDB's own come out as finomw's."""
        try:
            self._txn.__exit__(kind, error, traceback)
        except lmdb.Error as failed:
            raise self._translated(failed) from failed
        finally:
            self._env.end(self._thread)
        if isinstance(error, lmdb.Error | msgspec.MsgspecError):
            raise self._translated(error) from error

    def _translated(self, error: lmdb.Error | msgspec.MsgspecError) -> RecordingFailed:
        """Return what an error of LMDB's, or of a row that cannot be decoded, is to finomw."""
        data = self._env.directory / DATA
        if isinstance(error, lmdb.MapFullError):
            return StateFull(f"{data}: the state is full")
        if isinstance(error, _DAMAGED):
            return RecordingFailed(
                f"{data}: the state is damaged: {error}; stop every process that uses it, then run "
                "`finomw recover`"
            )
        return RecordingFailed(f"{data}: {error}")


def _open(directory: Path, size: int) -> lmdb.Environment:
    try:
        return lmdb.open(
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


def allocate_locks(directory: Path) -> None:
    """Have the disk space of LMDB's locks, before the first process of all opens the state.

    Raises `DirectoryError`.
    """
    try:
        space.allocate_locks(directory)
    except OSError as error:
        raise DirectoryError(
            f"{directory / space.LOCK}: cannot be allocated: {error.strerror}"
        ) from error


def set_aside(directory: Path) -> None:
    """Rename an unbelievable state's file, so that a new one is made; nobody may have it open."""
    path = directory / DATA
    if path.exists():
        path.rename(path.with_name(f"{DATA}.old"))
