"""The only reader of time.

Everything that needs the time gets it from here, so that tests can put a hand-moved clock in its
place and replay can be shown to read none. Times are whole microseconds: no floats near money.
"""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta
from typing import Final, Protocol

from finomw.types import UnixMicroseconds

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


def rfc3339(at: UnixMicroseconds) -> str:
    """Return a point in time as text: ``2026-01-31T23:59:59.000001Z``, always in UTC."""
    moment = _EPOCH + timedelta(microseconds=at)
    return moment.replace(tzinfo=None).isoformat(timespec="microseconds") + "Z"


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
