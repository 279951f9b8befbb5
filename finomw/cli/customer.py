"""``finomw customer``: who pays.

A customer is made once and never removed: its ledger stays true for ever. Listing and showing
read one snapshot, so that what stands side by side was true at the same moment.
"""

from __future__ import annotations

from typing import Annotated

import typer

from finomw.cli import documents
from finomw.cli.key import keys_of, print_keys
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
    read_config,
)
from finomw.cli.output import print_fields, print_json, print_table, utc
from finomw.config.model import Config
from finomw.config.wording import nearest
from finomw.engine import customers
from finomw.errors import InvalidValue, quoted
from finomw.money.account import Account, remaining_percent
from finomw.money.micros import to_usd
from finomw.types import CustomerId, PlanName

app = typer.Typer(name="customer", help="Add customers, list them, show one.")


@app.command("add", epilog="Example: finomw customer add alice --plan default --name 'Alice Ltd'")
def add(
    customer: CustomerArgument,
    plan: Annotated[
        str, typer.Option("--plan", metavar="PLAN", help="The price plan, as the YAML names it.")
    ] = "default",
    name: Annotated[str, typer.Option("--name", metavar="TEXT", help="A name for people.")] = "",
    buffer: Annotated[
        str | None,
        typer.Option(
            "--buffer",
            metavar="USD",
            help="Dollars that the balance may go below zero, in place of the YAML's buffer_usd.",
        ),
    ] = None,
    config: ConfigOption = CONFIG_DEFAULT,
    data: DataOption = None,
    as_json: JsonOption = False,
) -> None:
    """Add a customer, with nothing on the account yet."""
    who = customer_id(customer)
    allowed = None if buffer is None else dollars("--buffer", buffer, least=0)
    if data is None:
        settings = read_config(config)
        _check_plan(settings, plan)
        data = settings.data
    with opened(data) as engine:
        customers.add_customer(engine, who, PlanName(plan), name, allowed)
        account = customers.get_account(engine, who)
    if as_json:
        print_json(documents.of_account(who, account))
    else:
        typer.echo(f"added customer {who} with the plan {plan}")


@app.command("list", epilog="Example: finomw customer list --json")
def list_all(
    config: ConfigOption = CONFIG_DEFAULT, data: DataOption = None, as_json: JsonOption = False
) -> None:
    """List all customers and what they have left."""
    with opened(node_directory(config, data)) as engine, engine.store.read() as txn:
        rows = list(engine.store.accounts.items(txn))
    if as_json:
        print_json({"customers": [documents.of_account(who, account) for who, account in rows]})
        return
    print_table(
        ("CUSTOMER", "PLAN", "BALANCE USD", "HELD USD", "LEFT", "STATUS", "CREATED UTC", "NAME"),
        [
            (
                who,
                account.plan,
                to_usd(account.balance),
                to_usd(account.held),
                f"{remaining_percent(account)} %",
                "open" if account.blocked_at is None else "blocked",
                utc(account.created),
                account.name,
            )
            for who, account in rows
        ],
        right=("BALANCE USD", "HELD USD", "LEFT"),
    )


@app.command("show", epilog="Example: finomw customer show alice")
def show(
    customer: CustomerArgument,
    config: ConfigOption = CONFIG_DEFAULT,
    data: DataOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show a customer's account, keys and calls in flight."""
    who = customer_id(customer)
    with opened(node_directory(config, data)) as engine, engine.store.read() as txn:
        account = engine.store.accounts.need(txn, who)
        keys = keys_of(engine, txn, who)
        open_holds = sum(row.customer == who for _, row in engine.store.holds.items(txn))
    if as_json:
        print_json(
            documents.of_account(who, account)
            | {"open_holds": open_holds, "keys": [documents.of_key(*key) for key in keys]}
        )
        return
    print_fields(_fields(who, account, open_holds))
    typer.echo()
    print_keys(keys)


def _check_plan(settings: Config, plan: str) -> None:
    """Raise `InvalidValue` for a plan that the configuration does not have."""
    if plan not in settings.plans:
        hint = nearest(plan, settings.plans) or f"; known: {', '.join(settings.plans) or 'none'}"
        raise InvalidValue(f"--plan: the YAML has no plan {quoted(plan)}{hint}")


def _fields(who: CustomerId, account: Account, open_holds: int) -> list[tuple[str, str]]:
    blocked = account.blocked_at
    buffer = "as configured" if account.buffer is None else f"{to_usd(account.buffer)} USD"
    return [
        ("customer", who),
        ("name", account.name or "-"),
        ("plan", account.plan),
        ("created", f"{utc(account.created)} UTC"),
        ("status", "open" if blocked is None else f"blocked since {utc(blocked)} UTC"),
        ("balance", f"{to_usd(account.balance)} USD"),
        ("held", f"{to_usd(account.held)} USD"),
        ("open holds", str(open_holds)),
        ("left", f"{remaining_percent(account)} % of the balance after the last grant"),
        ("credited", f"{to_usd(account.credited_total)} USD in total"),
        ("spent", f"{to_usd(account.spent_total)} USD in total"),
        ("buffer", buffer),
    ]
