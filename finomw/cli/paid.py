"""``finomw paid``: book a payment of what a customer owes on the credit.

It is no top-up: the balance stays, and the credit that was used is free again.
"""

from __future__ import annotations

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
    epilog="Example: finomw paid alice 120.00 --id transfer-77 --note 'invoice 2027-01'",
    context_settings=AMOUNT_SETTINGS,
)
def paid(
    customer: CustomerArgument,
    usd: UsdArgument,
    source: SourceOption = SOURCE_DEFAULT,
    source_id: IdOption = None,
    note: NoteOption = "",
    config: ConfigOption = CONFIG_DEFAULT,
    data: DataOption = None,
    as_json: JsonOption = False,
) -> None:
    """Book a payment of what a customer owes.

    It is on disk when this returns. The credit that was used is free again, and the balance stays
    as it is: to give money to be spent, use grant.
    """
    who, amount = customer_id(customer), dollars("USD", usd)
    named = id_within(source, source_id)
    with opened(node_directory(config, data)) as engine:
        get_account(engine, who)  # refused before anything is written
        booked = grants.pay(engine, who, amount, source, named, note)
    if as_json:
        print_json(documents.of_booked(who, amount, source, named, booked))
        return
    done = f"booked a payment of {to_usd(amount)} USD by {who}"
    typer.echo(told(done, source, named, booked))
