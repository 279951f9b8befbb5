"""The housekeeper: prepares segments, ends what dead workers left, expires grants, reconciles.

A thread in every process that serves requests; the one that holds ``housekeeper.lock`` does the
work, and another takes over when it dies. Trouble is logged and tried again: a missing segment is
made by the worker that needs it, and holds of the dead wait.
"""

from __future__ import annotations

import logging
import threading

from finomw.engine.engine import Engine
from finomw.engine.reconcile import reconcile
from finomw.engine.sweep import expire_grants, sweep
from finomw.errors import FinomwError
from finomw.journal.locks import FileLock

logger = logging.getLogger("finomw")

PERIOD_SECONDS = 1
RECONCILE_NANOSECONDS = 3_600 * 10**9
"""Between two passes that compare every account with its ledger: an hour."""


class Housekeeper:
    """Keeps house for one engine until `stop`."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._lock = FileLock(engine.directory.housekeeper_lock)
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="finomw-housekeeper", daemon=True)
        self._last_trouble = ""
        self._reconcile_at = engine.clock.monotonic() + RECONCILE_NANOSECONDS

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

    def round(self) -> None:
        """Do everything once; log trouble when it is new."""
        try:
            self._engine.prepare_next_segment()
            ended = sweep(self._engine)
            expire_grants(self._engine)
            self._reconcile_if_due()
        except (FinomwError, OSError) as error:
            if str(error) != self._last_trouble:
                logger.error("housekeeper: %s", error)
            self._last_trouble = str(error)
            return
        self._last_trouble = ""
        if ended:
            logger.warning("housekeeper: ended %d holds of workers that died", ended)

    def _reconcile_if_due(self) -> None:
        """Compare all accounts with their ledgers now and then; a difference is logged there."""
        now = self._engine.clock.monotonic()
        if now >= self._reconcile_at:
            self._reconcile_at = now + RECONCILE_NANOSECONDS
            reconcile(self._engine)
