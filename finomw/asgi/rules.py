"""What a configuration compiles to: everything a call needs, looked up and not worked out.

Programs are compiled, prices are exact rates, and each rule knows whether it has to read the
request. Whatever only compiling can find wrong (a jq program, an amount) is reported with its path
in the file, all of it at once, like the rest of the configuration's problems.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, NamedTuple

from finomw.asgi.estimation import Estimation
from finomw.asgi.pace import Pace
from finomw.asgi.routes import Router
from finomw.asgi.transform import Rewrites
from finomw.config.match import apart
from finomw.config.model import Config, FreeRoute, MeteredRoute, PricedRoute, SocketRoute
from finomw.config.wording import join
from finomw.errors import ConfigError, InvalidValue, Problem
from finomw.metering.choosing import CompiledPlan, compile_plans
from finomw.metering.estimate import Estimate
from finomw.metering.measure import compile_measure
from finomw.metering.messages import MessageMeter
from finomw.metering.meter import Meter
from finomw.metering.readers import Readers
from finomw.metering.splits import splits_of
from finomw.metering.transforms import Transform
from finomw.money.micros import amount
from finomw.types import Counts, Micros, OnCrash, PlanName, RouteName


class PricedRule:
    """What the hold and the end need of a compiled rule, for calls and for WebSockets alike."""

    def __init__(self, route: PricedRoute, ceiling: Estimate) -> None:
        self.name: RouteName = route.name
        self.meters = route.meters
        self.measured = tuple(name for name in route.meters if name not in route.constants)
        """The meters whose counts are not known before."""
        self.addable = {name: name not in route.constants for name in route.meters}
        """Its meters, and whether the app can add to each."""
        self.splits = {meter: split.of for meter, split in route.splits.items()}
        """The meters that are parts of others, and of which."""
        self.ceiling = ceiling
        self.flat = route.flat
        self.on_crash: OnCrash = route.crash
        self.cuts = route.on_ceiling == "cut"
        """Whether a stream that uses more than is held is ended."""
        self.cap = route.overrun == "cap"
        self.reads_json = False
        """Whether the request has to be JSON, as far as there is any."""
        self.estimate: Literal["hold", "none"] | Estimation = (
            route.estimate if isinstance(route.estimate, str) else Estimation(route.estimate)
        )
        self.pace = None if route.settle_every is None else Pace.of(route.settle_every)
        """How often a stream is settled while it goes on."""
        self.charges_errors = False


class SocketRule(PricedRule):
    """A compiled rule for WebSockets."""

    def __init__(self, route: SocketRoute, receive: MessageMeter, send: MessageMeter) -> None:
        super().__init__(route, Estimate({**route.constants, **route.hold}))
        self.constants: Counts = route.constants
        self.parts = splits_of(route)
        self.receive = receive
        self.send = send


class Rule(PricedRule):
    """A compiled metered rule."""

    def __init__(
        self, route: MeteredRoute, meter: Meter, ceiling: Estimate, rewrites: Rewrites
    ) -> None:
        super().__init__(route, ceiling)
        self.meter = meter
        self.rewrites = rewrites
        self.unread = meter.unread()
        """The usage of an answer that is not read: what is constant, and no more."""
        self.charges_errors = route.charge_errors
        self.request_max = route.max_request
        self.body_max = route.max_body
        self.readers = Readers(route.name, meter, route.max_body, route.too_large == "tail")
        self.reads_request = ceiling.needs_body or rewrites.changes_requests
        self.reads_json = ceiling.needs_json or rewrites.changes_requests
        self.sizes_request = ceiling.needs_size


class Ruleset(NamedTuple):
    """A compiled configuration. ``buffer`` is in micros."""

    config: Config
    router: Router[Rule]
    sockets: Router[SocketRule]
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
    sockets: Router[SocketRule] = Router()
    rules: list[Rule] = []
    for index, route in enumerate(config.routes):
        rule = socket = None
        if isinstance(route, MeteredRoute):
            rule = _compile_rule(route, join("routes", index), problems)
            if rule is not None:
                rules.append(rule)
        elif isinstance(route, SocketRoute):
            socket = _compile_socket(route, join("routes", index), problems)
        elif not isinstance(route, FreeRoute):
            problems.append(Problem(join("routes", index), "neither free nor metered"))
        http, sockets_match = apart(route.match)
        if http is not None:
            router.add(http, rule)
        if sockets_match is not None:
            sockets.add(sockets_match, socket)
    plans = compile_plans(config, problems)
    if problems:
        raise ConfigError(problems)
    for rule in rules:
        rule.reads_json |= any(plan.reads_request(rule.name) for plan in plans.values())
        rule.reads_request |= rule.reads_json
    return Ruleset(config, router, sockets, plans, buffer)


def _compile_rule(route: MeteredRoute, path: str, problems: list[Problem]) -> Rule | None:
    before = len(problems)
    measure = compile_measure(route, path, problems)
    where, response = join(path, "request"), join(path, "response")
    request = _transform(join(where, "transform"), route.request.transform, problems)
    whole = _transform(join(response, "transform"), route.response.transform, problems)
    events = join(response, "transform_events")
    each = _transform(events, route.response.transform_events, problems)
    if measure is None or len(problems) > before:
        return None
    keeps_arrays = measure.meter.keeps_arrays
    rewrites = Rewrites(
        route.name, request, whole, each, route.ensure_usage, route.max_body, keeps_arrays
    )
    return Rule(route, measure.meter, measure.estimate, rewrites)


def _transform(path: str, text: str | None, problems: list[Problem]) -> Transform | None:
    try:
        return None if text is None else Transform(text)
    except InvalidValue as error:
        problems.append(Problem(path, str(error)))
        return None


def _compile_socket(route: SocketRoute, path: str, problems: list[Problem]) -> SocketRule | None:
    before = len(problems)
    for direction, spec in (("receive", route.receive), ("send", route.send)):
        for name, quantity in spec.items():
            try:
                MessageMeter({name: quantity}, route.merge)
            except InvalidValue as error:
                message = str(error).removeprefix(f"{name}: ")
                problems.append(Problem(join(join(path, direction), name), message))
    if len(problems) > before:
        return None
    receive, send = (MessageMeter(spec, route.merge) for spec in (route.receive, route.send))
    return SocketRule(route, receive, send)
