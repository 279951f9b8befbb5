"""Long random walks of the engine against the model: busy customers, rich plans, fixed seeds.

Hypothesis finds the short stories and makes them shorter; these make the long ones, in which
quotas run out, periods end, tiers fill and money comes and goes all at once.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest
from test_engine_model import LENGTHS, NOBODY, ORDERS, EngineAgainstModel

from finomw.testing.plans import DAY, HOUR, WEEK, ModelPlan, ModelPrice, ModelQuota
from finomw.types import Counts, Fund, OnCrash

STEPS = 250


class Walk:
    """One walk: every choice is the seed's."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.machine = EngineAgainstModel()

    def pick(self, *choices: Any) -> Any:
        return self.random.choice(choices)

    def price(self) -> ModelPrice:
        if self.random.random() < 0.3:
            return ModelPrice((self.pick(0, 1, 3),))
        bounds = tuple(sorted(self.random.sample(range(1, 60), self.pick(1, 2))))
        rates = tuple(self.random.randint(0, 9) for _ in range(len(bounds) + 1))
        return ModelPrice(rates, bounds, self.pick(True, False))

    def quota(self, name: str) -> ModelQuota:
        length, money = self.pick(*LENGTHS), self.random.random() < 0.4
        meters = () if money else self.pick(("x",), ("y", "x"), ("x", "y"))
        roll_over = length is not None and self.pick(True, False)
        return ModelQuota(name, meters, self.pick(3, 10, 40), money, length, roll_over)

    def plan(self, name: str) -> ModelPlan:
        quotas = self.random.sample("qrs", self.pick(0, 1, 2, 3))
        return ModelPlan(
            name,
            {"x": self.price(), "y": self.price()},
            self.pick(1, 2, 3),
            tuple(self.quota(quota) for quota in quotas),
            self.pick(*ORDERS, *ORDERS[:3]),
            self.pick(DAY, WEEK),
        )

    def counts(self) -> Counts:
        return {"x": self.random.randint(0, 9), "y": self.random.randint(0, 6)}

    def run(self) -> None:
        machine = self.machine
        try:
            machine.begin([self.plan("gold"), self.plan("iron")], self.pick(0, 60, 500), False)
            steps, weights = zip(*self.steps(), strict=True)
            for step in self.random.choices(steps, weights, k=STEPS):
                step()
                machine.agrees()
                machine.agrees_about_holds()
        finally:
            machine.teardown()

    def steps(self) -> list[tuple[Callable[[], None], int]]:
        """Return what may come next, and how often."""
        machine, pick = self.machine, self.pick

        def who() -> str:
            return str(pick("a", "a", "b", "b", "c"))

        def which() -> int:
            return self.random.randint(0, 999)

        def plan() -> str:
            return str(pick("gold", "iron"))

        def on_open_hold(act: Callable[[], None]) -> Callable[[], None]:
            return lambda: act() if machine.model.holds else None

        def hold() -> None:
            kind = pick("usual", "usual", "flat", "explicit")
            machine.hold(
                pick("a", "a", "a", "b", "b", "b", "c", NOBODY),
                self.counts(),
                pick(0, 30, 1000),
                pick(*OnCrash),
                pick(True, False, False),
                kind,
            )

        def settle() -> None:
            machine.settle(which(), self.counts(), pick("within", "within", "at", "above"))

        def extend() -> None:
            machine.extend(which(), pick(1, 4), pick(None, self.counts()), pick(0, 30))

        def grant() -> None:
            machine.grant(who(), pick(50, 200), pick(*"123456789"), "", pick(None, 1, 30))

        def refund() -> None:
            amount = pick("whole", "half", "half", "rest", "too much")
            machine.refund(who(), which(), amount, pick("1", "r1", "r2", "r3", "r4", "r5"))

        return [
            (hold, 90),
            (on_open_hold(settle), 50),
            (on_open_hold(lambda: machine.settle_whole(which())), 4),
            (on_open_hold(lambda: machine.release(which())), 10),
            (on_open_hold(lambda: machine.start(which())), 4),
            (on_open_hold(extend), 12),
            (grant, 24),
            (lambda: machine.give_again(which()), 3),
            (refund, 6),
            (lambda: machine.pay(who(), pick(5, 40, 500), str(which())), 5),
            (lambda: machine.suspend_or_resume(who(), pick(True, True, False)), 6),
            (lambda: machine.set_terms(who(), pick(None, 0, 60, 500), pick(None, 0, 70)), 5),
            (lambda: machine.change_plan(who(), plan(), pick("subscribe", "change")), 6),
            (lambda: machine.change_plan(who(), plan(), "leave"), 1),
            (lambda: machine.add_customer("c", plan(), pick(None, 0)), 2),
            (lambda: machine.delete(pick("b", "c"), pick(True, False)), 1),
            (lambda: machine.time_passes(pick(1, HOUR // 2, HOUR, 7 * HOUR, DAY)), 14),
            (lambda: machine.time_passes(3 * WEEK), 1),
            (machine.sweep, 6),
            (machine.expire, 4),
            (lambda: machine.corrupt_and_reconcile(who(), pick(*Fund), pick(-7, 13)), 2),
            (machine.close_and_open, 2),
            (machine.kill_and_open, 3),
            (lambda: machine.kill_and_rebuild(pick("control", "state", "both")), 2),
        ]


@pytest.mark.parametrize("seed", range(6))
def test_a_long_story_agrees_with_the_model(seed: int) -> None:
    Walk(seed).run()
