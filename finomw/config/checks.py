"""What one option alone cannot show: rules and durability that must fit each other.

Each check appends a ``Problem`` to the list it is given. Whatever the reader found wrong arrives
here as None, and no check complains of what it would say wrongly because of that. The plans have
a file of their own, ``plan_checks``.
"""

from __future__ import annotations

from collections.abc import Sequence

from finomw import limits
from finomw.config.model import MeteredRoute, Route
from finomw.config.wording import join, unknown_meter
from finomw.errors import Problem
from finomw.types import OnCrash


def check(
    routes: Sequence[Route | None] | None,
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


def _check_meters(path: str, route: MeteredRoute, problems: list[Problem]) -> None:
    if not route.meter:
        problems.append(Problem(join(path, "meter"), "expected at least one meter"))
    if len(route.meter) > limits.METERS_MAX:
        message = f"expected at most {limits.METERS_MAX} meters, found {len(route.meter)}"
        problems.append(Problem(join(path, "meter"), message))
    for meter, quantity in route.meter.items():
        where = join(join(path, "hold"), meter)
        if isinstance(quantity, str) and meter not in route.hold:
            problems.append(Problem(where, "missing: how many at most may one call use?"))
        if isinstance(quantity, int) and meter in route.hold:
            problems.append(Problem(where, f"the meter is always {quantity}: it takes no hold"))
    for meter in route.hold:
        if meter not in route.meter:
            where = join(join(path, "hold"), meter)
            problems.append(Problem(where, unknown_meter(meter, list(route.meter))))


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
