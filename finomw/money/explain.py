"""A price told line by line, for people: which units at which rate, and how the sum was rounded.

It is made from the same scales as the price itself and gives the same total; amounts are exact.
"""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction
from typing import Final

import msgspec

from finomw.money.micros import MICROS_PER_USD, exact_usd
from finomw.money.pricing import PriceList, Rounding, units
from finomw.money.rates import Part
from finomw.types import Counts, Micros

_RATE_SHOWN_EACH: Final = Fraction(100)
"""Micros from which on a rate is told for one unit, and below for a million."""


class Line(msgspec.Struct, frozen=True):
    """Units of one meter that have one rate. ``amount`` is exact, in micros.

    ``tier`` is the range of usage that the rate is for, empty where there are no tiers.
    """

    meter: str
    units: int
    tier: str
    rate: str
    amount: Fraction


class Explanation(msgspec.Struct, frozen=True):
    """How a price comes about. All amounts but ``total`` are exact micros.

    ``exact`` is the sum of the lines, or ``minimum`` where that raised it (else ``None``); it is
    rounded once to ``total``.
    """

    lines: tuple[Line, ...]
    minimum: Fraction | None
    exact: Fraction
    rounding: Rounding
    total: Micros
    version: str


def explain(prices: PriceList, counts: Counts, used: Counts) -> Explanation:
    """Explain ``prices.price(counts, used)``; raises what that raises."""
    total = prices.price(counts, used)
    counts, used = prices.folded(counts), prices.folded(used)
    lines = tuple(_lines(prices, counts, used))
    exact = sum((line.amount for line in lines), Fraction(0))
    minimum = Fraction(prices.minimum, prices.denominator)
    raised = exact < minimum and any(counts.values())
    return Explanation(
        lines,
        minimum if raised else None,
        minimum if raised else exact,
        prices.rounding,
        total,
        prices.version,
    )


def _lines(prices: PriceList, counts: Counts, used: Counts) -> Iterator[Line]:
    for meter, count in counts.items():
        if count == 0:
            continue
        numerator = prices.numerators.get(meter)
        if numerator is not None:
            parts = iter((Part(count, numerator, count * numerator),))
        else:
            parts = prices.scale(meter).parts(count, units(used, meter))
        for part in parts:
            tiered = numerator is None and meter in prices.tiered_meters
            tier = _tier(part) if tiered else ""
            rate = _rate(Fraction(part.rate, prices.denominator), part.block)
            yield Line(meter, part.units, tier, rate, Fraction(part.cost, prices.denominator))


def _tier(part: Part) -> str:
    if part.up_to is None:
        return f"above {part.above}" if part.above else "all"
    return f"{part.above + 1} to {part.up_to}"


def _rate(rate: Fraction, block: int) -> str:
    if block > 1:
        return f"{exact_usd(rate)} for each {block} started"
    if 0 < rate < _RATE_SHOWN_EACH:
        return f"{exact_usd(rate * MICROS_PER_USD)} per million"
    return f"{exact_usd(rate)} each"
