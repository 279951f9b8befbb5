"""``finomw holds``: what is set aside for calls in flight, and what became of it.

Open holds come first, the oldest on top: one that is old belongs to a long answer, to a job, or to
a worker that died and waits to be swept.
"""

from __future__ import annotations

import heapq
import sys
from collections.abc import Iterator
from typing import Annotated, Final

import typer

from finomw.cli import documents
from finomw.cli.options import (
    CONFIG_DEFAULT,
    ConfigOption,
    DataOption,
    JsonOption,
    customer_id,
    node_directory,
    opened,
)
from finomw.cli.output import duration, print_json, print_table, utc
from finomw.engine.engine import Engine
from finomw.money.micros import to_usd
from finomw.store.env import Txn
from finomw.store.holds import HoldRow, NamedHold
from finomw.types import CustomerId, HoldState, UnixMicroseconds

app = typer.Typer()

_COLUMNS: Final = (
    "HOLD",
    "CUSTOMER",
    "ROUTE",
    "AMOUNT USD",
    "PARTS",
    "SINCE UTC",
    "AGE",
    "STATE",
    "EXPIRES UTC",
    "RESOURCE",
    "CHARGED USD",
)


@app.command(epilog="Example: finomw holds alice --ended --limit 50")
def holds(
    customer: Annotated[
        str | None,
        typer.Argument(metavar="CUSTOMER", help="Only this customer's.", show_default=False),
    ] = None,
    with_ended: Annotated[
        bool, typer.Option("--ended", help="Also those that have ended, the last ones first.")
    ] = False,
    limit: Annotated[
        int, typer.Option("--limit", metavar="N", min=0, help="How many at most; 0 for all.")
    ] = 20,
    config: ConfigOption = CONFIG_DEFAULT,
    data: DataOption = None,
    as_json: JsonOption = False,
) -> None:
    """Print open holds, the oldest first.

    AGE is how long a hold has been open, or was. A state of started says that a part of the
    answer may have reached the client. Of a stream that is settled in steps AMOUNT and PARTS are
    what is left, and CHARGED is what was settled so far.
    """
    who = None if customer is None else customer_id(customer)
    with opened(node_directory(config, data)) as engine, engine.store.read() as txn:
        if who is not None:
            engine.store.accounts.need(txn, who)
        found = _find(engine, txn, who, with_ended, limit or sys.maxsize)
        now = engine.clock.now()
    if as_json:
        print_json({"holds": [documents.of_hold(named, now) for named in found]})
    else:
        rows = [_cells(named, now) for named in found]
        print_table(_COLUMNS, rows, right=("AMOUNT USD", "AGE", "CHARGED USD"))


def _find(
    engine: Engine, txn: Txn, customer: CustomerId | None, with_ended: bool, limit: int
) -> list[NamedHold]:
    def wanted(holds: Iterator[NamedHold]) -> Iterator[NamedHold]:
        return (named for named in holds if customer is None or named.row.customer == customer)

    found = heapq.nsmallest(
        limit, wanted(engine.store.holds.items(txn)), key=lambda named: named.row.since
    )
    if with_ended:
        found += heapq.nlargest(
            limit - len(found),
            wanted(engine.store.holds.ended(txn)),
            key=lambda named: named.row.ended or 0,
        )
    return found


def _cells(named: NamedHold, now: UnixMicroseconds) -> tuple[str, ...]:
    row = named.row
    started = row.state is HoldState.OPEN and row.started
    return (
        named.hold,
        row.customer,
        f"{row.route}:{row.choice}" if row.choice else row.route,
        to_usd(row.amount),
        _parts(row),
        utc(row.since),
        duration(documents.age(row, now)),
        "started" if started else documents.STATE_NAMES[row.state],
        utc(row.expires),
        row.resource,
        "" if row.settled is None else to_usd(row.settled),
    )


def _parts(row: HoldRow) -> str:
    """Return where a hold takes from: ``quota free 100, wallet 0.50``."""
    parts = [
        f"quota {part.quota} {f'{to_usd(part.amount)} USD' if part.money else part.amount}"
        for part in row.parts.quotas
    ]
    funds = (("wallet", row.parts.wallet), ("credit", row.parts.credit))
    parts += [f"{fund} {to_usd(amount)}" for fund, amount in funds if amount]
    return ", ".join(parts)
