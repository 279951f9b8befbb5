"""How the command line prints: tables for people, JSON or CSV for programs.

On a terminal a table is fitted to its width, folding long cells; nothing is ever cut off. Anywhere
else each row is one line of plain text, however long, without a single control code: what a pipe
reads does not depend on who watches. Texts from outside are never markup.
"""

from __future__ import annotations

import csv
import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from datetime import timedelta
from typing import Final

import typer
from rich.cells import cell_len
from rich.console import Console
from rich.table import Table
from rich.text import Text

from finomw.clock import rfc3339
from finomw.types import UnixMicroseconds

SECOND: Final = timedelta(seconds=1) // timedelta(microseconds=1)
"""Microseconds of a second."""

_GAP: Final = "  "
_FORMULAS: Final = ("=", "+", "-", "@")


def print_json(document: Mapping[str, object]) -> None:
    """Print one JSON document, the only thing on stdout."""
    typer.echo(json.dumps(document, indent=2))


def print_table(
    columns: Sequence[str], rows: Sequence[Sequence[str]], right: Sequence[str] = ()
) -> None:
    """Print rows under their columns' names; the columns in ``right`` hold numbers."""
    if not sys.stdout.isatty():
        _print_lines([columns, *rows], [column in right for column in columns])
        return
    table = Table(box=None, pad_edge=False, padding=(0, len(_GAP), 0, 0), header_style="bold")
    for column in columns:
        table.add_column(column, justify="right" if column in right else "left", overflow="fold")
    for row in rows:
        table.add_row(*(Text(one_line(cell)) for cell in row))
    Console().print(table)


def print_csv(columns: Sequence[str], rows: Iterable[Sequence[str | int | None]]) -> None:
    """Print rows as CSV under the names of their columns, a line each; `None` is an empty cell.

    A text that a spreadsheet would take for a formula gets a ``'`` in front: some of them are
    chosen by who calls the API.
    """
    writer = csv.writer(sys.stdout, lineterminator="\n")
    writer.writerow(columns)
    writer.writerows([_csv_cell(cell) for cell in row] for row in rows)


def _csv_cell(cell: str | int | None) -> str | int | None:
    if not isinstance(cell, str):
        return cell
    line = one_line(cell)
    return f"'{line}" if line.startswith(_FORMULAS) else line


def print_fields(fields: Sequence[tuple[str, str]]) -> None:
    """Print names and values, a pair on each line."""
    _print_lines(fields, [False, False])


def utc(at: UnixMicroseconds | None) -> str:
    """Return a time to the second, for people; a dash for none."""
    return "-" if at is None else rfc3339(at)[:19].replace("T", " ")


def utc_exact(at: UnixMicroseconds | None) -> str | None:
    """Return a time for a JSON document: RFC 3339, to the microsecond."""
    return None if at is None else rfc3339(at)


def duration(microseconds: int) -> str:
    """Return how long something took, for people: its two largest units, such as ``2h 5m``."""
    minutes, seconds = divmod(max(0, microseconds) // SECOND, 60)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    parts = [(days, "d"), (hours, "h"), (minutes, "m"), (seconds, "s")]
    first = next((index for index, (count, _) in enumerate(parts) if count), len(parts) - 1)
    return " ".join(f"{count}{unit}" for count, unit in parts[first : first + 2])


def one_line(text: str) -> str:
    """Return a message as one printable line: what would break or colour it is escaped."""
    return "".join(
        character if character.isprintable() else ascii(character)[1:-1] for character in text
    )


def _print_lines(rows: Sequence[Sequence[str]], right: Sequence[bool]) -> None:
    """Print rows as lines with the columns under each other."""
    rows = [[one_line(cell) for cell in row] for row in rows]
    widths = [max(map(cell_len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        cells = []
        for cell, width, to_right in zip(row, widths, right, strict=True):
            space = " " * (width - cell_len(cell))
            cells.append(space + cell if to_right else cell + space)
        typer.echo(_GAP.join(cells).rstrip())
