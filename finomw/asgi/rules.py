"""What a configuration compiles to: everything a call needs, looked up and not worked out.

Programs are compiled, prices are exact rates, and each rule knows whether it has to read the
request. Whatever only compiling can find wrong (a jq program, an amount) is reported with its path
in the file, all of it at once, like the rest of the configuration's problems.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from finomw.asgi.routes import Router
from finomw.config.model import Config, FreeRoute, MeteredRoute
from finomw.config.wording import join
from finomw.errors import ConfigError, InvalidValue, Problem
from finomw.metering.choosing import CompiledPlan, compile_plans
from finomw.metering.estimate import Estimate
from finomw.metering.meter import Meter
from finomw.metering.programs import compile_recipe
from finomw.metering.usage import Usage
from finomw.money.micros import amount
from finomw.types import Counts, Micros, OnCrash, PlanName, RouteName, UsageStatus


class Rule:
    """A compiled metered rule."""

    def __init__(
        self, route: MeteredRoute, constants: Counts, meter: Meter, ceiling: Estimate
    ) -> None:
        self.name: RouteName = route.name
        self.meter = meter
        self.unread = Usage(
            constants, UsageStatus.KNOWN if meter.flat else UsageStatus.MISSING, error=False
        )
        """The usage of an answer that is not read: what is constant, and no more."""
        self.measured = tuple(name for name in route.meter if name not in constants)
        """The meters that are read from the answer."""
        self.ceiling = ceiling
        self.flat = meter.flat
        self.on_crash: OnCrash = route.crash
        self.charges_unknown = route.estimate == "hold"
        self.charges_errors = route.charge_errors
        self.request_max = route.max_request
        self.body_max = route.max_body
        self.cap = route.overrun == "cap"
        self.reads_request = ceiling.needs_body


class Ruleset(NamedTuple):
    """A compiled configuration. ``buffer`` is in micros."""

    config: Config
    router: Router[Rule]
    plans: Mapping[PlanName, CompiledPlan]
    buffer: Micros


def compile_config(config: Config) -> Ruleset:
    """Compile a configuration. Raises `ConfigError` with every problem found."""
    problems: list[Problem] = []
    buffer = 0
    try:
        buffer = amount(config.buffer_usd, least=0)
    except InvalidValue as error:
        problems.append(Problem("buffer_usd", str(error)))
    router: Router[Rule] = Router()
    rules: list[Rule] = []
    for index, route in enumerate(config.routes):
        rule = None
        if isinstance(route, MeteredRoute):
            rule = _compile_rule(route, join("routes", index), problems)
            if rule is not None:
                rules.append(rule)
        elif not isinstance(route, FreeRoute):
            problems.append(Problem(join("routes", index), "neither free nor metered"))
        router.add(route.match, rule)
    plans = compile_plans(config, problems)
    if problems:
        raise ConfigError(problems)
    for rule in rules:
        rule.reads_request |= any(plan.reads_request(rule.name) for plan in plans.values())
    return Ruleset(config, router, plans, buffer)


def _compile_rule(route: MeteredRoute, path: str, problems: list[Problem]) -> Rule | None:
    before = len(problems)
    for part, spec in (("meter", route.meter), ("hold", route.hold)):
        for name, source in spec.items():
            try:
                compile_recipe({name: source})
            except InvalidValue as error:
                problems.append(_inside(join(path, part), error))
    if len(problems) > before:
        return None
    constants = {name: count for name, count in route.meter.items() if isinstance(count, int)}
    return Rule(route, constants, Meter(route.meter), Estimate({**constants, **route.hold}))


def _inside(path: str, error: InvalidValue) -> Problem:
    """Make ``meter: what`` a problem at ``path.meter``."""
    meter, _, message = str(error).partition(": ")
    return Problem(join(path, meter), message)
