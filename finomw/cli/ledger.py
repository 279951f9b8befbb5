"""``finomw ledger``: where a customer's money came from and went, the newest first.

Each line shows the balance right after its entry. That is worked out backwards from the account's
balance, read in the same snapshot as the entries, so the lines always add up.
"""

from __future__ import annotations

from itertools import islice
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
from finomw.cli.output import print_json, print_table, utc
from finomw.engine.engine import Engine
from finomw.money.entries import FUND_NAMES, KIND_NAMES
from finomw.money.micros import to_usd
from finomw.store.ledger import LedgerRow
from finomw.types import CustomerId, Fund, Micros

app = typer.Typer()

_COLUMNS = (
    "TIME UTC",
    "KIND",
    "FUND",
    "AMOUNT USD",
    "BALANCE USD",
    "SOURCE",
    "ROUTE",
    "COUNTS",
    "USAGE",
    "NOTE",
)


@app.command(epilog="Example: finomw ledger alice --limit 50")
def ledger(
    customer: CustomerArgument,
    limit: Annotated[
        int, typer.Option("--limit", metavar="N", min=1, help="How many entries at most.")
    ] = 20,
    config: ConfigOption = CONFIG_DEFAULT,
    data: DataOption = None,
    as_json: JsonOption = False,
) -> None:
    """Print a customer's last ledger entries, the newest first."""
    who = customer_id(customer)
    with opened(node_directory(config, data)) as engine:
        rows = _newest(engine, who, limit)
    if as_json:
        entries = [documents.of_entry(row, balance) for row, balance in rows]
        print_json({"customer": who, "entries": entries})
    else:
        cells = [_cells(row, balance) for row, balance in rows]
        print_table(_COLUMNS, cells, right=("AMOUNT USD", "BALANCE USD"))


def _newest(engine: Engine, customer: CustomerId, limit: int) -> list[tuple[LedgerRow, Micros]]:
    """Return the newest entries, each with the balance after it; raises `NotFound`."""
    found = []
    with engine.store.read() as txn:
        balance = engine.store.accounts.need(txn, customer).balance
        for row in islice(engine.store.ledger.newest_first(txn, customer), limit):
            found.append((row, balance))
            if row.entry.fund is Fund.WALLET:
                balance -= row.entry.amount
    return found


def _cells(row: LedgerRow, balance: Micros) -> tuple[str, ...]:
    entry, call = row.entry, row.entry.call
    money = (
        utc(entry.at),
        KIND_NAMES[entry.kind],
        FUND_NAMES[entry.fund],
        to_usd(entry.amount),
        to_usd(balance),
        f"{entry.source}/{entry.source_id}",
    )
    if call is None:
        return (*money, "", "", "", entry.note)
    counts = " ".join(f"{meter}={count}" for meter, count in call.counts.items())
    route = f"{call.route}:{call.choice}" if call.choice else call.route
    return (*money, route, counts, documents.USAGE_NAMES[call.usage], entry.note)
