"""``finomw grant``: give a customer credit, for ever or until a date.

What is unspent at its date is taken back by the next call or sweep, never below zero; charges use
up what expires soonest.
"""

from __future__ import annotations

from typing import Annotated

import typer

from finomw.cli import documents
from finomw.cli.booking import (
    AMOUNT_SETTINGS,
    SOURCE_DEFAULT,
    IdOption,
    NoteOption,
    SourceOption,
    UsdArgument,
    id_within,
    told,
)
from finomw.cli.options import (
    CONFIG_DEFAULT,
    ConfigOption,
    CustomerArgument,
    DataOption,
    JsonOption,
    customer_id,
    dollars,
    node_directory,
    opened,
)
from finomw.cli.output import print_json, utc, utc_exact
from finomw.cli.times import moment
from finomw.engine import grants
from finomw.engine.customers import get_account
from finomw.money.micros import to_usd

app = typer.Typer()


@app.command(
    epilog="Example: finomw grant alice 25.00 --id invoice-1041 --note 'bank transfer'",
    context_settings=AMOUNT_SETTINGS,
)
def grant(
    customer: CustomerArgument,
    usd: UsdArgument,
    source: SourceOption = SOURCE_DEFAULT,
    source_id: IdOption = None,
    note: NoteOption = "",
    expires: Annotated[
        str | None,
        typer.Option(
            "--expires",
            metavar="TIME",
            help="When what is unspent is taken back: RFC 3339, or a day such as 2027-01-31, "
            "which is the start of that day in the customer's time zone.",
        ),
    ] = None,
    config: ConfigOption = CONFIG_DEFAULT,
    data: DataOption = None,
    as_json: JsonOption = False,
) -> None:
    """Give a customer credit; it is on disk when this returns."""
    who, amount = customer_id(customer), dollars("USD", usd)
    named = id_within(source, source_id)
    with opened(node_directory(config, data)) as engine:
        zone = get_account(engine, who).zone  # refused before anything is written
        until = None if expires is None else moment("--expires", expires, zone)
        given = grants.grant(engine, who, amount, source, named, note, until)
    if as_json:
        document = documents.of_booked(who, amount, source, named, given)
        print_json(document | {"expires": utc_exact(until)})
        return
    end = "" if until is None else f" until {utc(until)} UTC"
    typer.echo(told(f"gave {who} {to_usd(amount)} USD{end}", source, named, given))
