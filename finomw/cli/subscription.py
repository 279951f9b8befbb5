"""``finomw subscribe``, ``unsubscribe`` and ``change-plan``: which plan prices a customer's calls.

A subscription begins periods anew, from today; a change of plan leaves them as they are. Where the
YAML is read, the plan must be one of its plans.
"""

from __future__ import annotations

from typing import Annotated, TypeAlias

import typer

from finomw.cli import documents
from finomw.cli.options import (
    CONFIG_DEFAULT,
    ConfigOption,
    CustomerArgument,
    DataOption,
    JsonOption,
    ZoneOption,
    customer_id,
    directory_with_plan,
    node_directory,
    opened,
)
from finomw.cli.output import print_json
from finomw.engine import customers
from finomw.money.account import Account
from finomw.types import CustomerId, PlanName

app = typer.Typer()

PlanArgument: TypeAlias = Annotated[
    str, typer.Argument(metavar="PLAN", help="The price plan, as the YAML names it.")
]


@app.command(epilog="Example: finomw subscribe alice pro --zone Europe/Berlin")
def subscribe(
    customer: CustomerArgument,
    plan: PlanArgument,
    zone: ZoneOption = None,
    config: ConfigOption = CONFIG_DEFAULT,
    data: DataOption = None,
    as_json: JsonOption = False,
) -> None:
    """Put a customer on a plan that begins today.

    Its periods start today, and what earlier quotas had left is gone; only what is given once
    stays as it is. Without --zone the customer's time zone stays. Refused while calls under way
    hold a quota.
    """
    who = customer_id(customer)
    with opened(directory_with_plan(config, data, "PLAN", plan)) as engine:
        before = customers.get_account(engine, who)  # refused before anything is written
        customers.subscribe(engine, who, PlanName(plan), zone or before.zone)
        account = customers.get_account(engine, who)
    done = f"subscribed customer {who} to the plan {plan}, in the time zone {account.zone}"
    _tell(who, account, as_json, done)


@app.command(epilog="Example: finomw unsubscribe alice")
def unsubscribe(
    customer: CustomerArgument,
    config: ConfigOption = CONFIG_DEFAULT,
    data: DataOption = None,
    as_json: JsonOption = False,
) -> None:
    """Leave a customer without a plan.

    Nothing has a price then, so its calls are refused.
    """
    who = customer_id(customer)
    with opened(node_directory(config, data)) as engine:
        customers.get_account(engine, who)  # refused before anything is written
        customers.unsubscribe(engine, who)
        account = customers.get_account(engine, who)
    _tell(who, account, as_json, f"unsubscribed customer {who}: its calls are refused")


@app.command("change-plan", epilog="Example: finomw change-plan alice pro")
def change_plan(
    customer: CustomerArgument,
    plan: PlanArgument,
    config: ConfigOption = CONFIG_DEFAULT,
    data: DataOption = None,
    as_json: JsonOption = False,
) -> None:
    """Put a customer on another plan from now on.

    Periods under way go on, with what is left of their quotas.
    """
    who = customer_id(customer)
    with opened(directory_with_plan(config, data, "PLAN", plan)) as engine:
        customers.get_account(engine, who)  # refused before anything is written
        customers.change_plan(engine, who, PlanName(plan))
        account = customers.get_account(engine, who)
    _tell(who, account, as_json, f"customer {who} is on the plan {plan} from now on")


def _tell(who: CustomerId, account: Account, as_json: bool, done: str) -> None:
    if as_json:
        print_json(documents.of_account(who, account))
    else:
        typer.echo(done)
