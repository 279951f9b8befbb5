"""``finomw price``: what a call costs, line by line, before anybody makes it.

Reads only the YAML: quotas, which belong to a customer, are left out, and how much was used before
is an option. It is priced by the same code as a call, so the total is what a call is charged.
"""

from __future__ import annotations

from typing import Annotated, Final

import msgspec
import typer

from finomw.cli.options import CONFIG_DEFAULT, ConfigOption, JsonOption, one_of
from finomw.cli.output import print_fields, print_json, print_table, utc_exact
from finomw.cli.plans import read_plan
from finomw.cli.times import TIME_HELP, moment, now
from finomw.config.model import PricedRoute
from finomw.config.values import REST
from finomw.errors import InvalidValue, quoted
from finomw.metering.counts import judge
from finomw.money.explain import Explanation, explain
from finomw.money.micros import exact_usd, to_usd
from finomw.money.plans import PricePlan
from finomw.money.pricing import PriceList
from finomw.types import Counts, UnixMicroseconds, UsageStatus

app = typer.Typer()

COLUMNS: Final = ("METER", "UNITS", "TIER", "RATE USD", "AMOUNT USD")


@app.command(
    epilog="Example: finomw price --route chat --choice small-1 "
    """--usage '{"input_tokens": 1200, "output_tokens": 80}'"""
)
def price(
    route: Annotated[str, typer.Option("--route", metavar="ROUTE", help="The route's name.")],
    usage: Annotated[
        str,
        typer.Option(
            "--usage", metavar="JSON", help='What the call uses: {"input_tokens": 1200, …}.'
        ),
    ],
    plan: Annotated[
        str, typer.Option("--plan", metavar="PLAN", help="The price plan, as the YAML names it.")
    ] = "default",
    choice: Annotated[
        str | None,
        typer.Option(
            "--choice", metavar="VALUE", help="What by finds in the call: the model, say."
        ),
    ] = None,
    used: Annotated[
        str,
        typer.Option(
            "--used",
            metavar="JSON",
            help="What was used before in the period, for tiered and volume prices.",
        ),
    ] = "{}",
    at: Annotated[
        str | None,
        typer.Option("--at", metavar="TIME", help=f"When: {TIME_HELP} [default: now]"),
    ] = None,
    config: ConfigOption = CONFIG_DEFAULT,
    as_json: JsonOption = False,
) -> None:
    """Explain what a call costs, line by line.

    Only the YAML is read; quotas are not looked at, for they belong to a customer. An AMOUNT is
    exact, the total is rounded once.
    """
    counts, before = _counts("--usage", usage), _counts("--used", used)
    when = now() if at is None else moment("--at", at)
    settings, compiled = read_plan(config, "--plan", plan)
    routes = {rule.name: None for rule in settings.routes if isinstance(rule, PricedRoute)}
    one_of("--route", "no metered route has the name", route, routes)
    prices = _prices(compiled, route, choice, when)
    for meter in before:
        one_of("--used", "no price depends on the use of", meter, sorted(prices.tiered_meters))
    told = explain(prices, counts, before)
    if as_json:
        asked = {"plan": plan, "route": route, "choice": choice, "at": utc_exact(when)}
        print_json(asked | {"usage": counts, "used": before} | document_of(told))
        return
    print_table(COLUMNS, price_rows(told), right=("UNITS", "AMOUNT USD"))
    typer.echo()
    print_fields(_fields(told))


def _prices(plan: PricePlan, route: str, choice: str | None, when: UnixMicroseconds) -> PriceList:
    """Return the list for a call; raises `InvalidValue` where it would be refused."""
    version = plan.at(route, when)
    if version is None:
        raise InvalidValue(f"--route: the plan {plan.name} has no price of {route} at that time")
    if version.by is None and choice is not None:
        raise InvalidValue(f"--choice: the price of {route} does not depend on one")
    prices = version.select(choice)
    if prices is None:
        known = ", ".join(value for value in version.lists if value != REST)
        if choice is None:
            raise InvalidValue(f"--choice: missing, the price of {route} depends on it: {known}")
        raise InvalidValue(
            f"--choice: the plan {plan.name} has no price of {route} for {quoted(choice)}; "
            f"known: {known}"
        )
    return prices


def _counts(field: str, text: str) -> Counts:
    """Return counts that were written as a JSON object; raises `InvalidValue`."""
    try:
        counts = msgspec.json.decode(text, type=dict[str, object])
    except msgspec.MsgspecError:
        raise InvalidValue(
            f'{field}: expected a JSON object such as {{"requests": 1}}, found {quoted(text)}'
        ) from None
    read: Counts = {}
    for meter, value in counts.items():
        count = judge(value)
        if isinstance(count, UsageStatus):
            shown = quoted(msgspec.json.encode(value).decode())
            raise InvalidValue(f"{field}: {quoted(meter)} is no count: {shown}")
        read[meter] = count
    return read


def price_rows(told: Explanation) -> list[tuple[str, ...]]:
    """Return the lines of an explanation under ``COLUMNS``."""
    return [
        (line.meter, str(line.units), line.tier, line.rate, exact_usd(line.amount))
        for line in told.lines
    ]


def _fields(told: Explanation) -> list[tuple[str, str]]:
    fields = [
        ("exact", f"{exact_usd(told.exact)} USD"),
        ("rounding", told.rounding),
        ("total", f"{to_usd(told.total)} USD"),
        ("version", told.version),
    ]
    if told.minimum is not None:
        fields.insert(0, ("minimum", f"{exact_usd(told.minimum)} USD, which is more than the sum"))
    return fields


def document_of(told: Explanation) -> dict[str, object]:
    """Return the explanation for programs; exact dollars are texts, decimal or a fraction."""
    return {
        "lines": [
            {
                "meter": line.meter,
                "units": line.units,
                "tier": line.tier,
                "rate": line.rate,
                "exact_usd": exact_usd(line.amount),
            }
            for line in told.lines
        ],
        "minimum_usd": None if told.minimum is None else exact_usd(told.minimum),
        "exact_usd": exact_usd(told.exact),
        "rounding": told.rounding,
        "total_micros": told.total,
        "version": told.version,
    }
