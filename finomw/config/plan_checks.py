"""What one option of a plan alone cannot show: prices, tiers, versions, funds and quotas.

First what is wrong within a plan, whatever the rules are; then, once all rules could be read, what
does not fit them. Amounts are judged where they are read, in ``money/``.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Final

from finomw.config.model import (
    FreeRoute,
    Plan,
    PlanQuota,
    Price,
    PricedRoute,
    Route,
    RoutePrice,
    Tier,
)
from finomw.config.values import COST
from finomw.config.wording import join, nearest, shown, unknown_meter
from finomw.errors import Problem

_BY_PARAMETER: Final = re.compile(r"path\.(\w+)")


def by_parameter(by: str) -> str | None:
    """Return the path parameter that a price's ``by`` names; None when it is a jq program."""
    found = _BY_PARAMETER.fullmatch(by)
    return found[1] if found else None


def check(
    routes: Sequence[Route | None] | None,
    plans: Mapping[str, Plan | None] | None,
    problems: list[Problem],
) -> None:
    """Append to ``problems`` what is wrong in plans; None stands for what could not be read."""
    rules = [route for route in routes or () if isinstance(route, PricedRoute)]
    if rules and plans is not None and not plans:
        problems.append(Problem("plans", "missing: metered routes need at least one price plan"))
    read = {join("plans", name): plan for name, plan in (plans or {}).items() if plan is not None}
    for path, plan in read.items():
        _check_fund(path, plan, problems)
        for name, quota in plan.quotas.items():
            _check_quota(join(join(path, "quotas"), name), quota, problems)
        for route_name, versions in plan.prices.items():
            where = join(join(path, "prices"), route_name)
            _check_versions(where, versions, problems)
            for _, list_path, prices in (at for version in versions for at in version.at(where)):
                for meter, price in prices.meters.items():
                    _check_price(join(list_path, meter), price, problems)
    _check_quota_names(read, problems)
    if routes is not None and None not in routes:
        # A rule that could not be read may be what a plan refers to.
        for path, plan in read.items():
            _check_references(path, plan, routes, problems)


def _check_fund(path: str, plan: Plan, problems: list[Problem]) -> None:
    where = join(path, "fund")
    if not plan.fund:
        problems.append(Problem(where, "expected at least one of quota, wallet, credit"))
    _check_repeats(where, plan.fund, problems)
    if "quota" in plan.fund[1:]:
        message = "quota has to come first: what it covers is not priced at all"
        problems.append(Problem(where, message))
    if plan.quotas and "quota" not in plan.fund:
        message = "fund has no quota: these would never pay for anything"
        problems.append(Problem(join(path, "quotas"), message))


def _check_quota(path: str, quota: PlanQuota, problems: list[Problem]) -> None:
    where = join(path, "meters")
    if not quota.meters:
        problems.append(Problem(where, f"expected at least one meter, or [{COST}]"))
    _check_repeats(where, quota.meters, problems)
    if COST in quota.meters and set(quota.meters) != {COST}:
        problems.append(Problem(where, f"{COST} stands alone: the price covers all meters"))
    money = COST in quota.meters
    wanted, amount = ("usd", quota.usd) if money else ("units", quota.units)
    other, unwanted = ("units", quota.units) if money else ("usd", quota.usd)
    if amount is None:
        problems.append(Problem(join(path, wanted), "missing: how much is given each time?"))
    if unwanted is not None:
        kind = "money" if money else "meters"
        problems.append(Problem(join(path, other), f"a quota of {kind} is given in {wanted}"))
    if quota.roll_over and quota.per == "once":
        problems.append(Problem(join(path, "roll_over"), "what is given once has no next period"))


def _check_quota_names(plans: Mapping[str, Plan], problems: list[Problem]) -> None:
    """Refuse a name for what one plan gives once and another for each period.

    A customer who changes between the plans has one row of that name: it would never end.
    """
    first: dict[str, tuple[str, bool]] = {}
    for path, plan in plans.items():
        for name, quota in plan.quotas.items():
            where = join(join(path, "quotas"), name)
            once = quota.per == "once"
            other, other_once = first.setdefault(name, (where, once))
            if once != other_once:
                message = f"once here or in {other}, but not in both: give it another name"
                problems.append(Problem(join(where, "per"), message))


def _check_repeats(path: str, names: Sequence[str], problems: list[Problem]) -> None:
    for index, name in enumerate(names):
        if name in names[:index]:
            problems.append(Problem(join(path, index), f"{shown(name)} stands twice"))


def _check_versions(path: str, versions: Sequence[RoutePrice], problems: list[Problem]) -> None:
    if not versions:
        problems.append(Problem(path, "expected at least one version"))
    for before, version in pairwise(versions):
        where = join(version.path(path), "valid_from")
        if version.valid_from is None:
            message = "missing: only the first version may have always been valid"
            problems.append(Problem(where, message))
        elif before.valid_from is not None and version.valid_from <= before.valid_from:
            problems.append(Problem(where, "expected a later time than the version before"))


def _check_price(path: str, price: Price, problems: list[Problem]) -> None:
    given = {
        "usd": price.usd,
        "usd_per_million": price.usd_per_million,
        "package": price.package,
        "tiered": price.tiered,
        "volume": price.volume,
    }
    _check_one(path, given, problems)
    for name, tiers in (("tiered", price.tiered), ("volume", price.volume)):
        if tiers is not None:
            _check_tiers(join(path, name), tiers, problems)


def _check_tiers(path: str, tiers: Sequence[Tier], problems: list[Problem]) -> None:
    if not tiers:
        problems.append(Problem(path, "expected at least one tier"))
    bound = 0
    for index, tier in enumerate(tiers):
        tier_path = join(path, index)
        where = join(tier_path, "up_to")
        given = {"usd": tier.usd, "usd_per_million": tier.usd_per_million}
        _check_one(tier_path, given, problems)
        if index == len(tiers) - 1:
            if tier.up_to is not None:
                message = "the last tier is for all the rest: leave this out"
                problems.append(Problem(where, message))
        elif tier.up_to is None:
            problems.append(Problem(where, "missing: only the last tier is for all the rest"))
        elif tier.up_to <= bound:
            message = f"expected more than the {bound} of the tier before, found {tier.up_to}"
            problems.append(Problem(where, message))
        bound = max(bound, tier.up_to or 0)


def _check_one(path: str, options: Mapping[str, object], problems: list[Problem]) -> None:
    if sum(value is not None for value in options.values()) != 1:
        problems.append(Problem(path, f"expected exactly one of {', '.join(options)}"))


def _check_references(
    path: str, plan: Plan, routes: Sequence[Route | None], problems: list[Problem]
) -> None:
    rules = {
        join("routes", index): route
        for index, route in enumerate(routes)
        if isinstance(route, PricedRoute)
    }
    meters = _meters(rules.values())
    parents = parents_of(rules.values())
    for name, quota in plan.quotas.items():
        where = join(join(join(path, "quotas"), name), "meters")
        for index, meter in enumerate(quota.meters):
            if meter in parents:
                message = f"a part of {parents[meter]}: name that, which covers its parts"
                problems.append(Problem(join(where, index), message))
            elif meter not in meters and meter != COST:
                problems.append(Problem(join(where, index), unknown_meter(meter, meters)))
    for route_name, versions in plan.prices.items():
        where = join(join(path, "prices"), route_name)
        named = {at: rule for at, rule in rules.items() if rule.name == route_name}
        if not named:
            free = any(isinstance(r, FreeRoute) and r.name == route_name for r in routes)
            known = nearest(route_name, [rule.name for rule in rules.values()])
            message = f"no route has this name{known}"
            if free:
                message = "the route is free and takes no prices"
            problems.append(Problem(where, message))
            continue
        for version in versions:
            _check_by(version.path(where), version, named, problems)
            _check_meters(where, version, named.values(), problems)


def _check_by(
    path: str, version: RoutePrice, rules: Mapping[str, PricedRoute], problems: list[Problem]
) -> None:
    if version.by is None:
        return
    if not version.lists:
        problems.append(Problem(path, 'expected prices for values of by, or for the rest: "*"'))
    where = join(path, "by")
    name = by_parameter(version.by)
    if name is None and not version.by.startswith("."):
        message = f"expected a jq program such as .model, or path.NAME, found {shown(version.by)}"
        problems.append(Problem(where, message))
    for rule_path, route in rules.items() if name is not None else ():
        if name not in route.match.parameters:
            message = f"{rule_path} has no {{{name}}} in its path {route.match.path}"
            problems.append(Problem(where, message))


def _check_meters(
    route_path: str, version: RoutePrice, rules: Collection[PricedRoute], problems: list[Problem]
) -> None:
    meters, parents = _meters(rules), parents_of(rules)
    for _, path, prices in version.at(route_path):
        problems.extend(
            Problem(join(path, meter), unknown_meter(meter, meters))
            for meter in prices.meters
            if meter not in meters
        )
        message = "missing: each meter of the route needs a price; {usd: 0} for no charge"
        problems.extend(
            Problem(join(path, meter), message)
            for meter in meters
            if meter not in prices.meters and meter not in parents
        )


def parents_of(rules: Iterable[PricedRoute]) -> dict[str, str]:
    """Return the meters that are parts of others, in any of these rules, and of which."""
    return {meter: split.of for rule in rules for meter, split in rule.splits.items()}


def _meters(rules: Iterable[PricedRoute]) -> list[str]:
    """Return the meters of all these rules: those that share a name share its prices."""
    return list(dict.fromkeys(meter for rule in rules for meter in rule.meters))
