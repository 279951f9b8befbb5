"""The group flush: one ``fdatasync`` makes durable what every worker has committed so far.

The watermark moves only to the tail that was committed *before* the flush began, and only after
the failure flag was looked at again. Any process may flush at any time, so a stopped flusher
blocks nobody. A failed flush is final: the kernel may have marked the lost pages clean, so that a
second try would report success for data that is gone. The flag stops every worker; only a restart
that believes the disk goes on.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable

from finomw import limits
from finomw.errors import EngineClosed, FlushFailed, RecordingFailed
from finomw.journal.control import Control, Slot
from finomw.journal.segment import Segments
from finomw.journal.workers import Workers, heal
from finomw.types import Lsn

_AHEAD = 16 * limits.PAGE
"""How far ahead of the tail pages are read, in bytes."""

FAILED = "a flush to disk failed; charging has stopped until a restart with recovery"


class Flusher:
    """Flushes for one worker, from any of its threads."""

    def __init__(
        self,
        segments: Segments,
        control: Control,
        slot: Slot,
        workers: Workers,
        committed: Callable[[], Lsn],
    ) -> None:
        self._segments = segments
        self._control = control
        self._slot = slot
        self._workers = workers
        self._committed = committed
        self._one_at_a_time = threading.Lock()
        self._closed = False
        self._ahead: Lsn = 0

    def flush(self) -> Lsn:
        """Make durable what was committed before this call; return the durable LSN.

        Raises `FlushFailed` when this or any other flush of the node failed, `RecordingFailed`
        where it could not begin, which is not final.
        """
        with self._one_at_a_time:
            if self._closed:
                raise EngineClosed("the engine was closed before this flush")
            committed = self._committed()
            durable = self._control.durable()
            self._check()
            if committed <= durable:
                self._segments.let_go(durable)
                return durable
            # Opened first: these descriptors are told of an error from now on, and the marks and
            # the flag, in this order, tell of one before.
            segments = list(self._segments.between(durable, committed))
            new = not all(segment.vouched for segment in segments)
            self._heal(committed, everyone=new)
            self._check()
            self._slot.flush_mark = committed
            try:
                for segment in segments:
                    segment.file.flush()
            except OSError as error:
                self._control.fail()
                self._slot.flush_mark = 0
                raise FlushFailed(f"{FAILED} ({error})") from error
            self._slot.flush_mark = 0
            self._check()
            self._slot.publish(committed)
            for segment in segments:
                segment.vouched = True
            self._segments.let_go(committed)
            self._read_ahead(committed)
            return committed

    def _heal(self, committed: Lsn, *, everyone: bool) -> None:
        slot, segments = self._slot, self._segments
        try:
            heal(self._control, self._workers, segments, committed, slot, everyone=everyone)
        except OSError as error:
            raise RecordingFailed(f"a flush could not begin: {error}") from error

    def _read_ahead(self, committed: Lsn) -> None:
        """Have the pages after the tail read, so that no store waits for one under the lock."""
        if committed > self._ahead - _AHEAD // 2:
            self._ahead = committed + _AHEAD
            segment = self._segments.at(self._segments.base_of(committed - 1))
            with contextlib.suppress(OSError):  # it is a hint, and what was flushed is flushed
                segment.file.will_need(committed - segment.base, _AHEAD)

    def close(self) -> None:
        """Wait for a flush under way in another thread, and refuse the next."""
        with self._one_at_a_time:
            self._closed = True

    def _check(self) -> None:
        if self._control.failed:
            raise FlushFailed(FAILED)
