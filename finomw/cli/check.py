"""``finomw check``: everything that is wrong with the YAML file, or what it says calls cost.

The file is compiled as the middleware would: a file that passes here is one that the API starts
with. Prices are shown as the file writes them; they are rates, not amounts to be booked, and may be
finer than a micro-dollar.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Final, TypeAlias

import typer

from finomw.asgi.rules import compile_config
from finomw.cli.documents import Document
from finomw.cli.options import CONFIG_DEFAULT, ConfigOption, JsonOption
from finomw.cli.output import one_line, print_fields, print_json, print_table, utc, utc_exact
from finomw.config.load import load
from finomw.config.model import (
    Config,
    FreeRoute,
    Plan,
    PlanQuota,
    Price,
    PricedRoute,
    Prices,
    Route,
    RoutePrice,
    Tier,
    UnitPrice,
)
from finomw.config.plan_checks import by_parameter
from finomw.config.values import REST
from finomw.errors import ConfigError
from finomw.metering.measure import sources, transforms
from finomw.metering.programs import compile_program
from finomw.metering.transforms import Transform
from finomw.money.micros import amount, to_usd
from finomw.types import PlanName

app = typer.Typer()

Row: TypeAlias = tuple[str, ...]

_COLUMNS: Final = ("MATCH", "ROUTE", "PLAN", "FROM UTC", "FOR", "PRICE USD")
_UNPRICED: Final = {"refuse": "none: calls are refused", "free": "free"}


@app.command(epilog="Example: finomw check --config fino.yaml")
def check(
    config: ConfigOption = CONFIG_DEFAULT,
    as_json: JsonOption = False,
    verbose: Annotated[
        bool, typer.Option("--verbose", "-v", help="Show how each rule's programs run.")
    ] = False,
) -> None:
    """Check the YAML file and show what calls cost.

    Every problem is printed as a line "path: message" on stderr, with exit status 2.
    """
    try:
        settings = load(config)
        compile_config(settings)
    except ConfigError as error:
        if as_json:
            problems = [problem._asdict() for problem in error.problems]
            print_json({"ok": False, "problems": problems})
        for problem in error.problems:
            typer.echo(one_line(str(problem)), err=True)
        raise typer.Exit(2) from None
    if as_json:
        print_json(_document(settings))
        return
    print_table(_COLUMNS, list(_rows(settings)))
    if settings.plans:
        typer.echo()
        _print_plans(settings)
    if verbose:
        typer.echo()
        columns = ("ROUTE", "PROGRAM OF", "PROGRAM", "RUNS AS")
        print_table(columns, list(_programs(settings)))
    typer.echo()
    print_fields(
        [
            ("data", str(settings.data)),
            ("durability", settings.durability),
            ("on failure", settings.on_failure),
            ("unmatched", settings.unmatched),
            ("buffer", f"{to_usd(amount(settings.buffer_usd, least=0))} USD"),
        ]
    )


def _rows(config: Config) -> Iterator[Row]:
    """Yield a line for each route, plan, version, and value that chooses among its prices."""
    for route in config.routes:
        match = f"{','.join(route.match.methods)} {route.match.path}"
        if not isinstance(route, PricedRoute):
            yield match, _name(route), "", "", "", "free"
            continue
        for name, plan in config.plans.items():
            versions = plan.prices.get(route.name, ())
            if not versions:
                yield match, route.name, name, "", "", _UNPRICED[plan.unpriced]
            for version in versions:
                for row in _version(route, name, plan, version):
                    yield match, *row


def _programs(config: Config) -> Iterator[Row]:
    """Yield a line for each program of a rule, and of the prices that it uses."""
    for route in config.routes:
        if not isinstance(route, PricedRoute):
            continue
        for source in sources(route):
            yield route.name, source.purpose, source.written, compile_program(source.compiled).plan
        for option, text in transforms(route):
            yield route.name, option, text, Transform(text).plan
        for name, plan in config.plans.items():
            for version in plan.prices.get(route.name, ()):
                if version.by is not None and by_parameter(version.by) is None:
                    runs_as = compile_program(version.by).plan
                    yield route.name, f"by in {name}", version.by, runs_as


def _version(route: PricedRoute, name: PlanName, plan: Plan, version: RoutePrice) -> Iterator[Row]:
    start = "" if version.valid_from is None else utc(version.valid_from)
    for value, prices in version.lists.items():
        chosen = "" if version.by is None else value
        yield route.name, name, start, chosen, _prices(route, prices)
    if REST not in version.lists:
        yield route.name, name, start, "others", _UNPRICED[plan.unpriced]


def _prices(route: PricedRoute, prices: Prices) -> str:
    """Return the prices of the route's meters; rules that share prices may have fewer meters."""
    texts = [
        f"{meter} {_price(price)}"
        for meter, price in prices.meters.items()
        if meter in route.meters
    ]
    texts += [
        f"{meter} as {split.of}"
        for meter, split in route.splits.items()
        if meter not in prices.meters
    ]
    if prices.minimum is not None:
        texts.append(f"at least {prices.minimum.usd}")
    return ", ".join(texts)


def _price(price: Price) -> str:
    if price.package is not None:
        return f"{price.package.usd} for each {price.package.units} started"
    if price.tiered is not None:
        return f"tiered ({_tiers(price.tiered)})"
    if price.volume is not None:
        return f"volume ({_tiers(price.volume)})"
    return _rate(price)


def _tiers(tiers: tuple[Tier, ...]) -> str:
    return "; ".join(
        f"{_rate(tier)} {'above' if tier.up_to is None else f'up to {tier.up_to}'}"
        if len(tiers) > 1
        else _rate(tier)
        for tier in tiers
    )


def _rate(price: UnitPrice) -> str:
    return f"{price.usd}" if price.usd is not None else f"{price.usd_per_million} per million"


def _print_plans(config: Config) -> None:
    """Print what holds for a whole plan, and what it gives."""
    print_table(
        ("PLAN", "FUND", "ROUNDING", "TIERS COUNT BY", "UNPRICED"),
        [
            (name, ", ".join(plan.fund), plan.rounding, plan.period, plan.unpriced)
            for name, plan in config.plans.items()
        ],
    )
    quotas = [
        (name, quota, ", ".join(what.meters), _given(what), what.per, _yes(what.roll_over))
        for name, plan in config.plans.items()
        for quota, what in plan.quotas.items()
    ]
    if quotas:
        typer.echo()
        columns = ("PLAN", "QUOTA", "METERS", "GIVES", "PER", "ROLLS OVER")
        print_table(columns, quotas, right=("GIVES",))


def _given(quota: PlanQuota) -> str:
    return str(quota.units) if quota.usd is None else f"{quota.usd} USD"


def _yes(value: bool) -> str:
    return "yes" if value else "no"


def _name(route: Route) -> str:
    return (route.name or "") if isinstance(route, FreeRoute | PricedRoute) else ""


def _document(config: Config) -> Document:
    """Return the checked file for programs; prices are as written, texts or integers."""
    return {
        "ok": True,
        "problems": [],
        "data": str(config.data),
        "durability": config.durability,
        "on_failure": config.on_failure,
        "unmatched": config.unmatched,
        "buffer_micros": amount(config.buffer_usd, least=0),
        "routes": [
            {
                "match": f"{','.join(route.match.methods)} {route.match.path}",
                "name": _name(route) or None,
                "free": not isinstance(route, PricedRoute),
                "meters": list(route.meters) if isinstance(route, PricedRoute) else [],
                "splits": _splits(route),
            }
            for route in config.routes
        ],
        "plans": {name: _of_plan(plan) for name, plan in config.plans.items()},
    }


def _splits(route: Route) -> dict[str, str]:
    """Return the meters that are parts of others, and of which."""
    splits = route.splits if isinstance(route, PricedRoute) else {}
    return {meter: split.of for meter, split in splits.items()}


def _of_plan(plan: Plan) -> Document:
    return {
        "rounding": plan.rounding,
        "unpriced": plan.unpriced,
        "period": plan.period,
        "fund": list(plan.fund),
        "quotas": {
            name: {
                "meters": list(quota.meters),
                "units": quota.units,
                "usd": _text(quota.usd),
                "per": quota.per,
                "roll_over": quota.roll_over,
            }
            for name, quota in plan.quotas.items()
        },
        "prices": {
            route: [
                {
                    "valid_from": utc_exact(version.valid_from),
                    "by": version.by,
                    "prices": {
                        value: _of_prices(prices) for value, prices in version.lists.items()
                    },
                }
                for version in versions
            ]
            for route, versions in plan.prices.items()
        },
    }


def _of_prices(prices: Prices) -> Document:
    minimum = None if prices.minimum is None else _text(prices.minimum.usd)
    meters = {meter: _of_price(price) for meter, price in prices.meters.items()}
    return {"minimum_usd": minimum, "meters": meters}


def _of_price(price: Price) -> Document:
    if price.package is not None:
        return {"package": {"units": price.package.units, "usd": _text(price.package.usd)}}
    for kind, tiers in (("tiered", price.tiered), ("volume", price.volume)):
        if tiers is not None:
            return {kind: [{"up_to": tier.up_to} | _of_rate(tier) for tier in tiers]}
    return _of_rate(price)


def _of_rate(price: UnitPrice) -> Document:
    if price.usd is not None:
        return {"usd": _text(price.usd)}
    return {"usd_per_million": _text(price.usd_per_million)}


def _text(usd: str | int | None) -> str | None:
    return None if usd is None else str(usd)
