"""How the demo looks: a live table on a terminal, a line for each event elsewhere, or JSON.

On a terminal the live table holds the events that fit; when all is over the whole of it is printed
once, to stay. Amounts are shown to the last micro-dollar.
"""

from __future__ import annotations

import statistics
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final, Literal, NamedTuple

import typer
from rich.console import Console
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from finomw.cli.demo.node import Node
from finomw.cli.demo.story import Call, Event, Outcome
from finomw.cli.documents import Document
from finomw.money.micros import to_usd
from finomw.types import EntryKind, Micros

_AROUND_TABLE: Final = 8
"""Lines of a terminal that are not rows of the table."""
_BAR_WIDTH: Final = 12
_LOW_PERCENT: Final = 20
_COLUMNS: Final = ("call", "status", "tokens", "price USD", "left", "overhead")
_WIDTHS: Final = (24, 13, 14, 9, 6, 10)


class _Row(NamedTuple):
    """An event as texts, and how it is coloured."""

    cells: tuple[str, ...]
    style: str
    percent_left: int


def introduce(node: Node) -> None:
    """Say what is about to happen."""
    typer.echo(
        f"An LLM gateway behind finomw, on {node.server.url}; only the language model is pretended."
    )
    typer.echo(f"Its node directory lies in {node.config.parent} until the end.\n")


@contextmanager
def watching() -> Iterator[Callable[[list[Event]], None]]:
    """Show events as they come: give what is yielded all of them, each time."""
    console = Console()
    if not sys.stdout.isatty() or console.is_dumb_terminal:
        typer.echo(_line(_COLUMNS))
        yield lambda events: typer.echo(_line(_row(events[-1]).cells))
        return
    shown: list[Event] = []
    with Live(console=console, transient=True, auto_refresh=False) as live:

        def show(events: list[Event]) -> None:
            shown[:] = events
            fitting = max(1, console.height - _AROUND_TABLE)
            live.update(_table(events[-fitting:]), refresh=True)

        yield show
    console.print(_table(shown))


def conclude(outcome: Outcome) -> None:
    """Print what was proved, what finomw cost, and whether the demo succeeded."""
    console = Console(highlight=False, soft_wrap=True)
    console.print()
    for check in outcome.checks:
        mark = Text("✓ ", "green") if check.holds else Text("✗ ", "bold red")
        failure = Text("" if check.holds else f": {check.detail}", "red")
        console.print(Text.assemble(mark, check.claim, failure))
    charged = [call.seen.overhead_ns for call in _calls(outcome) if call.charged]
    if charged:
        median, most = statistics.median_low(charged), max(charged)
        console.print(
            f"\nOverhead of a charged call: {_microseconds(median)} in the median, "
            f"{_microseconds(most)} at most."
            "\nIt is the time through the middleware minus the time in the app, with all waiting"
            f"\nfor the disk. One flush of this disk alone takes {_microseconds(outcome.flush_ns)}."
        )
    if not outcome.succeeded:
        console.print(Text("\nThe demo failed.", "bold red"))


def document(outcome: Outcome) -> Document:
    """Return the whole run as one document; the fields are named as everywhere in the CLI."""
    return {
        "ok": outcome.succeeded,
        "events": [_document(event) for event in outcome.events],
        "balance_micros": outcome.account.balance,
        "granted_micros": _sum(outcome, EntryKind.GRANT),
        "charged_micros": -_sum(outcome, EntryKind.SETTLEMENT),
        "entries": len(outcome.entries),
        "records": outcome.verified.records,
        "open_holds": outcome.verified.open_holds,
        "faults": list(outcome.verified.faults),
        "flush_ns": outcome.flush_ns,
        "checks": [
            {"claim": check.claim, "holds": check.holds, "detail": check.detail}
            for check in outcome.checks
        ],
    }


def _document(event: Event) -> Document:
    if not isinstance(event, Call):
        return {
            "kind": "grant",
            "amount_micros": event.amount,
            "remaining_percent": event.percent_left,
        }
    return {
        "kind": "call",
        "call": event.ask.name,
        "status": event.seen.status,
        "reason": event.seen.reason or None,
        "counts": event.seen.counts,
        "price_micros": event.seen.price,
        "charged_micros": event.charged,
        "remaining_percent": event.percent_left,
        "overhead_ns": event.seen.overhead_ns,
    }


def _table(events: list[Event]) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="bold")
    for column in _COLUMNS:
        table.add_column(column, justify=_justify(column), no_wrap=True)
    table.add_column("")
    for row in map(_row, events):
        bar = ProgressBar(
            completed=row.percent_left,
            width=_BAR_WIDTH,
            complete_style="green" if row.percent_left > _LOW_PERCENT else "red",
            finished_style="green",
        )
        table.add_row(*map(Text, row.cells), bar, style=row.style)
    return table


def _line(cells: tuple[str, ...]) -> str:
    """Return cells under each other's columns, as plain text."""
    padded = []
    for cell, width, column in zip(cells, _WIDTHS, _COLUMNS, strict=True):
        padded.append(cell.rjust(width) if _justify(column) == "right" else cell.ljust(width))
    return "  ".join(padded).rstrip()


def _row(event: Event) -> _Row:
    left = f"{event.percent_left} %"
    if not isinstance(event, Call):
        return _Row((f"grant of {to_usd(event.amount)} USD", "", "", "", left, ""), "green", 100)
    seen = event.seen
    style = "bold red" if seen.status != 200 else "" if event.charged else "dim"
    tokens = " → ".join(
        str(count) for meter, count in seen.counts.items() if meter.endswith("_tokens")
    )
    price = _to_the_micro(event.charged) if event.charged else ""
    cells = (event.ask.name, f"{seen.status} {seen.reason}".rstrip(), tokens, price, left)
    return _Row((*cells, _microseconds(seen.overhead_ns)), style, event.percent_left)


def _calls(outcome: Outcome) -> list[Call]:
    return [event for event in outcome.events if isinstance(event, Call)]


def _sum(outcome: Outcome, kind: EntryKind) -> Micros:
    return sum(entry.amount for entry in outcome.entries if entry.kind is kind)


def _to_the_micro(micros: Micros) -> str:
    """Return dollars with all decimals that a micro-dollar needs, so that columns align."""
    whole, _, decimals = to_usd(micros).partition(".")
    return f"{whole}.{decimals:0<6}"


def _microseconds(nanoseconds: int) -> str:
    return f"{nanoseconds // 1000:,} µs"


def _justify(column: str) -> Literal["left", "right"]:
    return "right" if column in ("price USD", "left", "overhead") else "left"
