"""``finomw backup``, ``restore``, ``checkpoint`` and ``upgrade``: copies of a node, and its format.

Backups and checkpoints are made while the API runs. A restored node is a new incarnation: what was
charged after the backup is gone from it, and no id of that time is given again.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

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
from finomw.clock import SystemClock
from finomw.engine import backup as backups
from finomw.engine import upgrade as upgrades
from finomw.engine.checkpoint import make_checkpoint

app = typer.Typer()


@app.command(epilog="Example: finomw backup /backups/fino-2027-01-31")
def backup(
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="A new or empty directory.")],
    config: ConfigOption = CONFIG_DEFAULT,
    data: DataOption = None,
    as_json: JsonOption = False,
) -> None:
    """Copy the node to a new directory, while the API runs.

    The copy is on disk, whole and checked when the command ends. Everything that was answered
    before it began is in it.
    """
    with opened(node_directory(config, data)) as engine:
        done = backups.back_up(engine, directory)
    if as_json:
        print_json(
            {
                "directory": str(directory),
                "end_lsn": done.end,
                "records": done.records,
                "state_bytes": done.size,
            }
        )
    else:
        typer.echo(
            f"backed up {done.records} journal records, up to LSN {done.end}, "
            f"to {one_line(str(directory))}"
        )


@app.command(epilog="Example: finomw restore /backups/fino-2027-01-31")
def restore(
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="What finomw backup made.")],
    config: ConfigOption = CONFIG_DEFAULT,
    data: DataOption = None,
    as_json: JsonOption = False,
) -> None:
    """Make the node directory out of a backup.

    The node directory must be free: move a damaged one aside first. The backup stays as it is.
    """
    target = node_directory(config, data)
    done = backups.restore(directory, target, SystemClock())
    if as_json:
        print_json(
            {
                "directory": str(target),
                "end_lsn": done.end,
                "records": done.records,
                "incarnation": done.incarnation,
            }
        )
    else:
        typer.echo(
            f"restored {done.records} journal records, up to LSN {done.end}, "
            f"to {one_line(str(target))}"
        )


@app.command(epilog="Example: finomw checkpoint")
def checkpoint(
    config: ConfigOption = CONFIG_DEFAULT, data: DataOption = None, as_json: JsonOption = False
) -> None:
    """Make a checkpoint now.

    A start replays only what came after it. The API makes checkpoints by itself; this one is for
    before the machine is stopped, say.
    """
    with opened(node_directory(config, data)) as engine:
        made = make_checkpoint(engine)
    if as_json:
        print_json({"path": str(made.path), "end_lsn": made.tail.end, "state_bytes": made.size})
    else:
        typer.echo(f"made {one_line(str(made.path))}: the state up to LSN {made.tail.end}")


@app.command(epilog="Example: finomw upgrade")
def upgrade(
    config: ConfigOption = CONFIG_DEFAULT, data: DataOption = None, as_json: JsonOption = False
) -> None:
    """Bring the node directory to this version's format.

    A copy of it is made first, beside it. Every process that uses the directory has to be stopped
    before.
    """
    directory = node_directory(config, data)
    done = upgrades.upgrade(directory)
    if as_json:
        copy = None if done.copy is None else str(done.copy)
        print_json({"before": done.before, "after": done.after, "copy": copy})
    elif done.copy is None:
        typer.echo(f"{one_line(str(directory))} has format {done.after}, the newest")
    else:
        typer.echo(
            f"{one_line(str(directory))} has format {done.after} now; as it was, in format "
            f"{done.before}, it lies in {one_line(str(done.copy))}"
        )
