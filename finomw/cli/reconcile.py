"""``finomw reconcile``: explain every account that is not the sum of its ledger.

Exit status 0 says that there was nothing to explain; 1 that there was, and it is printed; 2 that
the books could not be read or written.
"""

from __future__ import annotations

import typer

from finomw.cli.options import (
    CONFIG_DEFAULT,
    ConfigOption,
    DataOption,
    JsonOption,
    node_directory,
    opened,
)
from finomw.cli.output import one_line, print_json
from finomw.engine import reconcile as reconciling
from finomw.engine.reconcile import Difference
from finomw.money.entries import FUND_NAMES
from finomw.money.micros import to_usd
from finomw.types import Fund

app = typer.Typer()


@app.command(epilog="Example: finomw reconcile")
def reconcile(
    config: ConfigOption = CONFIG_DEFAULT, data: DataOption = None, as_json: JsonOption = False
) -> None:
    """Explain accounts that differ from their ledgers.

    Each difference gets an adjustment, a ledger entry with a note; no balance is moved. Works
    while the API runs. The exit status is 1 when there was something to explain, or the journal
    has a fault.
    """
    with opened(node_directory(config, data)) as engine:
        done = reconciling.reconcile(engine)
    if as_json:
        print_json(
            {
                "customers": done.customers,
                "differences": [_document(difference) for difference in done.differences],
                "unexplained": [_document(difference) for difference in done.unexplained],
                "journal_faults": list(done.journal_faults),
            }
        )
    else:
        told = [f"{_told(found)}; an adjustment explains it" for found in done.differences]
        told += [f"{_told(found)}; no entry can explain that" for found in done.unexplained]
        for line in (*told, *done.journal_faults):
            typer.echo(one_line(line))
        typer.echo(
            f"{len(told) or 'no'} differences in {done.customers} customers, "
            f"{len(done.journal_faults) or 'no'} faults in the journal"
        )
    if done.differences or done.unexplained or done.journal_faults:
        raise typer.Exit(1)


def _document(difference: Difference) -> dict[str, object]:
    return {
        "customer": difference.customer,
        "fund": FUND_NAMES[difference.fund],
        "found_micros": difference.found,
        "summed_micros": difference.summed,
    }


def _told(difference: Difference) -> str:
    what = "balance" if difference.fund is Fund.WALLET else "used credit"
    return (
        f"{difference.customer}: the {what} is {to_usd(difference.found)} USD, its entries came to "
        f"{to_usd(difference.summed)} USD"
    )
