"""How the command line prints: tables for people, one JSON document for programs.

On a terminal a table is fitted to its width, folding long cells; nothing is ever cut off. Anywhere
else each row is one line of plain text, however long, without a single control code: what a pipe
reads does not depend on who watches. Texts from outside are never markup.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from typing import Final

import typer
from rich.cells import cell_len
from rich.console import Console
from rich.table import Table
from rich.text import Text

from finomw.clock import rfc3339
from finomw.types import UnixMicroseconds

_GAP: Final = "  "


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


def print_fields(fields: Sequence[tuple[str, str]]) -> None:
    """Print names and values, a pair on each line."""
    _print_lines(fields, [False, False])


def utc(at: UnixMicroseconds | None) -> str:
    """Return a time to the second, for people; a dash for none."""
    return "-" if at is None else rfc3339(at)[:19].replace("T", " ")


def utc_exact(at: UnixMicroseconds | None) -> str | None:
    """Return a time for a JSON document: RFC 3339, to the microsecond."""
    return None if at is None else rfc3339(at)


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
