"""Short runs of `kills.py` and `http_kills.py`."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from proving import run_script

pytestmark = pytest.mark.no_cover

SEED = 20_261


@pytest.mark.parametrize("mode", ["random", "steps", "stops"])
def test_what_clients_saw_is_in_the_ledger_after_a_hundred_kills(
    mode: str, figures: Callable[[str], None]
) -> None:
    found = run_script("kills.py", "--count", 100, "--mode", mode, "--seed", SEED)
    assert found["kills"] == 100
    assert found["compared"] >= 100
    figures(
        f"kills ({mode}): {found['kills']} with 1 and 4 workers, {found['seen']} sightings, "
        f"{found['entries']} entries, 0 lost, seed {SEED}"
    )


def test_what_http_clients_saw_is_in_the_ledger_after_twenty_kills(
    figures: Callable[[str], None],
) -> None:
    found = run_script("http_kills.py", "--count", 20, "--seed", SEED)
    assert found["kills"] == 20
    assert found["whole answers"] > 0
    figures(
        f"kills (HTTP): {found['kills']} of uvicorn's workers, {found['whole answers']} whole "
        f"and {found['cut answers']} cut answers, 0 lost, seed {SEED}"
    )
