"""``finomw balance``: what a customer has left.

Open holds are already out of the balance: it is what the next call may draw on. Quotas are shown
by ``finomw customer show``.
"""

from __future__ import annotations

import typer

from finomw.cli import documents
from finomw.cli.customer.show import credit
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
from finomw.cli.output import print_fields, print_json, utc
from finomw.engine import customers
from finomw.money.account import remaining_percent
from finomw.money.micros import to_usd
from finomw.types import Status

app = typer.Typer()


@app.command(epilog="Example: finomw balance alice")
def balance(
    customer: CustomerArgument,
    config: ConfigOption = CONFIG_DEFAULT,
    data: DataOption = None,
    as_json: JsonOption = False,
) -> None:
    """Print what a customer has left.

    What calls in flight hold is out of the balance already.
    """
    who = customer_id(customer)
    with opened(node_directory(config, data)) as engine:
        account = customers.get_account(engine, who)
    if as_json:
        print_json(documents.of_balance(who, account))
        return
    fields = [
        ("balance", f"{to_usd(account.balance)} USD"),
        ("held", f"{to_usd(account.held)} USD"),
        ("left", f"{remaining_percent(account)} %"),
    ]
    if account.credit_limit or account.credit_used:
        fields.append(("credit", credit(account)))
    if account.status is not Status.ACTIVE:
        fields.append(("status", documents.STATUS_NAMES[account.status]))
    if account.blocked_at is not None:
        fields.append(("blocked", f"since {utc(account.blocked_at)} UTC"))
    print_fields(fields)
