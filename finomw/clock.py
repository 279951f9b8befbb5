"""The only reader of time.

Everything that needs the time gets it from here, so that tests can put a hand-moved clock in its
place and replay can be shown to read none. Times are whole microseconds: no floats near money.
"""

from __future__ import annotations

import time
from typing import Protocol

from finomw.types import UnixMicroseconds


class Clock(Protocol):
    """What the engine asks for the time."""

    def now(self) -> UnixMicroseconds:
        """Microseconds since the Unix epoch."""
        ...

    def monotonic(self) -> int:
        """Nanoseconds of a clock that never goes back; only differences mean anything."""
        ...


class SystemClock:
    """The machine's clocks."""

    def now(self) -> UnixMicroseconds:
        """Microseconds since the Unix epoch."""
        return time.time_ns() // 1_000

    def monotonic(self) -> int:
        """Nanoseconds of a clock that never goes back; only differences mean anything."""
        return time.monotonic_ns()
