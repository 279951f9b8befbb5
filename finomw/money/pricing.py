"""What a call costs: exact rates per unit, computed in integers, rounded once at the end.

A rate is an exact rational of micros. The rates of a list are brought over one common
denominator when the plan is compiled, so that pricing a call multiplies and adds integers and
divides once, by the plan's rounding. With ``up`` a call that used something at a price above
zero therefore never costs nothing. A list's version names its rates and rounding, so that a
record can say by which price it was charged.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping
from fractions import Fraction
from typing import Final, Literal, TypeAlias

import msgspec

from finomw import limits
from finomw.config.model import REST, Plan, Price
from finomw.config.wording import join
from finomw.errors import InvalidValue, InvariantBroken, Problem, Unpriced
from finomw.money.micros import MICROS_PER_USD, from_usd, to_usd
from finomw.types import Counts, Micros, PlanName

Rate: TypeAlias = Fraction
"""Exact micros for one unit of a meter, at least zero."""

Rounding: TypeAlias = Literal["up", "down", "half_up"]

_VERSION_DIGITS: Final = 12


class PriceList(msgspec.Struct, frozen=True):
    """The rates of one route's meters, made by ``of``."""

    numerators: Mapping[str, int]
    """Each meter's rate, times ``denominator``."""
    denominator: int
    addend: int
    """Added before the division that drops the remainder: this is the rounding."""
    version: str
    """The first 12 hex digits of a SHA-256 over rates and rounding."""

    @classmethod
    def of(cls, rates: Mapping[str, Rate], rounding: Rounding) -> PriceList:
        """Return the list of these rates; their order does not matter."""
        denominator = math.lcm(*(rate.denominator for rate in rates.values()))
        addends = {"up": denominator - 1, "down": 0, "half_up": denominator // 2}
        lines = [f"rounding {rounding}", *sorted(f"{meter} {rates[meter]}" for meter in rates)]
        digest = hashlib.sha256("\n".join(lines).encode()).hexdigest()
        return cls(
            numerators={meter: int(rate * denominator) for meter, rate in rates.items()},
            denominator=denominator,
            addend=addends[rounding],
            version=digest[:_VERSION_DIGITS],
        )

    def price(self, counts: Counts) -> Micros:
        """Return what these counts cost, rounded once.

        Raises
        ------
        Unpriced
            A count's meter has no rate here.
        InvalidValue
            The price is above ``limits.AMOUNT_MAX``.
        InvariantBroken
            A count is not an integer from 0 to ``limits.COUNT_MAX``.
        """
        total = 0
        for meter, count in counts.items():
            if type(count) is not int or not 0 <= count <= limits.COUNT_MAX:
                raise InvariantBroken(f"a count of {meter} that metering must refuse: {count!r}")
            numerator = self.numerators.get(meter)
            if numerator is None:
                raise Unpriced(meter)
            total += count * numerator
        micros = (total + self.addend) // self.denominator
        if micros > limits.AMOUNT_MAX:
            most = to_usd(limits.AMOUNT_MAX)
            raise InvalidValue(f"the price of one call is above the largest amount, {most} dollars")
        return micros


class RoutePrices(msgspec.Struct, frozen=True):
    """One route's prices in one plan: a list, or a list for each value of ``by``."""

    by: str | None
    lists: Mapping[str, PriceList]

    def select(self, value: object) -> PriceList | None:
        """Return the list for what ``by`` found in a call; None when the plan has none for it.

        Texts match exactly and integers by their decimal text; anything else, and any value
        without a list of its own, gets the list of the rest.
        """
        own = None
        if self.by is not None:
            if isinstance(value, str):
                own = self.lists.get(value)
            elif type(value) is int and abs(value) <= limits.COUNT_MAX:
                own = self.lists.get(str(value))
        return own if own is not None else self.lists.get(REST)


class PricePlan(msgspec.Struct, frozen=True):
    """A compiled price plan; a route that is not in it is unpriced."""

    name: PlanName
    routes: Mapping[str, RoutePrices]


def compile_plan(name: str, plan: Plan, problems: list[Problem]) -> PricePlan | None:
    """Return the plan with its rates read; None, and why in ``problems``, if one is wrong."""
    before = len(problems)
    path = join(join("plans", name), "prices")
    routes = {}
    for route, entry in plan.prices.items():
        lists = {}
        for value, list_path, prices in entry.at(join(path, route)):
            rates = {}
            for meter, price in prices.items():
                rate = _read_rate(price, join(list_path, meter), problems)
                if rate is not None:
                    rates[meter] = rate
            lists[value] = PriceList.of(rates, plan.rounding)
        routes[str(route)] = RoutePrices(entry.by, lists)
    return PricePlan(PlanName(name), routes) if len(problems) == before else None


def _read_rate(price: Price, path: str, problems: list[Problem]) -> Rate | None:
    options = {"usd": price.usd, "usd_per_million": price.usd_per_million}
    given = [(option, text) for option, text in options.items() if text is not None]
    if len(given) != 1:
        problems.append(Problem(path, "expected exactly one of usd, usd_per_million"))
        return None
    [(option, text)] = given
    try:
        rate = from_usd(text)
    except InvalidValue as error:
        problems.append(Problem(join(path, option), str(error)))
        return None
    if option == "usd_per_million":
        rate /= MICROS_PER_USD  # so far the micros of a million units; a million is that number
    if rate > limits.AMOUNT_MAX:
        most = to_usd(limits.AMOUNT_MAX)
        problems.append(Problem(join(path, option), f"expected at most {most} dollars for a unit"))
    return rate
