"""``finomw customer delete``: close an account for good.

Closing cannot be undone, so it is asked for twice: on a terminal by a question, elsewhere by
``--yes``. The question says what there is to lose, and is asked while nothing is open.
"""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from finomw.cli import documents
from finomw.cli.options import (
    CONFIG_DEFAULT,
    ConfigOption,
    CustomerArgument,
    DataOption,
    JsonOption,
    customer_id,
    node_directory,
    opened,
)
from finomw.cli.output import print_json
from finomw.engine import customers
from finomw.errors import InvalidValue
from finomw.money.account import Account
from finomw.money.micros import to_usd

app = typer.Typer()


@app.command("delete", epilog="Example: finomw customer delete alice --yes")
def delete(
    customer: CustomerArgument,
    erase: Annotated[
        bool, typer.Option("--erase", help="Remove the ledger and the name, too.")
    ] = False,
    yes: Annotated[
        bool, typer.Option("--yes", help="Do not ask; needed where there is no terminal.")
    ] = False,
    config: ConfigOption = CONFIG_DEFAULT,
    data: DataOption = None,
    as_json: JsonOption = False,
) -> None:
    """Close a customer's account for good.

    Its keys go, what is left is booked as refunded, what is owed as forgiven, so that the account
    ends at zero. The id stays taken. Refused while calls are under way.
    """
    who = customer_id(customer)
    directory = node_directory(config, data)
    with opened(directory) as engine:
        account = customers.get_account(engine, who)  # refused before anything is written
    if not yes:
        _ask(f"delete customer {who}? {_loss(account, erase)}")
    with opened(directory) as engine:
        customers.delete_customer(engine, who, erase)
        account = customers.get_account(engine, who)
    if as_json:
        print_json(documents.of_account(who, account))
    else:
        ledger = "its ledger and name are erased" if erase else "its ledger stays"
        typer.echo(f"deleted customer {who}: {ledger}")


def _loss(account: Account, erase: bool) -> str:
    """Say what a deletion gives up."""
    parts = []
    if account.balance > 0:
        parts.append(f"{to_usd(account.balance)} USD are left and go back")
    elif account.balance < 0:
        parts.append(f"{to_usd(-account.balance)} USD below zero are forgiven")
    if account.credit_used:
        parts.append(f"{to_usd(account.credit_used)} USD of credit are forgiven")
    parts.append("its keys go" + (", its ledger and name are erased" if erase else ""))
    return "; ".join(parts)


def _ask(question: str) -> None:
    """Return when a person at the terminal says yes; raises `InvalidValue` for all else."""
    if not sys.stdin.isatty():
        raise InvalidValue("--yes: needed to delete where nobody can be asked")
    typer.echo(f"{question} [y/N] ", err=True, nl=False)
    if sys.stdin.readline().strip().lower() not in ("y", "yes"):
        raise InvalidValue("nothing was deleted")
