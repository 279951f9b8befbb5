"""``finomw invoice``: what a customer's credit paid for in a month or a year.

The amount stands with the route and the choice, since a call is rounded once and not by meter; the
units stand by meter below it. So the amounts of all lines add up to the total, in the CSV too.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Final

import typer

from finomw.cli import documents
from finomw.cli.options import (
    CONFIG_DEFAULT,
    ConfigOption,
    CsvOption,
    CustomerArgument,
    DataOption,
    JsonOption,
    customer_id,
    node_directory,
    one_format,
    opened,
)
from finomw.cli.output import print_csv, print_fields, print_json, print_table, utc, utc_exact
from finomw.engine import invoice as invoices
from finomw.engine.customers import get_account
from finomw.errors import InvalidValue
from finomw.money.micros import to_usd
from finomw.money.periods import period_named

app = typer.Typer()

_CSV: Final = (
    "customer",
    "start",
    "end",
    "route",
    "choice",
    "calls",
    "meter",
    "units",
    "amount_micros",
)


@app.command(epilog="Example: finomw invoice alice --period 2027-01 --csv > alice-2027-01.csv")
def invoice(
    customer: CustomerArgument,
    period: Annotated[
        str,
        typer.Option(
            "--period",
            metavar="PERIOD",
            help="A month such as 2027-01 or a year such as 2027, in the customer's time zone.",
        ),
    ],
    config: ConfigOption = CONFIG_DEFAULT,
    data: DataOption = None,
    as_json: JsonOption = False,
    as_csv: CsvOption = False,
) -> None:
    """Print what a customer's credit paid for in a period.

    That is what is to be paid; calls that the wallet or a quota paid for are not in it. A line
    for each route and choice (the model, say) has calls and amount; below it, a line for each
    meter has units. The columns of the CSV are customer, start, end, route, choice, calls, meter,
    units, amount_micros: calls and amount are empty where a meter stands.
    """
    one_format(as_json, as_csv)
    who = customer_id(customer)
    with opened(node_directory(config, data)) as engine:
        zone = get_account(engine, who).zone
        try:
            span = period_named(zone, period)
        except InvalidValue as error:
            raise InvalidValue(f"--period: {error}") from None
        found = invoices.invoice(engine, who, span)
    if as_json:
        print_json(documents.of_invoice(found) | {"period": period, "zone": zone})
        return
    if as_csv:
        ends = (utc_exact(span.start), utc_exact(span.end))
        print_csv(_CSV, ((who, *ends, *row) for row in _rows(found)))
        return
    print_table(
        ("ROUTE", "CHOICE", "CALLS", "METER", "UNITS", "AMOUNT USD"),
        list(_cells(found)),
        right=("CALLS", "UNITS", "AMOUNT USD"),
    )
    typer.echo()
    print_fields(
        [
            ("period", f"{period} in {zone}: {utc(span.start)} to {utc(span.end)} UTC"),
            ("total", f"{to_usd(found.total)} USD"),
            ("paid", f"{to_usd(found.paid)} USD in the period"),
            ("owed", f"{to_usd(found.owed)} USD now"),
        ]
    )


def _rows(invoice: invoices.Invoice) -> Iterator[tuple[str | int | None, ...]]:
    """Yield the lines of the CSV, without what is the same in each."""
    for line in invoice.lines:
        yield line.route, line.choice, line.calls, None, None, line.amount
        for meter, units in line.units.items():
            yield line.route, line.choice, None, meter, units, None


def _cells(invoice: invoices.Invoice) -> Iterator[tuple[str, ...]]:
    for line in invoice.lines:
        yield line.route, line.choice, str(line.calls), "", "", to_usd(line.amount)
        for meter, units in line.units.items():
            yield "", "", "", meter, str(units), ""
