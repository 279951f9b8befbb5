"""Two thousand damaged nodes: none invents money, loses what was on disk, hangs or has a bug."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from proving import run_script

pytestmark = pytest.mark.no_cover

SEED = 7
CASES = 2_000


@pytest.mark.timeout(900)
def test_no_damage_invents_money_or_hides_what_was_on_disk(figures: Callable[[str], None]) -> None:
    told = run_script("hostile.py", "--count", CASES, "--seed", SEED)
    figures(f"hostile files (seed {SEED}): {told}")
    assert told["cases"] == CASES
    for outcome in ("opened, nothing lost", "opened, tail cut", "refused: JournalDamaged"):
        assert told[outcome] > CASES // 50
    assert told["refused: ReplayDiffers"] > CASES // 20
