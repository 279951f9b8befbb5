"""Ten seconds of `soak.py`; how long a call waits is shown, and not judged on a busy machine."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from proving import run_script

pytestmark = pytest.mark.no_cover

SEED = 20_263


def test_nothing_grows_in_ten_seconds_of_kills_and_restarts(figures: Callable[[str], None]) -> None:
    arguments = ("--minutes", 1 / 6, "--interval", 3, "--wait-max", 60_000, "--seed", SEED)
    found = run_script("soak.py", *arguments)
    assert found["kills"] >= 2
    assert found["restarts"] >= 4
    figures(
        f"soak: {found['calls']} calls, {found['kills']} kills, {found['restarts']} restarts, "
        f"p99.9 {found['p99.9 us max'] / 1000:.0f} ms, seed {SEED}"
    )
