"""How much reading the event loop can bear at one go.

Decoding and jq hold the interpreter for as long as they run, and documents come from anyone. So
what runs on the event loop is given an `Allowance`, worked out so that even the worst document of
its size is read within about 50 ms; what would exceed it raises `NotInline` before it begins, and
is done in the helper process (``guard.py``). Without an allowance, as there, nothing is bounded.
"""

from __future__ import annotations

from typing import Final

from finomw import limits
from finomw.errors import FinomwError
from finomw.metering.growth import Growth

_RUN: Final = 64
"""What a run of jq costs beside its document's size."""


class NotInline(FinomwError):
    """It may take longer than the event loop can wait."""


class Allowance:
    """What is left of one go."""

    __slots__ = ("_left",)

    def __init__(self) -> None:
        self._left = limits.JQ_INLINE

    def decode(self, size: int) -> None:
        """Ask to decode a document of ``size`` bytes. Raises `NotInline`."""
        if size > limits.DECODED_INLINE:
            raise NotInline(f"{size} bytes are too many to decode at one go")

    def split(self, size: int) -> None:
        """Ask to make an object of each element of an array. Raises `NotInline`."""
        if size > limits.SPLIT_INLINE:
            raise NotInline(f"{size} bytes are too many to split at one go")

    def run(self, size: int, growth: Growth | None) -> None:
        """Ask to run jq on ``size`` bytes. Raises `NotInline`."""
        if growth is None:
            raise NotInline("this program may take any time")
        exponent = max(growth.time, growth.outputs, growth.size if growth.size > 1 else 0)
        if exponent >= len(limits.JQ_WEIGHTS):
            raise NotInline("this program may take long on a small document")
        self._left -= (size + _RUN) * limits.JQ_WEIGHTS[exponent]
        if self._left < 0:
            raise NotInline(f"{size} bytes are too many for jq at one go")
