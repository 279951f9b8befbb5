"""Plans for the model ledger: prices unit by unit, periods of a fixed length, in plain Python.

Everything is counted out: a graduated price adds up each unit's rate, the worst price of a call
tries every count at every usage. That is slow and hard to get wrong, and so what the package's own
closed forms are compared with. Time zones are left to the calendar's tests: days here are UTC's.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache

from finomw.types import Counts, Fund, Micros, UnixMicroseconds

HOUR = 3_600 * 10**6
DAY = 24 * HOUR
WEEK = 7 * DAY


@dataclass(frozen=True)
class ModelPrice:
    """One meter's price: a rate for each tier; a ``volume`` has one rate for a whole call."""

    rates: tuple[int, ...]
    bounds: tuple[int, ...] = ()
    volume: bool = False

    def cost(self, count: int, used: int) -> int:
        """Return what ``count`` units cost after ``used``."""
        if self.volume:
            return count * self._rate(used + count)
        return sum(self._rate(unit) for unit in range(used + 1, used + count + 1))

    @cache  # noqa: B019 - prices are few, and live as long as the tests
    def worst(self, ceiling: int, used: int, others: int) -> int:
        """Return the most that up to ``ceiling`` units may cost, however much others use first."""
        return max(
            self.cost(count, start)
            for count in range(ceiling + 1)
            for start in range(used, used + others + 1)
        )

    def _rate(self, unit: int) -> int:
        return self.rates[sum(bound < unit for bound in self.bounds)]


@dataclass(frozen=True)
class ModelQuota:
    """A quota of a plan; ``length`` is the period's in microseconds, ``None`` for once."""

    name: str
    meters: tuple[str, ...]
    units: int
    money: bool
    length: int | None
    roll_over: bool = False


@dataclass(frozen=True)
class ModelPlan:
    """A plan; its rates count parts of a micro, ``scale`` of them make one."""

    name: str
    prices: Mapping[str, ModelPrice]
    scale: int
    quotas: tuple[ModelQuota, ...]
    order: tuple[Fund, ...]
    usage_length: int

    @property
    def counted(self) -> tuple[str, ...]:
        """The meters whose price depends on the usage so far."""
        return tuple(meter for meter, price in self.prices.items() if price.bounds)

    def price(self, counts: Counts, used: Counts) -> Micros:
        """Return what counts cost after the usage so far, rounded up."""
        total = sum(
            self.prices[meter].cost(count, used.get(meter, 0)) for meter, count in counts.items()
        )
        return -(-total // self.scale)

    def worst(self, ceiling: Counts, used: Counts, others: Counts) -> Micros:
        """Return the most that up to these counts may cost."""
        total = sum(
            self.prices[meter].worst(count, used.get(meter, 0), others.get(meter, 0))
            for meter, count in ceiling.items()
        )
        return -(-total // self.scale)


def period_start(length: int, anchor: UnixMicroseconds, at: UnixMicroseconds) -> UnixMicroseconds:
    """Return when the period began that contains ``at``; periods follow the anchor's day."""
    first = anchor - anchor % min(length, DAY)
    return first + (at - first) // length * length
