from __future__ import annotations

import time
from collections.abc import Callable

import pytest
import watermark_model
from watermark_model import OPENING, PAIR, Budget, Explored, Rules, Violated

pytestmark = pytest.mark.no_cover

EVERYTHING = Budget(losses=1, kills=2, evictions=1)


def test_the_watermark_never_passes_the_disk_and_nobody_is_blocked(
    figures: Callable[[str], None],
) -> None:
    began = time.monotonic()
    explored = Explored(0, 0, 0)
    for processes in (PAIR, OPENING):
        explored = explored.plus(watermark_model.explore(processes, Rules(), EVERYTHING))
    figures(watermark_model.figures(explored, time.monotonic() - began))
    assert explored.states > 50_000
    assert explored.solos > 10_000


@pytest.mark.parametrize("rule", Rules._fields)
def test_the_model_needs_each_of_its_rules(rule: str) -> None:
    rules = Rules()._replace(**{rule: False})
    with pytest.raises(Violated, match=r"passes what is on disk|is published"):
        watermark_model.explore(PAIR, rules, EVERYTHING)


def test_a_flusher_that_waited_for_a_stopped_one_would_be_noticed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    begin = watermark_model.Model._begin

    def wait(self: watermark_model.Model, state: object, index: int, process: object) -> object:
        others = [p for at, p in enumerate(state.processes) if at != index]  # type: ignore[attr-defined]
        return None if any(p.at == "end" for p in others) else begin(self, state, index, process)  # type: ignore[arg-type]

    monkeypatch.setattr(watermark_model.Model, "_begin", wait)
    with pytest.raises(Violated, match="is blocked by the others"):
        watermark_model.explore(PAIR, Rules(), Budget(0, 0, 0))
