"""File locks that say who is there: held for life, gone with the process, never inherited.

``flock`` belongs to an open file description, which a forked child shares: a child that lived on
would keep its dead parent's lock. So every lock's descriptor is closed in forked children.
Nothing here is about data; data is guarded by the store's own write lock.
"""

from __future__ import annotations

import fcntl
import os
import threading
import time
import weakref
from pathlib import Path

_TRIES_A_SECOND = 100


class FileLock:
    """An advisory lock on a file of its own, which is created when missing, if wanted."""

    def __init__(self, path: Path, *, create: bool = True) -> None:
        self.path = path
        flags = os.O_RDWR | os.O_CLOEXEC | (os.O_CREAT if create else 0)
        with _opening:
            self._fd = os.open(path, flags, 0o600)
            _locks.add(self)

    def exclusive(self) -> None:
        """Wait until nobody else holds the lock in any way, and take it."""
        fcntl.flock(self._fd, fcntl.LOCK_EX)

    def try_exclusive(self) -> bool:
        """Take the lock if nobody holds it in any way; say whether that was so."""
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True

    def exclusive_within(self, seconds: int) -> bool:
        """Try to take the lock for so long; say whether that was possible."""
        for _ in range(seconds * _TRIES_A_SECOND):
            if self.try_exclusive():
                return True
            time.sleep(1 / _TRIES_A_SECOND)
        return False

    def shared(self) -> None:
        """Wait until nobody holds the lock exclusively, and share it.

        Turning an exclusive lock into a shared one lets go of it for a moment, so that must
        happen under another lock.
        """
        fcntl.flock(self._fd, fcntl.LOCK_SH)

    def release(self) -> None:
        """Let others have the lock; it can be taken again."""
        fcntl.flock(self._fd, fcntl.LOCK_UN)

    def close(self) -> None:
        """Let go."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


_locks: weakref.WeakSet[FileLock] = weakref.WeakSet()
_opening = threading.RLock()
"""Held while a lock is opened, and by a fork: a child that has a descriptor it does not know of
would keep what the parent locks with it afterwards, also from itself."""


def _close_in_child() -> None:
    for lock in list(_locks):
        lock.close()
    _opening.release()


os.register_at_fork(
    before=_opening.acquire, after_in_parent=_opening.release, after_in_child=_close_in_child
)
