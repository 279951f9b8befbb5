"""What a history is like: parameters drawn anew for each seed, so that no corner is left out."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import NamedTuple

from finomw import limits
from finomw.testing.disk import SECTOR


class Parameters(NamedTuple):
    """What one history is like."""

    unit: int
    tearing: bool
    segment_size: int
    workers: int
    records: int
    switching: float
    dying: float
    aligning: float
    note_max: int
    attaching: float
    flushing: float
    holding: float
    halfway: float
    unnamed: float
    checkpointing: float
    failing: float
    recycled: bool
    restarts: int


Tune = Callable[[Parameters], Parameters]
"""Changes what was drawn, to look for something in particular."""


class Tally(NamedTuple):
    """What was tried: images are distinct within their moment."""

    histories: int = 0
    images: int = 0
    books: int = 0
    records: int = 0
    torn: int = 0
    ghosts: int = 0
    killed: int = 0

    def plus(self, other: Tally) -> Tally:
        return Tally(*(mine + theirs for mine, theirs in zip(self, other, strict=True)))


def draw(rng: Random) -> Parameters:
    """Draw a history's parameters."""
    return Parameters(
        unit=rng.choice([limits.PAGE, SECTOR]),
        tearing=rng.random() < 0.5,
        segment_size=limits.PAGE * rng.choice([3, 3, 4, 5]),
        workers=rng.choice([1, 2, 2, 3, 4]),
        records=rng.randint(12, 45),
        switching=rng.choice([0.02, 0.1, 0.4]),
        dying=rng.choice([0.0, 0.005, 0.02]),
        aligning=rng.choice([0.0, 0.2, 0.7]),
        note_max=rng.choice([0, 40, 400, 1000]),
        attaching=rng.choice([0.0, 0.0, 0.2]),
        flushing=rng.choice([0.1, 0.3, 0.6]),
        holding=rng.choice([0.1, 0.6, 0.6]),
        halfway=rng.choice([0.0, 0.02, 0.1]),
        unnamed=rng.choice([0.0, 0.02, 0.1]),
        checkpointing=rng.choice([0.01, 0.03]),
        failing=rng.choice([0.0, 0.0, 0.0, 0.0, 0.0, 0.03]),
        recycled=rng.random() < 0.4,
        restarts=rng.choice([0, 0, 1, 1, 2]),
    )
