"""How often a stream is settled while it goes on.

Looked at as its chunks pass: no timer runs, so nothing can outlive the call, and a stream that
stands still costs nothing. What a step settles is told in ``engine/charge.py``.
"""

from __future__ import annotations

from typing import Final, NamedTuple

_NANOSECONDS: Final = 10**9


class Pace(NamedTuple):
    """``every`` nanoseconds, or units of all meters together; ``timed`` tells which."""

    every: int
    timed: bool

    @classmethod
    def of(cls, text: str) -> Pace:
        """Read ``5s`` or ``1000 units``."""
        count, _, units = text.removesuffix("s").partition(" ")
        return cls(int(count), False) if units else cls(int(count) * _NANOSECONDS, True)


class Steps:
    """When one stream is due for a step; ``now`` is the engine's monotonic clock."""

    __slots__ = ("_pace", "_since")

    def __init__(self, pace: Pace, now: int) -> None:
        self._pace = pace
        self._since = now if pace.timed else 0

    def due(self, now: int, units: int) -> bool:
        """Say whether a step is due; if so, the next is counted from here."""
        at = now if self._pace.timed else units
        if at - self._since < self._pace.every:
            return False
        self._since = at
        return True

    @property
    def timed(self) -> bool:
        """Whether the units do not matter."""
        return self._pace.timed
