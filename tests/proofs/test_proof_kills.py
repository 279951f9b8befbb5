"""Short runs of `kills.py` and `http_kills.py`."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from proving import ProofFailed, run_script

# isort: split

from witness import check
from workload import Load, Place, Seen, make, open_node

from finomw import limits
from finomw.store.env import Transaction

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


def test_a_worker_that_begins_while_it_is_compared_lives_and_a_dead_one_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = Place(tmp_path / "node", tmp_path / "seen")
    make(place, 8 * limits.MIB)
    engine = open_node(place)
    read = engine.store.read

    def begin_first() -> Transaction:
        monkeypatch.undo()
        Load(engine, Seen(place)).hold(1)
        return read()

    monkeypatch.setattr(engine.store, "read", begin_first)
    assert check(engine, place.seen, [os.getpid()]).holds == 1
    with pytest.raises(ProofFailed, match="is stranded"):
        check(engine, place.seen)
    engine.close()
