"""All verbs in one list, and one way to end: a status, and for an error one line.

Exit status 0 is success. 2 says that the command was refused or could not be carried out, with
exactly one line ``error: …`` on stderr and nothing changed. 1 is the answer "no" of a command that
asks a question (``verify`` found faults, ``reconcile`` differences). What finomw raises on purpose
and what the operating system refuses are told this way; anything else is a bug and keeps its
traceback.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from io import TextIOWrapper
from typing import Annotated, Final

import typer

from finomw import __version__
from finomw.cli import (
    backup,
    balance,
    check,
    customer,
    demo,
    grant,
    holds,
    init,
    invoice,
    key,
    ledger,
    meter,
    paid,
    presets,
    price,
    reconcile,
    recover,
    refund,
    simulate,
    subscription,
    verify,
)
from finomw.cli.output import one_line
from finomw.errors import FinomwError

_VERBS: Final = (
    init,
    check,
    presets,
    meter,
    price,
    customer,
    key,
    subscription,
    grant,
    refund,
    paid,
    balance,
    ledger,
    holds,
    invoice,
    simulate,
    verify,
    reconcile,
    backup,
    recover,
    demo,
)
"""Every module with verbs, in the order of the help; each has its own ``app``."""

_FAILED: Final = 2

app = typer.Typer(add_completion=False, rich_markup_mode=None)


@app.callback(
    invoke_without_command=True,
    epilog="Start here: finomw init, then finomw customer add alice, then finomw key create alice.",
)
def _finomw(
    context: typer.Context,
    version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False,
) -> None:
    """Charge for API calls inside the API's own process: the owner's tools.

    All commands but recover, restore and upgrade work while the API is running.
    """
    if version:
        typer.echo(f"finomw {__version__}")
        raise typer.Exit
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())


for _verb in _VERBS:
    app.add_typer(_verb.app)

_command: Final = typer.main.get_command(app)


def run(arguments: Sequence[str]) -> int:
    """Carry out one command line, without the program's name; return the exit status."""
    _print_anything()
    try:
        status = _command.main(list(arguments), prog_name="finomw", standalone_mode=False)
        sys.stdout.flush()
    except typer.TyperException as error:
        return _fail(_usage(error))
    except BrokenPipeError:
        _discard_output()
        return 1  # the reader, such as head, has what it wanted
    except OSError as error:
        _discard_output()
        where = f"{error.filename}: " if error.filename else ""
        return _fail(f"{where}{error.strerror or error}")
    except FinomwError as error:
        return _fail(str(error))
    return int(status or 0)


def _fail(message: str) -> int:
    typer.echo(f"error: {one_line(message)}", err=True)
    return _FAILED


def _usage(error: typer.TyperException) -> str:
    """Return what was wrong with the arguments, and where to read how it is right."""
    context = getattr(error, "ctx", None)
    command = context.command_path if context else "finomw"
    return f"{error.format_message().rstrip('.')}; see `{command} --help`"


def _print_anything() -> None:
    """Let a terminal that lacks a character show its number, instead of failing half-way."""
    if isinstance(sys.stdout, TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")


def _discard_output() -> None:
    """Forget what could not be written, or Python would try again, and complain, at its end."""
    try:
        sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
