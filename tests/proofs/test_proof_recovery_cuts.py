from __future__ import annotations

import itertools
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import recovery_cuts

pytestmark = pytest.mark.no_cover

CUTS = 5_000


@pytest.mark.timeout(900)
def test_a_recovery_that_is_cut_and_done_again_finds_the_same(
    tmp_path: Path, figures: Callable[[str], None]
) -> None:
    began = time.monotonic()
    tally = recovery_cuts.run(itertools.count(), tmp_path, CUTS)
    kills = sum(1 for _ in recovery_cuts.kill_openings(tmp_path))
    figures(recovery_cuts.figures(tally, kills, time.monotonic() - began))
    assert tally.cuts >= CUTS
    assert kills >= 50
