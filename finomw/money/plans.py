"""Price plans, compiled: which list prices a call, by its route, the time and the value of ``by``.

Amounts are read here, because only this room knows money; whatever is wrong with one is reported
with its path in the file, all of it at once. What else can be wrong in a plan was found before
(``config/plan_checks.py``).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeAlias

import msgspec

from finomw import limits
from finomw.config.model import Plan, Price, Prices, RoutePrice, Tier, UnitPrice
from finomw.config.values import REST, Source
from finomw.config.wording import join
from finomw.errors import InvalidValue, InvariantBroken, Problem
from finomw.money.micros import MICROS_PER_USD, from_usd, to_usd
from finomw.money.periods import Per
from finomw.money.pricing import PriceList
from finomw.money.quotas import Quota, compile_quotas
from finomw.money.rates import MeterPrice, Package, Rate, Tiers
from finomw.types import PlanName, UnixMicroseconds


class RoutePrices(msgspec.Struct, frozen=True):
    """One version of a route's prices: a list, or a list for each value of ``by``."""

    by: str | None
    lists: Mapping[str, PriceList]
    valid_from: UnixMicroseconds | None = None
    """The first moment of this version; ``None`` where it has always been valid."""

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
    """A compiled price plan."""

    name: PlanName
    routes: Mapping[str, tuple[RoutePrices, ...]]
    """The versions of each route's prices, in the order of their times."""
    unpriced: RoutePrices | None
    """The prices of what has none: free, or ``None`` where such a call is refused."""
    period: Per
    """The period whose usage tiers count by."""
    fund: tuple[Source, ...]
    """What pays, in this order."""
    quotas: tuple[Quota, ...]

    def at(self, route: str, now: UnixMicroseconds) -> RoutePrices | None:
        """Return the prices of a route at a time; ``None`` where its calls are refused."""
        for version in reversed(self.routes.get(route, ())):
            if version.valid_from is None or version.valid_from <= now:
                return version
        return self.unpriced


Parents: TypeAlias = Mapping[str, Mapping[str, str]]
"""For each route, the meters that are parts of others, and of which."""


def compile_plan(
    name: str, plan: Plan, problems: list[Problem], parents: Parents | None = None
) -> PricePlan | None:
    """Return the plan with its amounts read; None, and why in ``problems``, if one is wrong."""
    before = len(problems)
    path = join("plans", name)
    parents = parents or {}
    every = {meter: of for found in parents.values() for meter, of in found.items()}
    quotas = compile_quotas(join(path, "quotas"), plan.quotas, problems, every)
    unpriced = {REST: PriceList.free()} if plan.unpriced == "free" else {}
    routes = {}
    for route, versions in plan.prices.items():
        where = join(join(path, "prices"), route)
        routes[str(route)] = tuple(
            RoutePrices(
                version.by,
                {
                    **unpriced,
                    **_compile_lists(where, plan, version, problems, parents.get(route, {})),
                },
                version.valid_from,
            )
            for version in versions
        )
    if len(problems) > before:
        return None
    return PricePlan(
        PlanName(name),
        routes,
        RoutePrices(None, unpriced) if unpriced else None,
        Per[plan.period.upper()],
        plan.fund,
        quotas,
    )


def _compile_lists(
    route_path: str,
    plan: Plan,
    version: RoutePrice,
    problems: list[Problem],
    parents: Mapping[str, str],
) -> dict[str, PriceList]:
    return {
        value: PriceList.of(
            _read_prices(prices, path, problems),
            plan.rounding,
            minimum=_read_minimum(prices, path, problems),
            period=Per[plan.period.upper()],
            valid_from=version.valid_from,
            parents=parents,
        )
        for value, path, prices in version.at(route_path)
    }


def _read_prices(prices: Prices, path: str, problems: list[Problem]) -> dict[str, MeterPrice]:
    read = {
        meter: _read_price(price, join(path, meter), problems)
        for meter, price in prices.meters.items()
    }
    return {meter: price for meter, price in read.items() if price is not None}


def _read_minimum(prices: Prices, path: str, problems: list[Problem]) -> Rate:
    if prices.minimum is None:
        return Rate(0)
    return _read_usd(prices.minimum.usd, join(join(path, "minimum"), "usd"), problems) or Rate(0)


def _read_price(price: Price, path: str, problems: list[Problem]) -> MeterPrice | None:
    if price.package is not None:
        where = join(join(path, "package"), "usd")
        rate = _read_usd(price.package.usd, where, problems)
        return None if rate is None else Package(price.package.units, rate)
    if price.tiered is not None:
        rates = _read_tiers(price.tiered, join(path, "tiered"), problems)
        return None if rates is None else Tiers("tiered", _bounds(price.tiered), rates)
    if price.volume is not None:
        rates = _read_tiers(price.volume, join(path, "volume"), problems)
        return None if rates is None else Tiers("volume", _bounds(price.volume), rates)
    return _read_rate(price, path, problems)


def _bounds(tiers: tuple[Tier, ...]) -> tuple[int, ...]:
    return tuple(tier.up_to for tier in tiers if tier.up_to is not None)


def _read_tiers(
    tiers: tuple[Tier, ...], path: str, problems: list[Problem]
) -> tuple[Rate, ...] | None:
    read = [_read_rate(tier, join(path, index), problems) for index, tier in enumerate(tiers)]
    rates = tuple(rate for rate in read if rate is not None)
    return rates if len(rates) == len(tiers) else None


def _read_rate(price: UnitPrice, path: str, problems: list[Problem]) -> Rate | None:
    if price.usd is not None:
        return _read_usd(price.usd, join(path, "usd"), problems)
    if price.usd_per_million is None:
        raise InvariantBroken(f"{path}: a price without an amount was not found by the checks")
    # What a million units cost in micros; a million is that number.
    where = join(path, "usd_per_million")
    return _read_usd(price.usd_per_million, where, problems, units=MICROS_PER_USD)


def _read_usd(
    text: str | int, path: str, problems: list[Problem], *, units: int = 1
) -> Rate | None:
    """Return the exact micros of one unit where ``units`` of them cost this many dollars."""
    try:
        rate = from_usd(text) / units
    except InvalidValue as error:
        problems.append(Problem(path, str(error)))
        return None
    if rate > limits.AMOUNT_MAX:
        most = to_usd(limits.AMOUNT_MAX)
        problems.append(Problem(path, f"expected at most {most} dollars for a unit"))
    return rate
