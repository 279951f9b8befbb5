"""Ending a process that was stopped while it holds the write lock: nobody else can write then.

LMDB takes the lock from a writer that has died, not from one that was stopped (SIGSTOP, a shell's
job control, a debugger). So each process marks its slot before it asks for the lock and clears the
mark after the commit, and a thread in every process that writes looks at the others' marks, a few
words of shared memory. Who is only slow, or waits for the disk, is never ended: see `Watchdog`.
"""

from __future__ import annotations

import logging
import os
import signal
import threading
from collections.abc import Callable, Iterator
from typing import Final, NamedTuple

from finomw.clock import Clock
from finomw.journal.control import Control
from finomw.journal.workers import ProcessStatus, process_status

logger = logging.getLogger("finomw")

PERIOD_SECONDS: Final = 0.25
SAMPLES: Final = 4
"""How often at least a process must be seen stopped, one time after the other."""
SPAN_NANOSECONDS: Final = 10**9
"""What must lie between the first and the last of these, or more."""

_OWN: Final = -2
"""The place of this process's own mark among the others'."""


class Mark(NamedTuple):
    """What a process says of its writing; any change of it is a sign of life."""

    slot: int
    pid: int
    started: int
    at: int


class Sighting(NamedTuple):
    """What was seen of a mark while it stood and nothing was committed, in samples.

    ``change`` is the last commit; ``since`` when its process was first seen ``stopped``.
    """

    change: int
    stopped: int = 0
    since: int = 0
    waiting: int = 0


class Processes:
    """What the watchdog asks of the system, so that a test can answer in its place."""

    def status(self, pid: int) -> ProcessStatus | None:
        """Return a process's state and start; ``None`` where there is none to be seen."""
        return process_status(pid)

    def end(self, pid: int, started: int) -> bool:
        """Kill a process if it is the one that started then, and stopped; say if it was.

        Raises `OSError` where the system or the process's owner has no way for that.
        """
        try:
            handle = os.pidfd_open(pid)
        except ProcessLookupError:
            return False
        try:
            # The handle stays that of one process: what is true of it now is so when it is killed.
            status = self.status(pid)
            if status is None or status.started != started or not status.stopped:
                return False
            signal.pidfd_send_signal(handle, signal.SIGKILL)
        except ProcessLookupError:
            return False
        finally:
            os.close(handle)
        return True


class Watchdog:
    """Looks at all write marks of a node, and ends the process that keeps everybody waiting.

    It is ended only if in `SAMPLES` samples or more, over more than `SPAN_NANOSECONDS`, its mark
    stood, it was stopped each time and nothing was committed; and if somebody who is not stopped
    waits to write, since the last sample at least. ``waits`` says since when this process does, or
    0. A process id means nothing without the start time in the slot: another pid namespace's
    process, or a later one with the same id, has another.
    """

    def __init__(
        self,
        control: Control,
        last_change: Callable[[], int],
        waits: Callable[[], int],
        clock: Clock,
        processes: Processes | None = None,
    ) -> None:
        self._control = control
        self._last_change = last_change
        self._waits = waits
        self._clock = clock
        self._processes = processes or Processes()
        self._pid = os.getpid()
        self._seen: dict[Mark, Sighting] = {}
        self._not_allowed: set[int] = set()
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Begin, in a thread of its own, unless that was done."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="finomw-watchdog", daemon=True)
            self._thread.start()

    def stop(self) -> None:
        """End the thread; afterwards it touches nothing of the node any more."""
        self._stopping.set()
        if self._thread is not None:
            self._thread.join()

    def _run(self) -> None:
        while not self._stopping.wait(PERIOD_SECONDS):
            self.look()

    def look(self) -> None:
        """Take one sample of all marks, and end who has to be ended."""
        marks = list(self._others())
        if not marks:
            self._seen.clear()
            return
        own = self._waits()
        if own:
            marks.append(Mark(_OWN, self._pid, 0, own))
        change, now = self._last_change(), self._clock.monotonic()
        self._seen = {mark: self._sighting(mark, change, now) for mark in marks}
        if not any(seen.waiting for seen in self._seen.values()):
            return
        # The oldest first: who has the lock had it before the others began to wait for it.
        for mark in sorted(marks, key=lambda mark: mark.at):
            seen = self._seen[mark]
            enough = seen.stopped >= SAMPLES and now - seen.since > SPAN_NANOSECONDS
            if enough and self._end(mark):
                self._seen.clear()
                return

    def _others(self) -> Iterator[Mark]:
        for slot in (self._control.opener(), *self._control.slots()):
            at = slot.write_mark
            if at and slot.pid != self._pid:
                yield Mark(slot.index, slot.pid, slot.started, at)

    def _sighting(self, mark: Mark, change: int, now: int) -> Sighting:
        """Add a sample to what was seen of a mark; a sign of life begins anew."""
        before = self._seen.get(mark)
        if before is None or before.change != change:
            return Sighting(change)
        if mark.slot == _OWN:
            return Sighting(change, waiting=before.waiting + 1)
        status = self._processes.status(mark.pid)
        if status is None or status.started != mark.started or status.dead:
            return Sighting(change)
        if not status.stopped:
            return Sighting(change, waiting=before.waiting + 1)
        since = before.since if before.stopped else now
        return Sighting(change, before.stopped + 1, since)

    def _end(self, mark: Mark) -> bool:
        """End a mark's process; say whether that was done."""
        what = f"process {mark.pid} was stopped while it may hold the write lock and others waited"
        try:
            ended = self._processes.end(mark.pid, mark.started)
        except OSError:
            if mark.pid not in self._not_allowed:
                self._not_allowed.add(mark.pid)
                logger.error("%s; it may not be ended from here: continue or kill it", what)
            return False
        if ended:
            logger.error("%s, so it was ended", what)
        return ended
