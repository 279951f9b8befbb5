"""``finomw simulate``: what past usage would have cost under another plan.

Reads the ledger and a plan, and changes nothing. The plan may stand in the node's own YAML, or in a
copy of it with other prices.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Final

import typer
from rich.console import Console
from rich.progress import Progress

from finomw.cli.options import (
    CONFIG_DEFAULT,
    ConfigOption,
    CsvOption,
    DataOption,
    JsonOption,
    node_directory,
    one_format,
    opened,
)
from finomw.cli.output import print_csv, print_json, print_table, utc_exact
from finomw.cli.plans import read_plan
from finomw.cli.times import SINCE_HELP, since
from finomw.engine import simulate as simulating
from finomw.engine.simulate import Simulated
from finomw.errors import InvalidValue
from finomw.money.micros import to_usd
from finomw.money.plans import PricePlan
from finomw.types import CustomerId

app = typer.Typer()

_COLUMNS: Final = ("CUSTOMER", "CALLS", "KEPT", "CHARGED USD", "SIMULATED USD", "CHANGE USD")
_CSV: Final = ("customer", "calls", "kept", "charged_micros", "simulated_micros", "change_micros")
_FILE_ENDINGS: Final = (".yaml", ".yml")


@app.command(epilog="Example: finomw simulate --plan ./cheaper.yaml --since 30d")
def simulate(
    plan: Annotated[
        str,
        typer.Option(
            "--plan",
            metavar="FILE-or-NAME",
            help="A plan of the YAML by its name, or another YAML file: a text that has a / or "
            "ends with .yaml or .yml.",
        ),
    ],
    since_text: Annotated[
        str, typer.Option("--since", metavar="TIME", help=f"From when on: {SINCE_HELP}")
    ],
    plan_name: Annotated[
        str | None,
        typer.Option(
            "--plan-name", metavar="PLAN", help="Which plan of the FILE. [default: default]"
        ),
    ] = None,
    config: ConfigOption = CONFIG_DEFAULT,
    data: DataOption = None,
    as_json: JsonOption = False,
    as_csv: CsvOption = False,
) -> None:
    """Price past usage under another plan, customer by customer.

    Quotas and tiers count from --since on. Calls that the plan has no price for, or whose usage
    is not known, are KEPT at what they were charged. The columns of the CSV are customer, calls,
    kept, charged_micros, simulated_micros, change_micros.
    """
    one_format(as_json, as_csv)
    start = since("--since", since_text)
    other = _plan(plan, plan_name, config, data)
    with opened(node_directory(config, data)) as engine, _progress() as progress:
        rows = simulating.simulate(engine, other, start, progress)
    total = _total(rows)
    if as_json:
        print_json(
            {
                "plan": other.name,
                "since": utc_exact(start),
                "customers": [{"customer": row.customer} | _document(row) for row in rows],
                "total": _document(total),
            }
        )
    elif as_csv:
        print_csv(_CSV, ((row.customer, *_document(row).values()) for row in rows))
    else:
        print_table(_COLUMNS, [_cells(row) for row in (*rows, total)], right=_COLUMNS[1:])


def _plan(plan: str, plan_name: str | None, config: Path, data: Path | None) -> PricePlan:
    """Return the plan that the options mean. Raises `ConfigError`, `InvalidValue`."""
    if "/" in plan or plan.endswith(_FILE_ENDINGS):
        return read_plan(Path(plan), "--plan-name", plan_name or "default")[1]
    if plan_name is not None:
        raise InvalidValue(f"--plan-name: {plan} is a plan's name and not a file, which has a /")
    if data is not None:
        raise InvalidValue("--plan: the YAML is not read with --data: name a file")
    return read_plan(config, "--plan", plan)[1]


def _total(rows: list[Simulated]) -> Simulated:
    return Simulated(
        CustomerId("total"),
        sum(row.calls for row in rows),
        sum(row.kept for row in rows),
        sum(row.charged for row in rows),
        sum(row.simulated for row in rows),
    )


def _document(row: Simulated) -> dict[str, int]:
    return {
        "calls": row.calls,
        "kept": row.kept,
        "charged_micros": row.charged,
        "simulated_micros": row.simulated,
        "change_micros": row.simulated - row.charged,
    }


def _cells(row: Simulated) -> tuple[str, ...]:
    amounts = (row.charged, row.simulated, row.simulated - row.charged)
    return (row.customer, str(row.calls), str(row.kept), *map(to_usd, amounts))


@contextmanager
def _progress() -> Iterator[Callable[[int, int], None]]:
    """Show on a terminal how many customers are done, and nothing elsewhere."""
    if not sys.stderr.isatty():
        yield lambda _done, _of: None
        return
    with Progress(console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("customers")
        yield lambda done, of: bar.update(task, completed=done, total=of)
