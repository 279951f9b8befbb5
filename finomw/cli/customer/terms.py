"""``finomw customer suspend``, ``resume`` and ``set``: what an owner decides about a customer.

A suspension is apart from the block mark: no grant ends it, and resuming does not unblock. Neither
moves money.
"""

from __future__ import annotations

from typing import Annotated, TypeAlias

import typer

from finomw.cli import documents
from finomw.cli.options import (
    CONFIG_DEFAULT,
    BufferOption,
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
from finomw.errors import InvalidValue
from finomw.money.account import Account
from finomw.money.micros import to_usd
from finomw.types import CustomerId

app = typer.Typer()

ReasonOption: TypeAlias = Annotated[
    str, typer.Option("--reason", metavar="TEXT", help="Why, for people; it is recorded.")
]


@app.command(
    "suspend", epilog="Example: finomw customer suspend alice --reason 'invoice 1041 is overdue'"
)
def suspend(
    customer: CustomerArgument,
    reason: ReasonOption,
    config: ConfigOption = CONFIG_DEFAULT,
    data: DataOption = None,
    as_json: JsonOption = False,
) -> None:
    """Refuse a customer's new calls until it is resumed.

    Whatever the balance; calls under way finish.
    """
    who = customer_id(customer)
    with opened(node_directory(config, data)) as engine:
        customers.get_account(engine, who)  # refused before anything is written
        customers.suspend(engine, who, reason)
        account = customers.get_account(engine, who)
    _tell(who, account, as_json, f"suspended customer {who}: new calls are refused")


@app.command("resume", epilog="Example: finomw customer resume alice --reason 'invoice 1041 paid'")
def resume(
    customer: CustomerArgument,
    reason: ReasonOption,
    config: ConfigOption = CONFIG_DEFAULT,
    data: DataOption = None,
    as_json: JsonOption = False,
) -> None:
    """End a suspension."""
    who = customer_id(customer)
    with opened(node_directory(config, data)) as engine:
        customers.get_account(engine, who)  # refused before anything is written
        customers.resume(engine, who, reason)
        account = customers.get_account(engine, who)
    still = "" if account.blocked_at is None else "; it is still blocked, its balance is below zero"
    _tell(who, account, as_json, f"resumed customer {who}{still}")


@app.command("set", epilog="Example: finomw customer set alice --credit-limit 500 --buffer 0")
def set_terms(
    customer: CustomerArgument,
    credit_limit: Annotated[
        str | None,
        typer.Option(
            "--credit-limit", metavar="USD", help="Dollars that calls may use before they are paid."
        ),
    ] = None,
    buffer: BufferOption = None,
    config: ConfigOption = CONFIG_DEFAULT,
    data: DataOption = None,
    as_json: JsonOption = False,
) -> None:
    """Change a customer's credit limit or buffer.

    What is not given stays as it is.
    """
    who = customer_id(customer)
    if credit_limit is None and buffer is None:
        raise InvalidValue("nothing to set: give --credit-limit or --buffer")
    limit = None if credit_limit is None else dollars("--credit-limit", credit_limit, least=0)
    allowed = None if buffer is None else dollars("--buffer", buffer, least=0)
    with opened(node_directory(config, data)) as engine:
        customers.get_account(engine, who)  # refused before anything is written
        customers.set_terms(engine, who, limit, allowed)
        account = customers.get_account(engine, who)
    done = [
        f"{what} of {who} is {to_usd(amount)} USD"
        for what, amount in (("the credit limit", limit), ("the buffer", allowed))
        if amount is not None
    ]
    _tell(who, account, as_json, "; ".join(done))


def _tell(who: CustomerId, account: Account, as_json: bool, done: str) -> None:
    if as_json:
        print_json(documents.of_account(who, account))
    else:
        typer.echo(done)
