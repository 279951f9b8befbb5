"""The housekeeper: segments, checkpoints, pruning, holds of the dead, expiry, reconciliation.

A thread in every process that serves requests; the one that holds ``housekeeper.lock`` does the
work, and another takes over when it dies. Each ends those of its own holds that no call claims.
Trouble is logged and tried again: a missing segment is made by the worker that needs it, holds of
the dead wait, and without a new checkpoint a start replays more.
"""

from __future__ import annotations

import contextlib
import logging
import os
import threading
from collections.abc import Callable

from finomw.config.model import Storage
from finomw.engine.checkpoint import make_checkpoint, prune
from finomw.engine.engine import Engine
from finomw.engine.reconcile import reconcile
from finomw.engine.sweep import end_unclaimed, expire_grants, sweep
from finomw.errors import DirectoryError, FinomwError
from finomw.journal.locks import FileLock
from finomw.store.checkpoints import newest_end

logger = logging.getLogger("finomw")

PERIOD_SECONDS = 1
RECONCILE_NANOSECONDS = 3_600 * 10**9
"""Between two passes that compare every account with its ledger: an hour."""
CHECKPOINT_NANOSECONDS = 3_600 * 10**9
"""Between two checkpoints, if anything was written: an hour."""
CHECKPOINT_RETRY_NANOSECONDS = 300 * 10**9
"""After a checkpoint that failed: five minutes, since each try writes a whole copy."""

_DEFAULTS = Storage()


class Housekeeper:
    """Keeps house for one engine until `stop`."""

    def __init__(self, engine: Engine, storage: Storage = _DEFAULTS) -> None:
        """Take part; raises `DirectoryError` where the lock's file cannot be opened."""
        self._engine = engine
        self._storage = storage
        path = engine.directory.housekeeper_lock
        try:
            self._lock = FileLock(path)
        except OSError as error:
            raise DirectoryError(f"{path}: cannot be opened: {error.strerror}") from error
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="finomw-housekeeper", daemon=True)
        self._last_trouble = ""
        self._room_trouble = ""
        self._low_space = False
        now = engine.clock.monotonic()
        self._reconcile_at = now + RECONCILE_NANOSECONDS
        self._checkpoint_at = now + CHECKPOINT_NANOSECONDS
        self._checkpoint_retry_at = now
        self._journal_trouble: set[str] = set()

    def start(self) -> None:
        """Begin, in a thread of its own."""
        self._thread.start()

    def stop(self) -> None:
        """End the thread and let another process keep house."""
        self._stopping.set()
        if self._thread.is_alive():
            self._thread.join()
        self._lock.close()

    def _run(self) -> None:
        while not self._stopping.wait(PERIOD_SECONDS):
            if self._lock.try_exclusive():
                self.round()
                self.tend_journal()
            else:
                self._follow()
                self._attempt(lambda: end_unclaimed(self._engine))

    def _follow(self) -> None:
        """Take over early what another process made of the state, so that no call has to."""
        with contextlib.suppress(FinomwError):  # who needs it tries again, and says so
            self._engine.store.adopt()

    def round(self) -> None:
        """Do everything once; log trouble when it is new."""
        self._prepare_room()
        self._attempt(self._end_and_compare)

    def _end_and_compare(self) -> int:
        ended = sweep(self._engine)
        expire_grants(self._engine)
        self._reconcile_if_due()
        return ended

    def _attempt(self, work: Callable[[], int]) -> None:
        """Do some work, which returns how many holds it ended."""
        try:
            ended = work()
        except (FinomwError, OSError) as error:
            if _told(error) != self._last_trouble:
                logger.error("housekeeper: %s", _told(error))
            self._last_trouble = _told(error)
            return
        self._last_trouble = ""
        if ended:
            logger.warning("housekeeper: ended %d holds that nobody else would end", ended)

    def _prepare_room(self) -> None:
        """Have room ahead, and say when space gets low and when it is fine again.

        Trouble here keeps no hold from being ended.
        """
        engine, trouble = self._engine, ""
        try:
            engine.prepare_next_segment()
            engine.grow_ahead()
        except (FinomwError, OSError) as error:
            trouble = _told(error)
            if trouble != self._room_trouble:
                logger.error("housekeeper: no room ahead: %s", trouble)
        self._room_trouble = trouble
        self._tell_space()

    def _tell_space(self) -> None:
        engine = self._engine
        try:
            space, path = engine.health().space, engine.directory.path
        except (FinomwError, OSError):  # what ails the disk has been told
            return
        if space.low and not self._low_space:
            text = "%s: low space: %d bytes free; without more, new calls will get 503"
            logger.warning(text, path, space.disk_free)
        elif self._low_space and not space.low:
            logger.info("%s: enough space again: %d bytes free", path, space.disk_free)
        self._low_space = space.low

    def _reconcile_if_due(self) -> None:
        """Compare all accounts with their ledgers now and then; a difference is logged there."""
        now = self._engine.clock.monotonic()
        if now >= self._reconcile_at:
            self._reconcile_at = now + RECONCILE_NANOSECONDS
            reconcile(self._engine)

    def tend_journal(self) -> None:
        """Make a checkpoint when one is due, and prune what it made useless.

        Only who holds the lock does this: of several copies at once all but one are for nothing.
        Trouble is logged when it is new, and tried again later.
        """
        now = self._engine.clock.monotonic()
        try:
            if now >= self._checkpoint_retry_at and self._checkpoint_is_due(now):
                # Until it has succeeded, it has failed.
                self._checkpoint_retry_at = now + CHECKPOINT_RETRY_NANOSECONDS
                make_checkpoint(self._engine, wait=False)
                self._checkpoint_at = now + CHECKPOINT_NANOSECONDS
                self._checkpoint_retry_at = now
                self._journal_trouble.clear()
            prune(self._engine, self._storage.keep)
        except (FinomwError, OSError) as error:
            if _told(error) not in self._journal_trouble:
                logger.error("housekeeper: %s", _told(error))
            self._journal_trouble.add(_told(error))

    def _checkpoint_is_due(self, now: int) -> bool:
        """Say whether enough was written since the last checkpoint, or anything for long."""
        written = self._engine.tail() - newest_end(self._engine.directory.checkpoints)
        return written >= self._storage.checkpoint_every or (
            now >= self._checkpoint_at and written > 0
        )


def _told(error: Exception) -> str:
    """Return an error's text, the same for the same trouble: drafts have a new name each time."""
    if not isinstance(error, OSError):
        return str(error)
    place = f"{os.path.dirname(error.filename)}: " if isinstance(error.filename, str) else ""
    return f"{place}{error.strerror or error}"
