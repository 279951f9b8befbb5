"""``finomw refund``: take a grant, or a part of it, back.

A refund takes the stated amount whole, whatever the balance: it may go below zero, and then the
customer is blocked. All refunds of one grant together never exceed it.
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
from finomw.cli.output import print_json
from finomw.engine import grants
from finomw.engine.customers import get_account
from finomw.money.micros import to_usd

app = typer.Typer()


@app.command(
    epilog="Example: finomw refund alice 5.00 --of manual invoice-1041 --id refund-1041",
    context_settings=AMOUNT_SETTINGS,
)
def refund(
    customer: CustomerArgument,
    usd: UsdArgument,
    of: Annotated[
        tuple[str, str],
        typer.Option(
            "--of",
            metavar="SOURCE ID",
            help="The grant or payment that is taken back, by its name.",
        ),
    ],
    source: SourceOption = SOURCE_DEFAULT,
    source_id: IdOption = None,
    note: NoteOption = "",
    config: ConfigOption = CONFIG_DEFAULT,
    data: DataOption = None,
    as_json: JsonOption = False,
) -> None:
    """Take back a grant or payment, or a part of it.

    It is on disk when this returns. The balance may go below zero, and then new calls are refused.
    """
    who, amount = customer_id(customer), dollars("USD", usd)
    named = id_within(source, source_id)
    with opened(node_directory(config, data)) as engine:
        get_account(engine, who)  # refused before anything is written
        taken = grants.refund(engine, who, amount, source, named, of, note)
    if as_json:
        document = documents.of_booked(who, amount, source, named, taken)
        print_json(document | {"of": {"source": of[0], "source_id": of[1]}})
        return
    done = f"took {to_usd(amount)} USD of {of[0]}/{of[1]} back from {who}"
    typer.echo(told(done, source, named, taken))
