"""Short runs of `cuts.py` and `fsyncgate.py`; skipped, loudly, without root and loop devices."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from proving import run_script

pytestmark = pytest.mark.no_cover

SEED = 20_262


def test_what_clients_saw_is_there_after_a_hundred_power_cuts(
    figures: Callable[[str], None],
) -> None:
    found = run_script("cuts.py", "--count", 100, "--seed", SEED)
    assert found["compared"] == 100
    assert found["cuts"] >= 100
    figures(
        f"power cuts (ext4): {found['cuts']}, {found['cuts of a start']} of them of a start, "
        f"{found['seen']} sightings, 0 lost, seed {SEED}"
    )


def test_a_flush_that_fails_for_real_stops_everybody_and_a_start_believes_the_disk(
    figures: Callable[[str], None],
) -> None:
    found = run_script("fsyncgate.py", "--count", 3, "--seed", SEED)
    assert found["failed flushes"] == 3
    figures(f"failed flushes (ext4 over a full tmpfs): 3, {found['seen']} sightings, 0 lost")
