"""What a rule of the configuration measures, compiled: its answers' usage, its requests' ceiling.

The one place that knows which variables a rule's programs may name: ``$ceiling`` and ``$context``
in those on the request, ``$charge_errors`` in those on the answer. What only compiling can find
wrong is reported with its path in the file, all of it at once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import NamedTuple

from finomw.config.model import MeteredRoute, PricedRoute, SocketRoute
from finomw.config.values import BY_APP, BYTES
from finomw.config.wording import join
from finomw.errors import InvalidValue, Problem
from finomw.metering.estimate import Bounds, Estimate, divisor_of, program_of
from finomw.metering.meter import Meter
from finomw.metering.programs import bound, compile_program, compile_recipe
from finomw.metering.splits import splits_of


class Measure(NamedTuple):
    """A rule's programs. The estimate has no meters that are parts of others."""

    meter: Meter
    estimate: Estimate


class Source(NamedTuple):
    """A program of a rule: what it is for, as written and as it is compiled."""

    purpose: str
    written: str
    compiled: str


def compile_measure(route: MeteredRoute, path: str, problems: list[Problem]) -> Measure | None:
    """Compile a rule's programs; None, and why in ``problems``, where one is wrong."""
    before = len(problems)
    for option in ("ceiling", "context", "error"):
        source = getattr(route, option)
        if isinstance(source, str):
            _try(join(path, option), partial(compile_program, source), problems)
    if len(problems) > before:
        return None
    bounds = bounds_of(route)
    for name, quantity in _meter_spec(route).items():
        where = join(join(path, "meter"), name)
        _try(where, partial(compile_recipe, {name: quantity}), problems)
    for name, quantity in route.hold.items():
        where = join(join(path, "hold"), name)
        _try(where, partial(Estimate, {name: quantity}, bounds), problems)
    if len(problems) > before:
        return None
    meter = Meter(
        _meter_spec(route),
        route.merge,
        frozenset(route.ends),
        splits=splits_of(route),
        error=route.error,
    )
    return Measure(meter, Estimate({**route.constants, **route.hold}, bounds))


def bounds_of(route: MeteredRoute) -> Bounds:
    """Return what bounds a rule's holds."""
    return Bounds(route.ceiling, route.context, route.references)


def sources(route: PricedRoute) -> Iterator[Source]:
    """Yield the programs of a rule that compiles."""
    if isinstance(route, SocketRoute):
        for direction, spec in (("receive", route.receive), ("send", route.send)):
            for name, quantity in spec.items():
                if isinstance(quantity, str) and quantity != BYTES:
                    yield Source(f"{direction} {name}", quantity, quantity)
        return
    for name, quantity in _meter_spec(route).items():
        if isinstance(quantity, str):
            yield Source(f"meter {name}", str(route.meter[name]), quantity)
    for name, quantity in route.hold.items():
        source = program_of(quantity, bounds_of(route))
        if isinstance(source, str) and divisor_of(source) is None:
            yield Source(f"hold {name}", str(quantity), source)
    for option in ("ceiling", "context", "error"):
        source = getattr(route, option)
        if isinstance(source, str):
            yield Source(option, source, source)


def transforms(route: PricedRoute) -> Iterator[tuple[str, str]]:
    """Yield the programs that rewrite, each with its option."""
    if isinstance(route, MeteredRoute):
        for option, text in (
            ("request.transform", route.request.transform),
            ("response.transform", route.response.transform),
            ("response.transform_events", route.response.transform_events),
        ):
            if text is not None:
                yield option, text


def _meter_spec(route: MeteredRoute) -> dict[str, int | str]:
    """Return what is read from the answer: all but what the app alone counts."""
    variables = {"charge_errors": "true" if route.charge_errors else "false"}
    return {
        name: bound(source, variables) if isinstance(source, str) else source
        for name, source in route.meter.items()
        if source != BY_APP
    }


def _try(path: str, compile_it: Callable[[], object], problems: list[Problem]) -> None:
    try:
        compile_it()
    except InvalidValue as error:
        message = str(error)
        name = path.rpartition(".")[2]
        problems.append(Problem(path, message.removeprefix(f"{name}: ")))
