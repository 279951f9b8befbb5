"""Which prices a call gets: its plan's, for its route, as of now, for what ``by`` finds in it.

The programs of ``by`` are compiled once, with everything else of a plan. What ``by`` finds is in
the request; the answer is never asked, because it often carries another, dated name.

Of a batch, a JSON array that the program fails on, each element is asked, and those that say
nothing are passed over. A batch has one price list: what would need several is `Mixed`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

from finomw import limits
from finomw.config.model import Config, PricedRoute
from finomw.config.plan_checks import by_parameter, parents_of
from finomw.config.wording import join
from finomw.errors import FinomwError, InvalidValue, Problem
from finomw.metering.documents import Document
from finomw.metering.programs import Program, ProgramFailed, compile_program
from finomw.money.plans import PricePlan, RoutePrices, compile_plan
from finomw.money.pricing import PriceList
from finomw.money.terms import Terms, terms_of
from finomw.types import PlanName, UnixMicroseconds


class Choice(NamedTuple):
    """What ``by`` found in a call, and the prices it selects; ``None`` where there are none."""

    value: str
    prices: PriceList | None


class Mixed(FinomwError):
    """The calls of one batch are priced apart."""


_IN_BATCH: Final = (
    "[.[] | ({}\n) | values] | if any(type == {}) then null elif min == max then min else {{}} end"
)
_KINDS: Final = '"object" or type == "array"'


class CompiledPlan:
    """A plan with its programs compiled. Raises `InvalidValue` where one does not compile."""

    def __init__(self, plan: PricePlan) -> None:
        self.plan = plan
        self.terms: Terms = terms_of(plan)
        self._programs: dict[str, Program] = {}
        self._batches: dict[str, Program] = {}
        for versions in plan.routes.values():
            for version in versions:
                if version.by is not None and by_parameter(version.by) is None:
                    self._programs[version.by] = compile_program(version.by)
                    in_batch = _IN_BATCH.format(version.by, _KINDS)
                    self._batches[version.by] = compile_program(in_batch)

    def programs(self, route: str) -> list[str]:
        """Return the programs that choose among a route's prices."""
        versions = self.plan.routes.get(route, ())
        found = [version.by for version in versions if version.by in self._programs]
        return [*found, *(self._batches[by].text for by in found)]

    def reads_request(self, route: str) -> bool:
        """Say whether choosing a route's prices needs the request's JSON."""
        return bool(self.programs(route))

    def choose(
        self,
        route: str,
        document: Document,
        parameters: Mapping[str, str],
        now: UnixMicroseconds,
    ) -> Choice:
        """Select the prices of one call; a program that fails on the request finds nothing.

        Raises `Mixed`.
        """
        version = self.plan.at(route, now)
        if version is None:
            return Choice("", None)
        value = self._find(version, document, parameters)
        shown = str(value) if isinstance(value, str | int | float) else ""
        return Choice(shown[: limits.NAME_BYTES], version.select(value))

    def _find(
        self, version: RoutePrices, document: Document, parameters: Mapping[str, str]
    ) -> object:
        if version.by is None:
            return None
        program = self._programs.get(version.by)
        if program is None:
            return parameters.get(by_parameter(version.by) or "")
        try:
            return program.run(document)
        except ProgramFailed:
            return self._find_in_batch(version.by, document)

    def _find_in_batch(self, by: str, document: Document) -> object:
        if not document.is_array:
            return None
        try:
            value = self._batches[by].run(document)
        except ProgramFailed:
            return None
        if isinstance(value, dict):
            raise Mixed(f"the calls of this batch have prices of their own, by {by}")
        return value


def compile_plans(config: Config, problems: list[Problem]) -> dict[PlanName, CompiledPlan]:
    """Compile all plans; what is wrong with them goes to ``problems``, all of it."""
    plans: dict[PlanName, CompiledPlan] = {}
    rules: dict[str, list[PricedRoute]] = {}
    for rule in config.routes:
        if isinstance(rule, PricedRoute):
            rules.setdefault(rule.name, []).append(rule)
    parents = {route: parents_of(named) for route, named in rules.items()}
    for name, plan in config.plans.items():
        before = len(problems)
        compiled = compile_plan(name, plan, problems, parents)
        for route, versions in plan.prices.items():
            where = join(join(join("plans", name), "prices"), route)
            for version in versions:
                if version.by is not None and by_parameter(version.by) is None:
                    try:
                        compile_program(version.by)
                    except InvalidValue as error:
                        path = join(version.path(where), "by")
                        problems.append(Problem(path, str(error)))
        if compiled is not None and len(problems) == before:
            plans[name] = CompiledPlan(compiled)
    return plans
