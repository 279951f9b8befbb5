"""Crash images: what a disk could hold after a power cut, at any moment of many histories.

Run as a script for as many as you like, from a fresh seed; the test beside it runs a fixed set.
"""

from __future__ import annotations

import argparse
import itertools
import logging
import secrets
import time
from collections.abc import Iterable
from functools import partial
from pathlib import Path

import histories
import worlds
from swarm import Tally

IMAGES_A_MOMENT = 20
BATCH = 40
"""Histories at a time."""


def _play(seed: int, keep: Path) -> Tally:
    logging.disable(logging.CRITICAL)  # each start that recovers says so
    return histories.play(seed, IMAGES_A_MOMENT, keep / str(seed))


def run(seeds: Iterable[int], keep: Path, count: int | None = None) -> Tally:
    """Play the histories of seeds on all processors, until there were ``count`` images.

    Raises `judges.Broken`, which names the seed; what broke is kept.
    """
    total, left = Tally(), iter(seeds)
    with worlds.FORKS.Pool() as pool:
        while batch := list(itertools.islice(left, BATCH)):
            for tally in pool.imap_unordered(partial(_play, keep=keep), batch):
                total = total.plus(tally)
            if count is not None and total.images >= count:
                break
    return total


def figures(tally: Tally, seconds: float) -> str:
    """Say what was tried, in one line."""
    return (
        f"crash images: {tally.images:,} of {tally.histories:,} histories, {tally.torn:,} with a "
        f"torn tail, {tally.ghosts:,} with a ghost; {tally.books:,} recovered journals replayed "
        f"and swept; {tally.killed:,} writers killed; 0 broken; {seconds:.0f} s"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=10_000_000, help="how many images")
    parser.add_argument("--seed", type=int, default=secrets.randbelow(2**32), help="the first seed")
    parser.add_argument("--keep", type=Path, default=Path("crash-images"), help="for what breaks")
    options = parser.parse_args()
    print(f"seeds from {options.seed}", flush=True)
    began = time.monotonic()
    tally = run(itertools.count(options.seed), options.keep, options.count)
    print(figures(tally, time.monotonic() - began))


if __name__ == "__main__":
    main()
