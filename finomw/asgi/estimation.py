"""Counts estimated from what passed of an answer, where the answer does not tell them.

A rule's ``estimate`` gives some of its meters as bytes of the body or as deltas, the texts of a
stream that say nothing about usage. Each is an estimate from below: it starts where what was said
ends, and stops at what was held. A meter that is not named, and was not said, is taken as held.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from finomw.types import Counts


class Passed(NamedTuple):
    """How much of an answer's body has left: bytes, and deltas where it is a stream."""

    size: int
    deltas: int


class Estimation:
    """The estimates of one rule: ``spec`` gives a meter as ``deltas`` or ``bytes / N``."""

    def __init__(self, spec: Mapping[str, str]) -> None:
        self._bytes: dict[str, int] = {}
        """How many bytes make one unit."""
        self._deltas = tuple(meter for meter, text in spec.items() if text == "deltas")
        for meter, text in spec.items():
            if text != "deltas":
                self._bytes[meter] = int(text.partition("/")[2] or 1)

    def of(self, passed: Passed) -> Counts:
        """Return what the named meters come to, rounded up, whatever was held."""
        counts = {meter: -(-passed.size // size) for meter, size in self._bytes.items()}
        return {**counts, **dict.fromkeys(self._deltas, passed.deltas)}

    def counts(self, said: Mapping[str, int | None], passed: Passed, ceiling: Counts) -> Counts:
        """Return an estimate of each meter that said nothing, or less; never above ``ceiling``."""
        guesses = self.of(passed)
        guessed = {}
        for meter, count in said.items():
            most = ceiling.get(meter, 0)  # a part of another meter is held with that one
            guess = min(guesses[meter], most) if meter in guesses else most
            if count is None or (meter in guesses and guess > count):
                guessed[meter] = guess
        return guessed
