"""``finomw recover``: what a start would do, a start that believes only the disk, or a way out.

Exit status 0 says that a start succeeds or did; 1 is the dry run's answer that it would be refused;
2 that the command could not be carried out, and nothing was changed.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import msgspec
import typer

from finomw.cli.options import (
    CONFIG_DEFAULT,
    ConfigOption,
    DataOption,
    JsonOption,
    node_directory,
)
from finomw.cli.output import one_line, print_fields, print_json
from finomw.clock import SystemClock
from finomw.engine import loss
from finomw.engine.analysis import Analysis
from finomw.engine.loss import Assessment, Lost
from finomw.errors import InvalidValue

app = typer.Typer()


@app.command(epilog="Example: finomw recover --dry-run")
def recover(
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Say what a start would do; change nothing.")
    ] = False,
    accept_loss_after: Annotated[
        int | None,
        typer.Option(
            "--accept-loss-after",
            metavar="LSN",
            min=0,
            help="Give up what follows this LSN, the one that the dry run names.",
        ),
    ] = None,
    config: ConfigOption = CONFIG_DEFAULT,
    data: DataOption = None,
    as_json: JsonOption = False,
) -> None:
    """Rebuild the state from checkpoints and journal.

    A start does this by itself where it has to; here the state is not believed whatever it says.
    Where a start is refused because of damage, --accept-loss-after moves the damage aside, into
    the directory's folder lost, and lists the records that are lost. Every process that uses the
    directory has to be stopped first.
    """
    if dry_run and accept_loss_after is not None:
        raise InvalidValue("--accept-loss-after: not together with --dry-run")
    directory = node_directory(config, data)
    if accept_loss_after is not None:
        _accept(directory, accept_loss_after, as_json)
    elif dry_run:
        _show(loss.assess(directory), as_json)
    else:
        _rebuild(directory, as_json)


def _rebuild(directory: Path, as_json: bool) -> None:
    plan = loss.rebuild(directory)
    if as_json:
        print_json(_document(plan))
        return
    base = "no checkpoint" if plan.checkpoint is None else one_line(str(plan.checkpoint.path))
    typer.echo(
        f"rebuilt the state from {base} and {plan.records} journal records, up to LSN "
        f"{plan.tail.end}"
    )


def _accept(directory: Path, after: int, as_json: bool) -> None:
    found, aside = loss.accept_loss(directory, after, SystemClock())
    if as_json:
        print_json({**_loss_document(found), "aside": None if aside is None else str(aside)})
        return
    _print_lost(found, "are lost")
    where = "" if aside is None else f"; what followed lies in {one_line(str(aside))}"
    typer.echo(f"the journal ends at LSN {after} now{where}")


def _show(found: Assessment, as_json: bool) -> None:
    plan = found.plan
    if as_json:
        print_json({**_document(plan), **_loss_document(found)})
    else:
        print_fields(_fields(plan))
        if found.end is not None:
            _print_lost(found, "would be lost")
            typer.echo(f"to give that up: finomw recover --accept-loss-after {found.end}")
    if plan.error is not None:
        raise typer.Exit(1)


def _fields(plan: Analysis) -> list[tuple[str, str]]:
    if plan.error is not None:
        return [("a start would", plan.outcome.value), ("because", str(plan.error))]
    checkpoint = "none" if plan.checkpoint is None else str(plan.checkpoint.path)
    return [
        ("a start would", plan.outcome.value),
        ("because", plan.reason),
        *(("broken checkpoint", str(error)) for error in plan.broken),
        ("from checkpoint", checkpoint),
        ("records to replay", str(plan.records)),
        ("up to LSN", str(plan.tail.end)),
        ("on disk at least up to LSN", str(plan.durable)),
        ("behind it", plan.behind.value),
    ]


def _document(plan: Analysis) -> dict[str, object]:
    return {
        "outcome": plan.outcome.value,
        "reason": plan.reason,
        "checkpoint": None if plan.checkpoint is None else str(plan.checkpoint.path),
        "broken_checkpoints": [str(error) for error in plan.broken],
        "records": plan.records,
        "end_lsn": plan.tail.end,
        "durable_lsn": plan.durable,
        "behind": plan.behind.value,
    }


def _loss_document(found: Assessment) -> dict[str, object]:
    error = found.plan.error
    return {
        "error": None if error is None else str(error),
        "accept_loss_after": found.end,
        "lost": [msgspec.to_builtins(lost) for lost in found.lost],
    }


def _print_lost(found: Assessment, are_lost: str) -> None:
    for lost in found.lost:
        typer.echo(one_line(_told(lost)))
    records = sum(lost.command is not None for lost in found.lost)
    more = ", and what cannot be read" if records < len(found.lost) else ""
    typer.echo(f"{records or 'no'} records{more} {are_lost}")


def _told(lost: Lost) -> str:
    if lost.command is None:
        return f"LSN {lost.lsn} up to {lost.end}: cannot be read"
    fields = ", ".join(f"{name} {value}" for name, value in lost.fields.items())
    return f"LSN {lost.lsn}: {lost.command}: {fields}"
