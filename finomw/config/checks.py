"""What one option alone cannot show: rules, plans and durability that must fit each other.

Each check appends a ``Problem`` to the list it is given. Whatever the reader found wrong arrives
here as None, and no check complains of what it would say wrongly because of that.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from typing import Final, TypeAlias

from finomw.config.model import FreeRoute, MeteredRoute, Plan, Route, RoutePrice
from finomw.config.wording import join, nearest, shown
from finomw.errors import Problem
from finomw.types import OnCrash

_BY_PARAMETER: Final = re.compile(r"path\.(\w+)")

Located: TypeAlias = list[tuple[str, MeteredRoute]]
"""Metered rules with their paths."""


def by_parameter(by: str) -> str | None:
    """Return the path parameter that a price's ``by`` names; None when it is a jq program."""
    found = _BY_PARAMETER.fullmatch(by)
    return found[1] if found else None


def check(
    routes: Sequence[Route | None] | None,
    plans: Mapping[str, Plan | None] | None,
    durability: str | None,
    problems: list[Problem],
) -> None:
    """Append to ``problems`` what does not fit together; None stands for what is wrong itself."""
    located = [(join("routes", i), route) for i, route in enumerate(routes or ())]
    metered = [(path, route) for path, route in located if isinstance(route, MeteredRoute)]
    for path, route in metered:
        _check_meters(path, route, problems)
        _check_crash(path, route, durability, problems)
    _check_matches([(path, route) for path, route in located if route is not None], problems)
    if metered and plans is not None and not plans:
        problems.append(Problem("plans", "missing: metered routes need at least one price plan"))
    if routes is None or any(route is None for route in routes):
        return  # what a price refers to may be among the rules that could not be read
    free = {route.name for _, route in located if isinstance(route, FreeRoute)}
    for name, plan in (plans or {}).items():
        path = join(join("plans", name), "prices")
        for route_name, price in plan.prices.items() if plan is not None else ():
            _check_price(join(path, route_name), route_name, price, metered, free, problems)


def _check_meters(path: str, route: MeteredRoute, problems: list[Problem]) -> None:
    if not route.meter:
        problems.append(Problem(join(path, "meter"), "expected at least one meter"))
    for meter, quantity in route.meter.items():
        where = join(join(path, "hold"), meter)
        if isinstance(quantity, str) and meter not in route.hold:
            problems.append(Problem(where, "missing: how many at most may one call use?"))
        if isinstance(quantity, int) and meter in route.hold:
            problems.append(Problem(where, f"the meter is always {quantity}: it takes no hold"))
    for meter in route.hold:
        if meter not in route.meter:
            where = join(join(path, "hold"), meter)
            problems.append(Problem(where, _unknown_meter(meter, list(route.meter))))


def _check_crash(
    path: str, route: MeteredRoute, durability: str | None, problems: list[Problem]
) -> None:
    where = join(path, "on_crash")
    if not route.meter:
        return
    if route.flat and route.on_crash == "release":
        message = "a flat charge is durable with its hold: leave this out, or write settle"
        problems.append(Problem(where, message))
    elif durability == "held" and route.crash is not OnCrash.SETTLE:
        message = "durability: held answers before the settlement is on disk: needs settle here"
        problems.append(Problem(where, message))


def _check_matches(located: list[tuple[str, Route]], problems: list[Problem]) -> None:
    first: dict[tuple[str, str], str] = {}
    for path, route in located:
        for method in route.match.methods:
            other = first.setdefault((method, route.match.shape), path)
            if other != path:
                message = f"{method} {route.match.path} is already matched by {other}"
                problems.append(Problem(join(path, "match"), message))


def _check_price(
    path: str,
    name: str,
    price: RoutePrice,
    metered: Located,
    free: Collection[str | None],
    problems: list[Problem],
) -> None:
    rules = [(where, route) for where, route in metered if route.name == name]
    if not rules:
        message = "the route is free and takes no prices"
        if name not in free:
            message = f"no route has this name{nearest(name, [r.name for _, r in metered])}"
        problems.append(Problem(path, message))
        return
    _check_by(path, price, rules, problems)
    # Rules that share a name share its prices, so a list has the meters of all of them.
    meters = list(dict.fromkeys(meter for _, route in rules for meter in route.meter))
    for _, list_path, prices in price.at(path):
        problems.extend(
            Problem(join(list_path, meter), _unknown_meter(meter, meters))
            for meter in prices
            if meter not in meters
        )
        message = "missing: each meter of the route needs a price; {usd: 0} for no charge"
        problems.extend(
            Problem(join(list_path, meter), message) for meter in meters if meter not in prices
        )


def _check_by(path: str, price: RoutePrice, rules: Located, problems: list[Problem]) -> None:
    if price.by is None:
        return
    if not price.lists:
        problems.append(Problem(path, 'expected prices for values of by, or for the rest: "*"'))
    where = join(path, "by")
    name = by_parameter(price.by)
    if name is None and not price.by.startswith("."):
        message = f"expected a jq program such as .model, or path.NAME, found {shown(price.by)}"
        problems.append(Problem(where, message))
    for rule_path, route in rules if name is not None else ():
        if name not in route.match.parameters:
            message = f"{rule_path} has no {{{name}}} in its path {route.match.path}"
            problems.append(Problem(where, message))


def _unknown_meter(meter: str, known: list[str]) -> str:
    return f"unknown meter{nearest(meter, known)}; meters here: {', '.join(known)}"
