"""``finomw customer list`` and ``show``: who there is, and everything about one of them.

Each reads one snapshot, so that what stands side by side was true at the same moment. A quota's or
usage's period that has ended is told so: the next one begins with the customer's next call.
"""

from __future__ import annotations

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
    node_directory,
    opened,
)
from finomw.cli.output import print_fields, print_json, print_table, utc
from finomw.money.account import Account, remaining_percent
from finomw.money.micros import to_usd
from finomw.store.quotas import QuotaRow, UsageRow
from finomw.types import CustomerId, Status, UnixMicroseconds

app = typer.Typer()

_LIST = (
    "CUSTOMER",
    "PLAN",
    "BALANCE USD",
    "HELD USD",
    "LEFT",
    "OWED USD",
    "STATUS",
    "NAME",
)


@app.command("list", epilog="Example: finomw customer list --json")
def list_all(
    config: ConfigOption = CONFIG_DEFAULT, data: DataOption = None, as_json: JsonOption = False
) -> None:
    """List all customers, what they have left and owe."""
    with opened(node_directory(config, data)) as engine, engine.store.read() as txn:
        rows = list(engine.store.accounts.items(txn))
    if as_json:
        print_json({"customers": [documents.of_account(who, account) for who, account in rows]})
        return
    print_table(
        _LIST,
        [
            (
                who,
                account.plan or "-",
                to_usd(account.balance),
                to_usd(account.held),
                f"{remaining_percent(account)} %",
                to_usd(account.credit_used - account.credit_held),
                _status(account),
                account.name,
            )
            for who, account in rows
        ],
        right=("BALANCE USD", "HELD USD", "LEFT", "OWED USD"),
    )


@app.command("show", epilog="Example: finomw customer show alice")
def show(
    customer: CustomerArgument,
    config: ConfigOption = CONFIG_DEFAULT,
    data: DataOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show a customer's account, quotas, usage so far, and keys."""
    who = customer_id(customer)
    with opened(node_directory(config, data)) as engine, engine.store.read() as txn:
        account = engine.store.accounts.need(txn, who)
        keys = keys_of(engine, txn, who)
        quotas = list(engine.store.quotas.of(txn, who))
        usage = engine.store.quotas.usage(txn, who)
        now = engine.clock.now()
    if as_json:
        print_json(
            documents.of_account(who, account)
            | {
                "quotas": [documents.of_quota(*quota) for quota in quotas],
                "usage": None if usage is None else documents.of_usage(usage),
                "keys": [documents.of_key(*key) for key in keys],
            }
        )
        return
    print_fields(_fields(who, account))
    if quotas:
        typer.echo()
        _print_quotas(quotas, now)
    if usage is not None and (usage.used or usage.held):
        typer.echo()
        _print_usage(usage, now)
    typer.echo()
    print_keys(keys)


def _status(account: Account) -> str:
    """Return the one word that says whether new calls are refused, and why."""
    if account.status is Status.ACTIVE and account.blocked_at is not None:
        return "blocked"
    return documents.STATUS_NAMES[account.status]


def _fields(who: CustomerId, account: Account) -> list[tuple[str, str]]:
    blocked = account.blocked_at
    status = documents.STATUS_NAMES[account.status]
    if blocked is not None:
        status = f"{_status(account)}{'' if status == 'active' else ', blocked'}"
        status += f" since {utc(blocked)} UTC"
    buffer = "as configured" if account.buffer is None else f"{to_usd(account.buffer)} USD"
    plan = f"{account.plan} since {utc(account.anchor)} UTC" if account.plan else "-"
    return [
        ("customer", who),
        ("name", account.name or "-"),
        ("plan", plan),
        ("time zone", account.zone),
        ("created", f"{utc(account.created)} UTC"),
        ("status", status),
        ("balance", f"{to_usd(account.balance)} USD"),
        ("held", f"{to_usd(account.held)} USD"),
        ("open holds", str(account.open_holds)),
        ("left", f"{remaining_percent(account)} % of the balance after the last grant"),
        ("credited", f"{to_usd(account.credited_total)} USD in total"),
        ("spent", f"{to_usd(account.spent_total)} USD in total"),
        ("credit", credit(account)),
        ("buffer", buffer),
    ]


def credit(account: Account) -> str:
    """Return what is used of the credit limit, for people."""
    held = f", {to_usd(account.credit_held)} of them held" if account.credit_held else ""
    return f"{to_usd(account.credit_used)} of {to_usd(account.credit_limit)} USD used{held}"


def _print_quotas(quotas: list[tuple[str, QuotaRow]], now: UnixMicroseconds) -> None:
    print_table(
        ("QUOTA", "LEFT", "OF", "HELD", "METERS", "PERIOD UTC"),
        [
            (
                name,
                *(
                    f"{to_usd(units)} USD" if row.money else str(units)
                    for units in (row.left, row.units, row.held)
                ),
                "cost" if row.money else ", ".join(row.meters),
                _period(row.end, now),
            )
            for name, row in quotas
        ],
        right=("LEFT", "OF", "HELD"),
    )


def _print_usage(usage: UsageRow, now: UnixMicroseconds) -> None:
    print_table(
        ("METER", "USED", "HELD", "PERIOD UTC"),
        [
            (
                meter,
                str(usage.used.get(meter, 0)),
                str(usage.held.get(meter, 0)),
                _period(usage.end, now),
            )
            for meter in sorted({*usage.used, *usage.held})
        ],
        right=("USED", "HELD"),
    )


def _period(end: UnixMicroseconds | None, now: UnixMicroseconds) -> str:
    """Say until when a period goes, or went."""
    if end is None:
        return "once"
    if end <= now:
        return f"ended {utc(end)}; begins anew with the next call"
    return f"until {utc(end)}"
