"""What one call is charged, as far as it came: its steps while it goes on, and its end.

``ending.py`` decides and ``engine/charge.py`` does; between them stands what belongs to one call:
its prices, its ceiling, when the next step is due. A step charges what the call would cost if it
ended there; what may turn out to cost less is only recorded.
"""

from __future__ import annotations

from finomw.asgi.ceiling import clipped, exceeds
from finomw.asgi.ending import WHOLE_HOLD, Answer, Charge, decide
from finomw.asgi.estimation import Estimation, Passed
from finomw.asgi.pace import Steps
from finomw.asgi.rules import PricedRule
from finomw.engine import charge
from finomw.engine.charge import Ended, Held
from finomw.engine.engine import Engine
from finomw.errors import InvalidValue, RecordingFailed
from finomw.metering.usage import Usage
from finomw.money.pricing import PriceList
from finomw.types import Counts, Lsn, UsageStatus


class Bill:
    """The bill of one held call; ``ceiling`` has the most that it may use, by meter."""

    def __init__(
        self, engine: Engine, rule: PricedRule, prices: PriceList, held: Held, ceiling: Counts
    ) -> None:
        self._engine = engine
        self._rule = rule
        self._prices = prices
        self._held = held
        self._ceiling = ceiling
        self._steps: Steps | None = None
        self._stepped: Counts = {}
        """The counts of the last step."""

    def begin(self) -> None:
        """Count time and units from here: the answer begins to leave."""
        if self._rule.pace is not None:
            self._steps = Steps(self._rule.pace, self._engine.clock.monotonic())

    @property
    def in_steps(self) -> bool:
        """Whether the call is settled while it goes on."""
        return self._steps is not None

    def exceeds(self, usage: Usage, passed: Passed) -> bool:
        """Say whether a call under way comes to more than is held, by its counts or estimates."""
        counts = dict(usage.counts)
        if isinstance(self._rule.estimate, Estimation):
            for meter, guess in self._rule.estimate.of(passed).items():
                counts[meter] = max(counts.get(meter, 0), guess)
        return exceeds(counts, self._ceiling, self._rule.splits)

    def step(self, usage: Usage, answer: Answer) -> Lsn:
        """Settle what has come so far, if it is time to; return the LSN behind it, 0 if not.

        Raises `RecordingFailed` where a flush failed: then there is no end to come either.
        """
        steps = self._steps
        now = self._engine.clock.monotonic()
        if steps is None or (steps.timed and not steps.due(now, 0)):
            return 0
        decision = decide(self._rule, usage, answer, self._ceiling)
        if isinstance(decision, str) or decision.counts is None:
            return 0
        counts, note, hold = decision.counts, decision.note, self._held.hold
        units = sum(counts.get(meter, 0) for meter in self._rule.measured)
        if counts == self._stepped or not (steps.timed or steps.due(now, units)):
            return 0
        # What is estimated, or told apart later, may turn out to cost less.
        record = bool(note or self._rule.splits)
        price, status = self._prices.price, decision.usage
        try:
            ended = charge.step(self._engine, hold, price, counts, status, note, record=record)
        except InvalidValue:
            return 0  # beyond any price: the end judges
        except RecordingFailed:
            if self._engine.control.failed:
                raise
            return 0  # no room now: the end has its own in reserve
        self._stepped = counts
        return ended.end

    def end(self, usage: Usage, answer: Answer, cut: bool = False) -> tuple[Lsn, bool]:
        """Settle or release; return the LSN behind it, and whether it was settled.

        A stream that was ``cut`` at its ceiling costs no more than that.
        """
        decision = decide(self._rule, usage, answer, self._ceiling)
        if isinstance(decision, str):
            return charge.release(self._engine, self._held.hold, decision).end, False
        if cut and decision.counts is not None:
            counts = clipped(decision.counts, self._ceiling, self._rule.splits)
            note = "; ".join(filter(None, ("cut at the ceiling", decision.note)))
            decision = Charge(counts, decision.usage, note)
        return self._settle(decision, usage.counts).end, True

    def _settle(self, decision: Charge, known: Counts) -> Ended:
        """Charge the counts' price, or the whole hold where they are unknown or beyond price."""
        engine, hold = self._engine, self._held.hold
        status, note = decision.usage, WHOLE_HOLD
        if decision.counts is not None:
            try:
                return charge.settle(
                    engine, hold, self._prices.price, decision.counts, status, decision.note
                )
            except InvalidValue as error:
                status, note = UsageStatus.INVALID, f"{note} ({error})"
        return charge.settle_whole(engine, hold, known, status, note)
