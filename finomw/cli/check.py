"""``finomw check``: everything that is wrong with the YAML file, or what it says calls cost.

The file is compiled as the middleware would: a file that passes here is one that the API starts
with. Prices are shown as the file writes them; they are rates, not amounts to be booked, and may be
finer than a micro-dollar.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TypeAlias

import typer

from finomw.asgi.rules import compile_config
from finomw.cli.options import CONFIG_DEFAULT, ConfigOption, JsonOption
from finomw.cli.output import one_line, print_fields, print_json, print_table
from finomw.config.load import load
from finomw.config.model import Config, FreeRoute, MeteredRoute, Price, Prices, Route
from finomw.errors import ConfigError
from finomw.money.micros import amount, to_usd

app = typer.Typer()

Row: TypeAlias = tuple[str, str, str, str, str]

_COLUMNS: Row = ("MATCH", "ROUTE", "PLAN", "FOR", "PRICE USD")
_UNPRICED = "none: calls are refused"


@app.command(epilog="Example: finomw check --config fino.yaml")
def check(config: ConfigOption = CONFIG_DEFAULT, as_json: JsonOption = False) -> None:
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
    typer.echo()
    print_fields(
        [
            ("data", str(settings.data)),
            ("durability", settings.durability),
            ("unmatched", settings.unmatched),
            ("buffer", f"{to_usd(amount(settings.buffer_usd, least=0))} USD"),
        ]
    )


def _rows(config: Config) -> Iterator[Row]:
    """Yield a line for each route, plan, and value that chooses among the plan's prices."""
    for route in config.routes:
        match = f"{','.join(route.match.methods)} {route.match.path}"
        if not isinstance(route, MeteredRoute):
            yield match, _name(route), "", "", "free"
        else:
            for plan_name, plan in config.plans.items():
                priced = plan.prices.get(route.name)
                if priced is None:
                    yield match, route.name, plan_name, "", _UNPRICED
                else:
                    for value, prices in priced.lists.items():
                        chosen = value if priced.by is not None else ""
                        yield match, route.name, plan_name, chosen, _prices(route, prices)


def _prices(route: MeteredRoute, prices: Prices) -> str:
    """Return the prices of the route's meters; rules that share prices may have fewer meters."""
    return ", ".join(
        f"{meter} {_rate(price)}" for meter, price in prices.items() if meter in route.meter
    )


def _rate(price: Price) -> str:
    return f"{price.usd}" if price.usd is not None else f"{price.usd_per_million} per million"


def _name(route: Route) -> str:
    return (route.name or "") if isinstance(route, FreeRoute | MeteredRoute) else ""


def _document(config: Config) -> dict[str, object]:
    """Return the checked file for programs; prices are as written, texts or integers."""
    return {
        "ok": True,
        "problems": [],
        "data": str(config.data),
        "durability": config.durability,
        "unmatched": config.unmatched,
        "buffer_micros": amount(config.buffer_usd, least=0),
        "routes": [
            {
                "match": f"{','.join(route.match.methods)} {route.match.path}",
                "name": _name(route) or None,
                "free": not isinstance(route, MeteredRoute),
                "meters": list(route.meter) if isinstance(route, MeteredRoute) else [],
            }
            for route in config.routes
        ],
        "plans": {
            name: {
                route: {
                    "by": priced.by,
                    "prices": {
                        value: {meter: _price(price) for meter, price in prices.items()}
                        for value, prices in priced.lists.items()
                    },
                }
                for route, priced in plan.prices.items()
            }
            for name, plan in config.plans.items()
        },
    }


def _price(price: Price) -> dict[str, str]:
    if price.usd is not None:
        return {"usd": str(price.usd)}
    return {"usd_per_million": str(price.usd_per_million)}
