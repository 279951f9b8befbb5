"""The one bridge between the event loop and the disk: waiting for an LSN to be durable.

All calls of one loop that wait are served by one flush at a time; what commits while a flush is
under way waits for the next one. A short flush runs on the loop itself, where it costs less than
a thread's hop and gathers everything that settled in the same turn of the loop; where flushes
turn out long, they run in a thread and the loop goes on.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from finomw.engine.engine import Engine
from finomw.errors import EngineClosed, FinomwError
from finomw.types import Lsn

logger = logging.getLogger("finomw")

INLINE_FLUSH_NS = 1_000 * 1_000
"""A flush that usually takes no longer than this, in nanoseconds, runs on the loop."""
_MEMORY = 8
"""How many flushes the running mean remembers."""


class Durable:
    """Waits for durability on one event loop."""

    def __init__(self, engine: Engine, loop: asyncio.AbstractEventLoop) -> None:
        self._engine = engine
        self._loop = loop
        self._waiting: list[tuple[Lsn, asyncio.Future[None]]] = []
        self._scheduled = False
        self._flush_ns = INLINE_FLUSH_NS
        self._thread: ThreadPoolExecutor | None = None
        self._noted = ""

    def begin(self, end: Lsn) -> None:
        """Have everything before ``end`` flushed soon; nobody waits for it here."""
        if not self._scheduled and self._engine.durable() < end:
            self._scheduled = True
            self._loop.call_soon(self._flush)

    async def wait(self, end: Lsn) -> None:
        """Return when everything before ``end`` is on disk; raises `RecordingFailed`."""
        if self._engine.durable() >= end:
            return
        done: asyncio.Future[None] = self._loop.create_future()
        self._waiting.append((end, done))
        if not self._scheduled:
            self._scheduled = True
            self._loop.call_soon(self._flush)
        await done

    def _flush(self) -> None:
        """Flush here or in a thread, whichever the last flushes speak for."""
        if self._flush_ns <= INLINE_FLUSH_NS:
            self._finish(self._timed_flush)
            return
        if self._thread is None:
            self._thread = ThreadPoolExecutor(1, "finomw-flush")
        flushed = self._loop.run_in_executor(self._thread, self._timed_flush)
        flushed.add_done_callback(lambda future: self._finish(future.result))

    def _timed_flush(self) -> None:
        clock = self._engine.clock
        began = clock.monotonic()
        self._engine.flush()
        took = clock.monotonic() - began
        self._flush_ns += (took - self._flush_ns) // _MEMORY

    def _finish(self, result: Callable[[], object]) -> None:
        """Wake everybody whose LSN is durable now; flush again for those that came meanwhile."""
        self._scheduled = False
        try:
            result()
            durable = self._engine.durable()
        except FinomwError as error:
            self._note(error)
            self._fail(error)
            return
        still_waiting = []
        for end, done in self._waiting:
            if end > durable:
                still_waiting.append((end, done))
            elif not done.done():
                done.set_result(None)
        self._waiting = still_waiting
        if still_waiting:
            self._scheduled = True
            self._loop.call_soon(self._flush)

    def _note(self, error: FinomwError) -> None:
        """Log an error that no waiting call will tell of, when it is new."""
        waited_for = any(not done.done() for _, done in self._waiting)
        if waited_for or isinstance(error, EngineClosed) or str(error) == self._noted:
            return
        self._noted = str(error)
        logger.error("%s", error)

    def _fail(self, error: FinomwError) -> None:
        """Wake everybody with an error."""
        for _, done in self._waiting:
            if not done.done():
                done.set_exception(error)
        self._waiting.clear()

    def close(self) -> None:
        """Let the flush thread end; who still waits is told so."""
        self._fail(EngineClosed("the engine was closed before this was on disk"))
        if self._thread is not None:
            self._thread.shutdown(wait=False)
