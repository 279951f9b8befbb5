"""How the units of one meter become money: what a price may be, and the scales it compiles to.

A price is exact: a rational number of micros for each unit, for each started package of a call,
or for each unit of a tier. The rates of a list are brought over one common denominator, and a
scale counts in numerators: integers only. For a call's ``count > 0`` at ``used`` units before it,
both of the same meter and the latter in the same period::

    package    ceil(count / units) * price               a block that was started is paid
    graduated  G(used + count) - G(used)                 each unit at the rate of its own tier
    volume     count * rate of the tier of used + count  earlier calls are never priced again

``G`` is the sum of the rates of the first units; tiers include their bounds. No scale ever gives
less than zero, and each names the worst call within a box of counts and usage exactly.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator
from fractions import Fraction
from itertools import pairwise
from typing import Literal, NamedTuple, TypeAlias

import msgspec

from finomw.errors import InvariantBroken

Rate: TypeAlias = Fraction
"""Exact micros for one unit of a meter, at least zero."""


class Package(msgspec.Struct, frozen=True):
    """A price for each started block of ``units`` units of one call."""

    units: int
    rate: Rate


class Tiers(msgspec.Struct, frozen=True):
    """A rate for each range of usage; the last begins above the last bound."""

    kind: Literal["tiered", "volume"]
    bounds: tuple[int, ...]
    rates: tuple[Rate, ...]

    def __post_init__(self) -> None:
        rising = all(low < high for low, high in pairwise((0, *self.bounds)))
        if not rising or len(self.rates) != len(self.bounds) + 1:
            raise InvariantBroken(f"no tiers: {len(self.rates)} rates, bounds {self.bounds}")


MeterPrice: TypeAlias = Rate | Package | Tiers
"""The price of one meter."""


def rates_of(price: MeterPrice) -> tuple[Rate, ...]:
    """Return every rate in a price."""
    if isinstance(price, Tiers):
        return price.rates
    return (price.rate if isinstance(price, Package) else price,)


def written(price: MeterPrice) -> str:
    """Return a price as text: the same text for the same price, another for another."""
    if isinstance(price, Package):
        return f"package {price.units} {price.rate}"
    if isinstance(price, Tiers):
        bounds = [*map(str, price.bounds), "*"]
        tiers = [f"{bound}:{rate}" for bound, rate in zip(bounds, price.rates, strict=True)]
        return f"{price.kind} {' '.join(tiers)}"
    return str(price)


class Part(NamedTuple):
    """Units of a call that have the same rate; ``rate`` and ``cost`` are numerators.

    They lie in the tier from above ``above`` up to ``up_to``. A ``rate`` is for each started
    block of ``block`` units.
    """

    units: int
    rate: int
    cost: int
    block: int = 1
    above: int = 0
    up_to: int | None = None


class PackageScale(msgspec.Struct, frozen=True):
    """``rate`` for each started block of ``units``; it does not look at the usage."""

    units: int
    rate: int

    def cost(self, count: int, _used: int) -> int:
        """Return what ``count`` units cost."""
        return -(-count // self.units) * self.rate

    def worst(self, ceiling: int, used: int, _others: int) -> int:
        """Return the most that up to ``ceiling`` units may cost."""
        return self.cost(ceiling, used)

    def parts(self, count: int, used: int) -> Iterator[Part]:
        """Yield what ``cost`` sums up."""
        yield Part(count, self.rate, self.cost(count, used), self.units)


class GraduatedScale(msgspec.Struct, frozen=True):
    """Each unit at the rate of its own tier."""

    bounds: tuple[int, ...]
    rates: tuple[int, ...]
    lows: tuple[int, ...]
    """Where each tier begins: the bound of the tier before."""
    sums: tuple[int, ...]
    """What all units below each tier cost together."""

    @classmethod
    def of(cls, bounds: tuple[int, ...], rates: tuple[int, ...]) -> GraduatedScale:
        """Return the scale, with the sums that its prices are looked up in."""
        sums = [0]
        for (low, high), rate in zip(pairwise((0, *bounds)), rates, strict=False):
            sums.append(sums[-1] + (high - low) * rate)
        return cls(bounds, rates, (0, *bounds), tuple(sums))

    def cost(self, count: int, used: int) -> int:
        """Return what ``count`` units cost after ``used``."""
        return self._sum(used + count) - self._sum(used)

    def worst(self, ceiling: int, used: int, others: int) -> int:
        """Return the most that up to ``ceiling`` units may cost after ``used`` to ``+ others``.

        More units never cost less. Over the usage the cost is a line that turns only where the
        call's first or last unit passes a bound, so its highest point is there or at an end.
        """
        most = used + others
        turns = [used, most]
        for bound in self.bounds:
            turns += (bound, bound - ceiling)
        return max(self.cost(ceiling, turn) for turn in turns if used <= turn <= most)

    def parts(self, count: int, used: int) -> Iterator[Part]:
        """Yield what ``cost`` sums up, tier by tier."""
        last = used + count
        for low, high, rate in zip(self.lows, (*self.bounds, None), self.rates, strict=True):
            units = (last if high is None else min(last, high)) - max(used, low)
            if units > 0:
                yield Part(units, rate, units * rate, above=low, up_to=high)

    def _sum(self, units: int) -> int:
        tier = bisect_left(self.bounds, units)
        return self.sums[tier] + (units - self.lows[tier]) * self.rates[tier]


class VolumeScale(msgspec.Struct, frozen=True):
    """All units of a call at the rate of the tier that its last unit falls in."""

    bounds: tuple[int, ...]
    rates: tuple[int, ...]

    def cost(self, count: int, used: int) -> int:
        """Return what ``count`` units cost after ``used``."""
        return count * self.rates[bisect_left(self.bounds, used + count)]

    def worst(self, ceiling: int, used: int, others: int) -> int:
        """Return the most that up to ``ceiling`` units may cost after ``used`` to ``+ others``.

        In one tier more units cost more, so the worst there is the largest call that can end in
        it; fewer units than the ceiling are worse where they stay in a dearer tier.
        """
        worst = 0
        low = 0
        for high, rate in zip((*self.bounds, None), self.rates, strict=True):
            count = ceiling if high is None else min(ceiling, high - used)
            if count > 0 and used + others + count > low:
                worst = max(worst, count * rate)
            low = high or 0
        return worst

    def parts(self, count: int, used: int) -> Iterator[Part]:
        """Yield what ``cost`` sums up: all of it in one tier."""
        tier = bisect_left(self.bounds, used + count)
        above, up_to = (0, *self.bounds)[tier], (*self.bounds, None)[tier]
        yield Part(count, self.rates[tier], self.cost(count, used), above=above, up_to=up_to)


Scale: TypeAlias = PackageScale | GraduatedScale | VolumeScale


def scale_of(price: Package | Tiers, denominator: int) -> Scale:
    """Return the price in numerators over ``denominator``."""
    rates = tuple(int(rate * denominator) for rate in rates_of(price))
    if isinstance(price, Package):
        return PackageScale(price.units, rates[0])
    if price.kind == "tiered":
        return GraduatedScale.of(price.bounds, rates)
    return VolumeScale(price.bounds, rates)
