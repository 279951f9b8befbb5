from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from functools import partial
from multiprocessing.pool import Pool

import mutants
import pytest
import worlds
from mutants import MUTANTS, Hunt

pytestmark = [pytest.mark.no_cover, pytest.mark.timeout(900)]


@pytest.fixture(scope="module")
def pool() -> Iterator[Pool]:
    with worlds.FORKS.Pool() as pool:
        yield pool


def test_every_seeded_bug_is_caught_and_the_code_as_it_is_is_not(
    pool: Pool, figures: Callable[[str], None]
) -> None:
    began = time.monotonic()
    hunts = pool.map(mutants.hunt, MUTANTS, chunksize=1)
    assert [hunt.name for hunt in hunts if not hunt.noticed] == []
    efforts: dict[str, Hunt] = {}
    for hunt in hunts:
        tune = MUTANTS[hunt.name].tune.__name__
        if hunt.histories > efforts.get(tune, Hunt("", 0, 0, "")).histories:
            efforts[tune] = hunt
    same = [(hunt.name, hunt.histories) for hunt in efforts.values()]
    unmutated = pool.starmap(partial(mutants.hunt, mutated=False), same, chunksize=1)
    assert [hunt.noticed for hunt in unmutated if hunt.noticed] == []
    most = max(hunts, key=lambda hunt: hunt.images)
    figures(
        f"mutants: {len(hunts)} of {len(MUTANTS)} seeded bugs caught, the hardest "
        f"({most.name}) after {most.images:,} images; the code as it is passed the same "
        f"{sum(hunt.images for hunt in unmutated):,}; {time.monotonic() - began:.0f} s"
    )


def test_a_mutant_leaves_no_trace() -> None:
    level = logging.root.manager.disable
    try:
        name = "acknowledged before the flush"
        assert mutants.hunt(name, 1).noticed
        assert not mutants.hunt(name, 1, mutated=False).noticed
    finally:
        logging.disable(level)
