"""The engine: one node directory opened by one process, and the one way to change it.

`Engine.execute` is the whole write path: one LMDB write transaction in which a command is decided
and applied, its record appended to the journal, and the tail moved. What it returns is applied;
it is durable once `durable()` has passed the LSN that came with it. A process opens a directory
once, however often it asks: LMDB does not forgive a second opening.
"""

from __future__ import annotations

import itertools
import logging
import os
import threading
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

from finomw.clock import Clock, SystemClock
from finomw.engine import records
from finomw.engine.apply import Apply, Earlier, Result
from finomw.engine.directory import find
from finomw.engine.due import Due
from finomw.engine.opening import close_cleanly, open_directory
from finomw.engine.policy import BelowZero
from finomw.engine.reserve import Reserve, Space
from finomw.engine.watchdog import Watchdog
from finomw.errors import EngineClosed, InvariantBroken, RecordingFailed
from finomw.journal.control import Slot
from finomw.journal.files import Files
from finomw.journal.flush import FAILED, Flusher
from finomw.journal.locks import FileLock
from finomw.journal.segment import MissingSegment
from finomw.journal.workers import Workers, start_time
from finomw.journal.writer import Writer
from finomw.money.account import After
from finomw.store import Store
from finomw.store.accounts import BlockPolicy
from finomw.store.env import StateFull, Txn
from finomw.types import HoldId, Lsn, Refusal, WorkerId

logger = logging.getLogger("finomw")

_ROOM_TRIES = 1_000
"""How often room is made for one command; a segment and a growth of the state each count."""


class Executed(NamedTuple):
    """A command that was applied: its result, the LSN behind its record, the record's number."""

    result: After | None
    end: Lsn
    number: int


class Health(NamedTuple):
    """What an operator wants to know.

    ``failed`` says that a flush failed: nothing is charged until a restart. ``worker`` is 0 before
    the first write; ``alerts`` counts what reconciliation found, ``unbilled`` the calls of this
    process that passed without being charged (``on_failure: pass``). ``clean_start`` says whether
    the stop before this run was clean: everything flushed, no holds of dead workers left.
    ``space`` is how much room there is.
    """

    failed: bool
    worker: WorkerId
    tail: Lsn
    durable: Lsn
    alerts: int
    unbilled: int
    clean_start: bool
    space: Space


class Engine:
    """An opened node directory. Every method may be called from any thread of its process."""

    def __init__(self, path: Path, clock: Clock, files: Files, policy: BlockPolicy) -> None:
        """Open a directory by itself; everybody else uses `open_engine`, which shares."""
        self.clock = clock
        self.pid = os.getpid()
        opened = open_directory(find(path), files, policy)
        self._opened = opened
        self.directory, self.segments, self.control, self._store, *_ = opened
        self.workers = Workers(self.directory.workers, self.control)
        self._apply = Apply(self._store, policy)
        self._writer = Writer(self.segments)
        self._reserve = Reserve(self._store, self.segments)
        self._hold_numbers = itertools.count(1)
        self._lock = threading.Lock()
        self._writing = threading.Lock()
        self._slot: Slot | None = None
        self._worker: tuple[WorkerId, FileLock, Flusher] | None = None
        self._closed = False
        self._alerts = 0
        self._unbilled = 0
        self._watchdog = Watchdog(self.control, self._store.last_change, self._waits, clock)
        self.claims: set[HoldId] = set()
        """The holds of this worker that live calls will end; the housekeeper ends the others."""

    @property
    def store(self) -> Store:
        """The state; raises `EngineClosed` in a forked child, where LMDB must not be touched."""
        self._check_open()
        return self._store

    @property
    def worker(self) -> WorkerId:
        """The worker id; the engine becomes a worker when it first needs one."""
        return (self._worker or self._open_worker())[0]

    def next_hold_number(self) -> int:
        """Return the next number for a hold of this worker."""
        return next(self._hold_numbers)

    def tail(self) -> Lsn:
        """Return the LSN behind the last committed record."""
        return self.store.tail().end

    def durable(self) -> Lsn:
        """Return the LSN up to which everything is on disk; raises `RecordingFailed`."""
        self._check_open()
        if self.control.failed:
            raise RecordingFailed(FAILED)
        return self.control.durable()

    def flush(self) -> Lsn:
        """Make durable what is committed now; return the durable LSN. Raises `FlushFailed`."""
        self._check_open()
        return (self._worker or self._open_worker())[2].flush()

    def execute(self, command: records.AnyCommand) -> Executed | Refusal | Earlier:
        """Apply and record one command in one transaction; see `decide`."""
        done = self.decide(lambda _: command)
        if not isinstance(done, Executed | Refusal | Earlier):
            raise InvariantBroken(f"a command came back as {done}")
        return done

    def decide(
        self, decide: Callable[[Txn], records.AnyCommand | Refusal | Due]
    ) -> Executed | Refusal | Earlier | Due:
        """Let ``decide`` read the store, then apply and record its command: one transaction.

        A refusal, a repetition and what is due first change nothing. Raises `RecordingFailed` when
        the node cannot record (flush failed, no room), and what the command's rule raises; then
        too nothing has changed. ``decide`` may be asked twice.
        """
        if self._worker is None:
            self._open_worker()
        return self._decide(decide)

    def _decide(
        self, decide: Callable[[Txn], records.AnyCommand | Refusal | Due]
    ) -> Executed | Refusal | Earlier | Due:
        self._check_open()
        if self.control.failed:
            raise RecordingFailed(FAILED)
        for _ in range(_ROOM_TRIES):
            # The housekeeper did not get to it: make room here, outside the transaction.
            try:
                return self._transact(decide)
            except MissingSegment as missing:
                self._create_segment(missing.base)
            except StateFull:
                self._store.grow()
        raise RecordingFailed(f"{self.directory.path}: others use up whatever room is made")

    def _create_segment(self, base: Lsn) -> None:
        try:
            self.segments.create(base)
        except OSError as error:
            raise RecordingFailed(
                f"{self.directory.journal}: no room for the next segment: {error.strerror}"
            ) from error

    def _transact(
        self, decide: Callable[[Txn], records.AnyCommand | Refusal | Due]
    ) -> Executed | Refusal | Earlier | Due:
        """Decide and apply, with a mark in this worker's slot that it may hold the write lock.

        One thread at a time, so that the mark is the holder's; LMDB lets in one writer anyway.
        """
        with self._writing:
            slot = self._slot
            if slot is not None:
                slot.mark_write(self.clock.monotonic())
            try:
                return self._apply_and_record(decide)
            finally:
                if slot is not None:
                    slot.mark_write(0)

    def _apply_and_record(
        self, decide: Callable[[Txn], records.AnyCommand | Refusal | Due]
    ) -> Executed | Refusal | Earlier | Due:
        store = self._store
        with store.write() as txn:
            command = decide(txn)
            if isinstance(command, Refusal | Due):
                # Nothing was stored, so this commits nothing, at once. To abort would be to wait,
                # with the lock, until no other call of this process is in LMDB: also a long copy.
                return command
            tail = store.meta.tail(txn)
            result: Result = self._apply(txn, command, tail.number + 1)
            if isinstance(result, Refusal | Earlier):
                txn.abort()
                return result
            body = records.encode(command, result)
            record = self._writer.encode(tail, self.control.durable(), body)
            store.meta.set_tail(txn, record.tail)
            self._reserve.check(txn, command, record)
            # The last step before the commit, so that little can come between the two.
            self._writer.store(record)
        return Executed(result, record.tail.end, record.tail.number)

    def _waits(self) -> int:
        """Return since when this process may be waiting to write, 0 when it does not."""
        slot = self._slot
        return slot.write_mark if slot is not None else int(self._lock.locked())

    def prepare_next_segment(self) -> None:
        """Have the segment after the one in use ready, and those that open holds may need.

        Raises `OSError` when they cannot be.
        """
        self._writer.prepare_next(self.store.tail())
        self._reserve.prepare()

    def grow_ahead(self) -> None:
        """Let the state grow when less than a quarter is free; raises `RecordingFailed`.

        What another process has made of it is taken over first.
        """
        store = self.store
        store.adopt()
        room = store.room()
        if room.left < room.size // 4:
            store.grow()

    def health(self) -> Health:
        """Return the engine's state for people and probes; never raises for a failed node."""
        worker = self._worker[0] if self._worker else WorkerId(0)
        tail = self.store.tail().end
        control = self.control
        return Health(
            control.failed,
            worker,
            tail,
            control.durable(),
            self._alerts,
            self._unbilled,
            control.started_clean,
            self._reserve.space(),
        )

    def count_alerts(self, count: int) -> None:
        """Count what a person has to look at; shown by `health`."""
        self._alerts += count

    def count_unbilled(self) -> None:
        """Count a call that passed without being charged; shown by `health`."""
        self._unbilled += 1

    def _open_worker(self) -> tuple[WorkerId, FileLock, Flusher]:
        """Become a worker; raises `RecordingFailed` where the system has no file for that now."""
        self._check_open()
        try:
            return self._become_worker()
        except OSError as error:
            raise RecordingFailed(
                f"{self.directory.path}: cannot be written to: {error}"
            ) from error

    def _become_worker(self) -> tuple[WorkerId, FileLock, Flusher]:
        """Take an id nobody had, a lock that says we live, a slot; and do a first flush."""
        with self._lock, ExitStack() as undo, ExitStack() as opening:
            if self._worker is not None:
                return self._worker
            # From here on this process may wait for one that was stopped.
            self._watchdog.start()
            start = FileLock(self.directory.start_lock)
            opening.callback(start.close)
            start.exclusive()
            self._slot = self.control.opener()
            self._slot.claim(WorkerId(0), self.pid, start_time(self.pid), 0)
            undo.callback(setattr, self, "_slot", None)
            with self.store.read() as txn:
                last = self.store.meta.last_worker(txn)
            worker = WorkerId(max(last, self.directory.node.id_base) + 1)
            command = records.OpenWorker(self.clock.now(), worker, self.pid)
            lock = self.workers.lock(worker)
            # A lock that outlived a failure would block this engine's own next try.
            undo.callback(lock.close)
            self._decide(lambda _: command)
            slot = self.workers.claim_slot(worker, self.segments, self.tail())
            opening.close()
            flusher = Flusher(self.segments, self.control, slot, self.workers, self.tail)
            flusher.flush()
            undo.pop_all()
            self._slot = slot
            self._worker = (worker, lock, flusher)
            return self._worker

    def _check_open(self) -> None:
        if self._closed or self.pid != os.getpid():
            raise EngineClosed(f"{self.directory.path}: the engine is closed in this process")

    def close(self) -> None:
        """Flush what is committed and let go; a failed flush is logged, the journal decides."""
        if self._closed:
            return
        if self.pid == os.getpid():
            self._watchdog.stop()
        if self._worker is not None and self.pid == os.getpid():
            worker, lock, flusher = self._worker
            try:
                flusher.flush()
                with self._store.read() as txn:
                    stranded = self._store.holds.of(txn, worker)
                if not stranded:
                    self.workers.forget(worker)
            except (RecordingFailed, OSError) as error:
                logger.error("%s: closing: %s", self.directory.path, error)
            flusher.close()
            lock.close()
        self._closed = True
        if self.pid == os.getpid():
            close_cleanly(self._opened)
        else:
            self._opened.close()


_shared: dict[tuple[int, int], tuple[Engine, int]] = {}
_sharing = threading.Lock()


def _share_anew() -> None:
    """In a forked child: the lock may have been held by a thread that is not there."""
    global _sharing
    _sharing = threading.Lock()


os.register_at_fork(after_in_child=_share_anew)


def open_engine(
    path: Path | str,
    clock: Clock | None = None,
    files: Files | None = None,
    policy: BlockPolicy | None = None,
) -> Engine:
    """Open a node directory, or share this process's engine on it; pair with `close_engine`.

    ``clock``, ``files`` and ``policy`` are those of the first opening. An engine that was made
    before a fork is not shared with the child: the child opens its own.
    """
    path = Path(path)
    find(path)
    status = os.stat(path)
    place = (status.st_dev, status.st_ino)
    with _sharing:
        engine, count = _shared.get(place, (None, 0))
        if engine is not None and engine.pid != os.getpid():
            engine.close()
            engine, count = None, 0
        if engine is None:
            engine = Engine(path, clock or SystemClock(), files or Files(), policy or BelowZero())
        _shared[place] = (engine, count + 1)
        return engine


def health(path: Path | str) -> Health | None:
    """Return the health of a node directory as this process sees it; ``None`` where it is not open.

    For a health check of the API that finomw is in: the engine is the one that serves its calls.
    """
    try:
        status = os.stat(path)
    except FileNotFoundError:
        return None
    with _sharing:
        engine, _ = _shared.get((status.st_dev, status.st_ino), (None, 0))
        return None if engine is None or engine.pid != os.getpid() else engine.health()


def close_engine(engine: Engine) -> None:
    """Give one opening back; the last one closes the engine."""
    with _sharing:
        for place, (shared, count) in _shared.items():
            if shared is engine:
                if count > 1:
                    _shared[place] = (engine, count - 1)
                else:
                    del _shared[place]
                    engine.close()
                return
