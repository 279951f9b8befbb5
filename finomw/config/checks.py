"""What one option alone cannot show: rules and durability that must fit each other.

Each check appends a ``Problem`` to the list it is given. Whatever the reader found wrong arrives
here as None, and no check complains of what it would say wrongly because of that. The plans have
a file of their own, ``plan_checks``.
"""

from __future__ import annotations

from collections.abc import Sequence

from finomw import limits
from finomw.config.match import WEBSOCKET
from finomw.config.model import MeteredRoute, PricedRoute, Route, SocketRoute
from finomw.config.values import BY_APP
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
    metered = [(path, route) for path, route in located if isinstance(route, PricedRoute)]
    for path, route in metered:
        if isinstance(route, SocketRoute):
            _check_socket(path, route, problems)
        else:
            _check_meters(path, route, problems)
            _check_references(path, route, problems)
            _check_streams(path, route, problems)
            _check_method(path, route, problems)
        if len(route.meters) > limits.METERS_MAX:
            message = f"expected at most {limits.METERS_MAX} meters, found {len(route.meters)}"
            problems.append(Problem(join(path, "meter"), message))
        _check_splits(path, route, problems)
        _check_crash(path, route, durability, problems)
    _check_parents(metered, problems)
    _check_matches([(path, route) for path, route in located if route is not None], problems)


def _check_meters(path: str, route: MeteredRoute, problems: list[Problem]) -> None:
    if not route.meter:
        problems.append(Problem(join(path, "meter"), "expected at least one meter"))
    for meter, quantity in route.meter.items():
        where = join(join(path, "hold"), meter)
        if meter in route.splits:
            continue
        if isinstance(quantity, str) and meter not in route.hold:
            problems.append(Problem(where, "missing: how many at most may one call use?"))
        if isinstance(quantity, int) and meter in route.hold:
            problems.append(Problem(where, f"the meter is always {quantity}: it takes no hold"))
    for meter in route.hold:
        if meter not in route.meter:
            where = join(join(path, "hold"), meter)
            problems.append(Problem(where, unknown_meter(meter, list(route.meter))))


def _check_socket(path: str, route: SocketRoute, problems: list[Problem]) -> None:
    if not route.meters:
        message = "expected at least one meter, here or in receive or send"
        problems.append(Problem(join(path, "meter"), message))
    if route.settle_every is not None and route.meters and route.flat:
        message = "the charge is fixed: leave this out"
        problems.append(Problem(join(path, "settle_every"), message))
    for direction, spec in (("receive", route.receive), ("send", route.send)):
        for meter in spec:
            if meter in route.meter:
                message = "the meter stands in meter as well: there it is one for each connection"
                problems.append(Problem(join(join(path, direction), meter), message))
    for meter in route.meters:
        where = join(join(path, "hold"), meter)
        constant = route.constants.get(meter)
        if constant is not None and meter in route.hold:
            problems.append(Problem(where, f"the meter is always {constant}: it takes no hold"))
        elif constant is None and meter not in route.hold and meter not in route.splits:
            problems.append(Problem(where, "missing: how many at most may one connection use?"))
    for meter in route.hold:
        if meter not in route.meters:
            where = join(join(path, "hold"), meter)
            problems.append(Problem(where, unknown_meter(meter, route.meters)))


def _check_method(path: str, route: MeteredRoute, problems: list[Problem]) -> None:
    if WEBSOCKET in route.match.methods:
        message = f"{WEBSOCKET} has to stand alone: a rule for WebSockets has other options"
        problems.append(Problem(join(path, "match"), message))


def _check_splits(path: str, route: PricedRoute, problems: list[Problem]) -> None:
    for meter, split in route.splits.items():
        where = join(join(path, "splits"), meter)
        if meter not in route.meters:
            problems.append(Problem(where, unknown_meter(meter, route.meters)))
        elif split.of not in route.meters:
            message = unknown_meter(split.of, route.meters)
            problems.append(Problem(join(where, "of"), message))
        elif {meter, split.of} & {*route.constants, *_by_app(route)}:
            problems.append(Problem(where, "both meters have to be read from the answer"))
        elif meter in _ancestors(meter, route):
            problems.append(Problem(join(where, "of"), "the meter would be a part of itself"))
        elif meter in route.hold:
            message = f"it is held with {split.of}, of which it is a part: leave this out"
            problems.append(Problem(join(join(path, "hold"), meter), message))


def _by_app(route: PricedRoute) -> list[str]:
    return [meter for meter, quantity in route.meter.items() if quantity == BY_APP]


def _ancestors(meter: str, route: PricedRoute) -> list[str]:
    """Return what a meter is a part of, directly and in turn."""
    found: list[str] = []
    while (split := route.splits.get(meter)) is not None and split.of not in found:
        meter = split.of
        found.append(meter)
    return found


def _check_parents(metered: Sequence[tuple[str, PricedRoute]], problems: list[Problem]) -> None:
    """Refuse a meter that is a part of another in one rule, and of none or a third elsewhere.

    Quotas are of a plan and name meters of all its routes: there a name has to mean one thing.
    """
    first: dict[str, tuple[str, str | None]] = {}
    for path, route in metered:
        for meter in route.meters:
            split = route.splits.get(meter)
            of = None if split is None else split.of
            other, expected = first.setdefault(meter, (path, of))
            if of != expected:
                message = f"{meter} is a part of {expected or 'no other meter'} in {other}"
                problems.append(Problem(join(join(path, "splits"), meter), message))


def _check_references(path: str, route: MeteredRoute, problems: list[Problem]) -> None:
    if route.references and route.context is None:
        message = "missing: how much does a request with references come to?"
        problems.append(Problem(join(path, "context"), message))


def _check_crash(
    path: str, route: PricedRoute, durability: str | None, problems: list[Problem]
) -> None:
    where = join(path, "on_crash")
    if not route.meters:
        return
    if route.flat and route.on_crash == "release":
        message = "a flat charge is durable with its hold: leave this out, or write settle"
        problems.append(Problem(where, message))
    elif durability == "held" and route.crash is not OnCrash.SETTLE:
        message = "durability: held answers before the settlement is on disk: needs settle here"
        problems.append(Problem(where, message))


def _check_streams(path: str, route: MeteredRoute, problems: list[Problem]) -> None:
    """Refuse what a rule says of streams where there is nothing to settle or to estimate."""
    for option, given in (
        ("settle_every", route.settle_every is not None),
        ("on_ceiling", route.on_ceiling == "cut"),
        ("estimate", not isinstance(route.estimate, str)),
    ):
        if given and route.meter and route.flat:
            problems.append(Problem(join(path, option), "the charge is fixed: leave this out"))
    for meter in route.estimate if not (isinstance(route.estimate, str) or route.flat) else ():
        where = join(join(path, "estimate"), meter)
        if meter not in route.meter:
            problems.append(Problem(where, unknown_meter(meter, list(route.meter))))
        elif meter not in route.hold:
            problems.append(Problem(where, "only what has a hold of its own can be estimated"))


def _check_matches(located: list[tuple[str, Route]], problems: list[Problem]) -> None:
    first: dict[tuple[str, str], str] = {}
    for path, route in located:
        for method in route.match.methods:
            other = first.setdefault((method, route.match.shape), path)
            if other != path:
                message = f"{method} {route.match.path} is already matched by {other}"
                problems.append(Problem(join(path, "match"), message))
