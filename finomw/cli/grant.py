"""``finomw grant``: give a customer credit.

A grant has a name, its source and id, and is given once for each name however often it is asked
for: a payment's id makes a script safe to run again. Without an id each run is a grant of its own.
"""

from __future__ import annotations

import secrets
from typing import Annotated

import typer

from finomw import limits
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
from finomw.cli.output import print_json
from finomw.engine import customers
from finomw.money.entries import check_name
from finomw.money.micros import to_usd

app = typer.Typer()


@app.command(
    epilog="Example: finomw grant alice 25.00 --id invoice-1041 --note 'bank transfer'",
    # A negative amount is an amount that we refuse, not an unknown option.
    context_settings={"ignore_unknown_options": True},
)
def grant(
    customer: CustomerArgument,
    usd: Annotated[
        str, typer.Argument(metavar="USD", help="Dollars such as 25.00, to six decimals.")
    ],
    source: Annotated[
        str, typer.Option("--source", metavar="SOURCE", help="Where the money came from.")
    ] = "manual",
    source_id: Annotated[
        str | None,
        typer.Option(
            "--id",
            metavar="ID",
            help="Names the grant within its source: given twice, it counts once. "
            "[default: a random one]",
        ),
    ] = None,
    note: Annotated[str, typer.Option("--note", metavar="TEXT", help="Why, for people.")] = "",
    config: ConfigOption = CONFIG_DEFAULT,
    data: DataOption = None,
    as_json: JsonOption = False,
) -> None:
    """Give a customer credit; it is on disk when this returns."""
    who, amount = customer_id(customer), dollars("USD", usd)
    named = secrets.token_hex(8) if source_id is None else source_id
    check_name("--source", source, limits.SOURCE_BYTES)
    check_name("--id", named, limits.SOURCE_ID_BYTES)
    with opened(node_directory(config, data)) as engine:
        customers.get_account(engine, who)  # refused before anything is written
        given = customers.grant(engine, who, amount, source, named, note)
    if as_json:
        print_json(
            {
                "customer": who,
                "amount_micros": amount,
                "source": source,
                "source_id": named,
                "repeated": given.repeated,
                "balance_micros": given.balance,
            }
        )
        return
    done = "given before, nothing changed" if given.repeated else f"gave {who} {to_usd(amount)} USD"
    typer.echo(f"{done}: {source}/{named}; the balance is {to_usd(given.balance)} USD")
