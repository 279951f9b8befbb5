"""``finomw verify``: prove that the books add up, while the API runs.

Exit status 0 says that they do; 1 that they do not, and every fault is printed; 2 that they could
not be read.
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
from finomw.engine.verify import verify as check

app = typer.Typer()


@app.command(epilog="Example: finomw verify && echo the books add up")
def verify(
    config: ConfigOption = CONFIG_DEFAULT, data: DataOption = None, as_json: JsonOption = False
) -> None:
    """Prove that balances, ledgers and journal agree.

    Reads everything and changes nothing, also while the API runs. The exit status is 1 when there
    are faults.
    """
    with opened(node_directory(config, data)) as engine:
        found = check(engine)
    if as_json:
        print_json(
            {
                "records": found.records,
                "end_lsn": found.end,
                "customers": found.customers,
                "entries": found.entries,
                "open_holds": found.open_holds,
                "faults": list(found.faults),
            }
        )
    else:
        for fault in found.faults:
            typer.echo(one_line(fault))
        typer.echo(
            f"{len(found.faults) or 'no'} faults in {found.customers} customers, "
            f"{found.entries} ledger entries, {found.open_holds} open holds and "
            f"{found.records} journal records"
        )
    if found.faults:
        raise typer.Exit(1)
