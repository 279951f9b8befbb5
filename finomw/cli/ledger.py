"""``finomw ledger``: where a customer's money came from and went, the newest first.

Each line shows what its entry left in its fund: the balance of the wallet, or minus what is owed on
the credit. The lines were read in one snapshot, so they always add up.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from typing import Annotated, Final

import typer

from finomw.cli import documents
from finomw.cli.options import (
    CONFIG_DEFAULT,
    ConfigOption,
    CsvOption,
    CustomerArgument,
    DataOption,
    JsonOption,
    customer_id,
    node_directory,
    one_format,
    one_of,
    opened,
)
from finomw.cli.output import print_csv, print_json, print_table, utc, utc_exact
from finomw.cli.times import SINCE_HELP, TIME_HELP, moment, since
from finomw.engine import ledger as ledgers
from finomw.engine.ledger import Line
from finomw.money.entries import FUND_NAMES, KIND_NAMES
from finomw.money.micros import to_usd
from finomw.types import EntryKind

app = typer.Typer()

_COLUMNS: Final = (
    "TIME UTC",
    "KIND",
    "FUND",
    "AMOUNT USD",
    "LEFT USD",
    "SOURCE",
    "ROUTE",
    "COUNTS",
    "USAGE",
    "NOTE",
)
_CSV: Final = (
    "at",
    "kind",
    "fund",
    "amount_micros",
    "left_micros",
    "source",
    "source_id",
    "route",
    "choice",
    "counts",
    "usage",
    "price_version",
    "overrun_micros",
    "quota",
    "note",
    "record",
)
_KINDS: Final = {name: kind for kind, name in KIND_NAMES.items()}


@app.command(epilog="Example: finomw ledger alice --since 30d --kind grant --kind refund")
def ledger(
    customer: CustomerArgument,
    since_text: Annotated[
        str | None, typer.Option("--since", metavar="TIME", help=f"Not before: {SINCE_HELP}")
    ] = None,
    until_text: Annotated[
        str | None, typer.Option("--until", metavar="TIME", help=f"Only before: {TIME_HELP}")
    ] = None,
    kinds: Annotated[
        list[str] | None,
        typer.Option(
            "--kind", metavar="KIND", help=f"Only these, given once for each: {', '.join(_KINDS)}."
        ),
    ] = None,
    source: Annotated[
        str | None, typer.Option("--source", metavar="SOURCE", help="Only entries of this source.")
    ] = None,
    limit: Annotated[
        int,
        typer.Option("--limit", metavar="N", min=0, help="How many entries at most; 0 for all."),
    ] = 20,
    config: ConfigOption = CONFIG_DEFAULT,
    data: DataOption = None,
    as_json: JsonOption = False,
    as_csv: CsvOption = False,
) -> None:
    """Print a customer's last ledger entries, the newest first.

    LEFT is what an entry left in its fund. The columns of the CSV are at, kind, fund,
    amount_micros, left_micros, source, source_id, route, choice, counts (a JSON object), usage,
    price_version, overrun_micros, quota, note, record.
    """
    one_format(as_json, as_csv)
    who = customer_id(customer)
    wanted = ledgers.Filter(
        None if since_text is None else since("--since", since_text),
        None if until_text is None else moment("--until", until_text),
        _kinds(kinds or ()),
        source or "",
    )
    with opened(node_directory(config, data)) as engine:
        lines = ledgers.ledger(engine, who, limit or sys.maxsize, wanted)
    if as_json:
        print_json({"customer": who, "entries": [documents.of_line(line) for line in lines]})
    elif as_csv:
        print_csv(_CSV, map(_row, lines))
    else:
        print_table(_COLUMNS, [_cells(line) for line in lines], right=("AMOUNT USD", "LEFT USD"))


def _kinds(names: Sequence[str]) -> frozenset[EntryKind]:
    return frozenset(_KINDS[one_of("--kind", "no entry is a", name, _KINDS)] for name in names)


def _cells(line: Line) -> tuple[str, ...]:
    entry, call = line.entry, line.entry.call
    money = (
        utc(entry.at),
        KIND_NAMES[entry.kind],
        FUND_NAMES[entry.fund],
        to_usd(entry.amount),
        to_usd(line.left),
        f"{entry.source}/{entry.source_id}",
    )
    if call is None:
        return (*money, "", "", "", entry.note)
    counts = " ".join(f"{meter}={count}" for meter, count in call.counts.items())
    route = f"{call.route}:{call.choice}" if call.choice else call.route
    return (*money, route, counts, documents.USAGE_NAMES[call.usage], entry.note)


def _row(line: Line) -> tuple[str | int | None, ...]:
    entry, call = line.entry, line.entry.call
    detail: tuple[str | int | None, ...] = (None,) * 7
    if call is not None:
        detail = (
            call.route,
            call.choice,
            json.dumps(call.counts),
            documents.USAGE_NAMES[call.usage],
            call.price_version,
            call.overrun,
            call.quota,
        )
    return (
        utc_exact(entry.at),
        KIND_NAMES[entry.kind],
        FUND_NAMES[entry.fund],
        entry.amount,
        line.left,
        entry.source,
        entry.source_id,
        *detail,
        entry.note,
        line.number,
    )
