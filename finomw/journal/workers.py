"""Who writes to this node: one lock file and one slot for each opened engine.

A worker's id comes from a counter and is never used again, so its holds can be told from
anybody's. It holds an exclusive lock on ``workers/<id>.lock`` for life: a free lock means a dead
worker, at once and without guessing, also when its process id has been taken by another.
"""

from __future__ import annotations

import os
from contextlib import closing
from pathlib import Path
from typing import NamedTuple

from finomw.errors import FlushFailed
from finomw.journal.control import Control, Slot
from finomw.journal.locks import FileLock
from finomw.journal.reader import reaches
from finomw.journal.segment import Segments, Window
from finomw.types import Lsn, WorkerId

LOST = "a flush was cut off and lost its data; charging has stopped until a restart with recovery"


class Workers:
    """The workers of one node directory, seen from one process."""

    def __init__(self, directory: Path, control: Control) -> None:
        self._directory = directory
        self._control = control

    def _path(self, worker: WorkerId) -> Path:
        return self._directory / f"{worker}.lock"

    def lock(self, worker: WorkerId) -> FileLock:
        """Take a new worker's lock, to be held as long as it lives."""
        lock = FileLock(self._path(worker))
        lock.exclusive()
        return lock

    def alive(self, worker: WorkerId) -> bool:
        """Say whether a worker, not this process's own, still holds its lock."""
        try:
            probe = FileLock(self._path(worker), create=False)
        except FileNotFoundError:
            return False
        try:
            return not probe.try_exclusive()
        finally:
            probe.close()

    def forget(self, worker: WorkerId) -> None:
        """Remove what a dead worker left here, once it was healed and its holds have ended."""
        for slot in self._control.slots():
            if slot.worker == worker:
                slot.free()
        self._path(worker).unlink(missing_ok=True)

    def forget_unborn(self, start_lock: Path) -> None:
        """Remove the locks of processes that died before they had a slot.

        A lock is made and taken, and its slot claimed, under the start lock: so only under it can
        a lock that is free be told from one that is about to be taken. Whoever is opening now has
        it; then the next sweep will do.
        """
        if not self._unborn():
            return
        start = FileLock(start_lock)
        try:
            if start.try_exclusive():
                for worker in self._unborn():
                    if not self.alive(worker):
                        self._path(worker).unlink(missing_ok=True)
        finally:
            start.close()

    def _unborn(self) -> list[WorkerId]:
        """Return the workers that have a lock and no slot."""
        known = {slot.worker for slot in self._control.slots()}
        found = (WorkerId(int(path.stem)) for path in self._directory.glob("*.lock"))
        return [worker for worker in found if worker not in known]

    def claim_slot(self, worker: WorkerId, segments: Segments, committed: Lsn) -> Slot:
        """Give a worker a slot; call it under the start lock."""
        heal(self._control, self, segments, committed)
        free = (slot for slot in self._control.slots() if not slot.worker)
        slot = next(free, None) or self._control.add_slot()
        slot.claim(worker, os.getpid(), start_time(os.getpid()), self._control.durable())
        return slot


def heal(
    control: Control,
    workers: Workers,
    segments: Segments,
    committed: Lsn,
    mine: Slot | None = None,
    *,
    everyone: bool = False,
) -> None:
    """Store again what was being flushed when its flusher was cut off; call it before a flush.

    A dead worker may have been told of an error that nobody will be told of again, with the pages
    already marked clean; so may this one, in ``mine``, when a signal's exception cut in. A living
    one may be about to say so: ``everyone`` is for who would not be told, because its descriptors
    are newer. What is committed never changes, so it can be stored onto itself at any time; unless
    it has left memory too, which is a failed flush. Raises `FlushFailed`, `OSError`.
    """
    for slot in control.slots():
        worker, mark = slot.worker, slot.flush_mark
        if not (worker and mark):
            continue
        over = (mine is not None and slot.index == mine.index) or not workers.alive(worker)
        if over or everyone:
            durable, end = control.durable(), max(committed, mark)
            with closing(Window(segments)) as window:
                for base in segments.covering(durable, end):
                    window.at(base).restore(durable, end)
            # Another's flush may have got further meanwhile.
            if durable < end and not reaches(segments, durable, end):
                control.fail()
                raise FlushFailed(LOST)
        if over:
            slot.flush_mark = 0


class ProcessStatus(NamedTuple):
    """A process's state, a letter, and when it started, in clock ticks since boot."""

    state: str
    started: int

    @property
    def stopped(self) -> bool:
        """Whether it was stopped by a signal or a debugger, and runs on only when told to."""
        return self.state in {"T", "t"}

    @property
    def dead(self) -> bool:
        """Whether it has ended, though its parent has not taken notice yet."""
        return self.state in {"Z", "X", "x"}


def process_status(pid: int) -> ProcessStatus | None:
    """Return a process's status (``proc(5)``, fields 3, 22); ``None`` where it cannot be seen."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(errors="replace")
    except OSError:
        return None
    fields = stat.rpartition(")")[2].split()
    return ProcessStatus(fields[0], int(fields[19]))


def start_time(pid: int) -> int:
    """Return when a process started, in clock ticks since boot; 0 where it cannot be seen."""
    status = process_status(pid)
    return 0 if status is None else status.started
