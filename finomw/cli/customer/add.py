"""``finomw customer add``: a new customer, with nothing on the account yet.

The plan has to be one of the YAML's, so that a misspelt name is told here and not to the customer;
with ``--data`` the YAML is not read, and the name is taken as it is.
"""

from __future__ import annotations

from typing import Annotated

import typer

from finomw.cli import documents
from finomw.cli.options import (
    CONFIG_DEFAULT,
    BufferOption,
    ConfigOption,
    CustomerArgument,
    DataOption,
    JsonOption,
    ZoneOption,
    customer_id,
    directory_with_plan,
    dollars,
    opened,
)
from finomw.cli.output import print_json
from finomw.engine import customers
from finomw.types import PlanName

app = typer.Typer()


@app.command("add", epilog="Example: finomw customer add alice --plan default --name 'Alice Ltd'")
def add(
    customer: CustomerArgument,
    plan: Annotated[
        str, typer.Option("--plan", metavar="PLAN", help="The price plan, as the YAML names it.")
    ] = "default",
    name: Annotated[str, typer.Option("--name", metavar="TEXT", help="A name for people.")] = "",
    buffer: BufferOption = None,
    zone: ZoneOption = None,
    config: ConfigOption = CONFIG_DEFAULT,
    data: DataOption = None,
    as_json: JsonOption = False,
) -> None:
    """Add a customer, with nothing on the account yet.

    The periods of the plan begin today, in UTC or in the time zone of --zone.
    """
    who = customer_id(customer)
    allowed = None if buffer is None else dollars("--buffer", buffer, least=0)
    with opened(directory_with_plan(config, data, "--plan", plan)) as engine:
        customers.add_customer(
            engine, who, PlanName(plan), name, allowed, zone or customers.DEFAULT_ZONE
        )
        account = customers.get_account(engine, who)
    if as_json:
        print_json(documents.of_account(who, account))
    else:
        typer.echo(f"added customer {who} with the plan {plan}")
