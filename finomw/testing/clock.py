"""A clock that stands still until a test moves it.

Both of its readings move together, so that a test which advances time by a second sees a second
everywhere. It starts at a fixed moment: a test's ledger is the same on every run.
"""

from __future__ import annotations

from finomw.types import UnixMicroseconds

START: UnixMicroseconds = 1_767_225_600_000_000
"""2026-01-01T00:00:00Z."""


class ManualClock:
    """A `finomw.clock.Clock` that moves only by `advance`."""

    def __init__(self, now: UnixMicroseconds = START) -> None:
        self._now = now
        self._monotonic = 0

    def now(self) -> UnixMicroseconds:
        """Microseconds since the Unix epoch."""
        return self._now

    def monotonic(self) -> int:
        """Nanoseconds of a clock that never goes back."""
        return self._monotonic

    def advance(self, microseconds: int) -> None:
        """Let time pass."""
        self._now += microseconds
        self._monotonic += microseconds * 1_000
