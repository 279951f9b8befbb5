"""What grants, payments and refunds have in common: a name that makes them happen once.

The name is a source and an id. Given twice, with the same content, it is booked once: a payment's
id makes a script safe to run again. Without an id each run is a booking of its own.
"""

from __future__ import annotations

import secrets
from typing import Annotated, Final, TypeAlias

import typer

from finomw import limits
from finomw.engine.grants import Booked
from finomw.money.entries import check_name
from finomw.money.micros import to_usd

AMOUNT_SETTINGS: Final = {"ignore_unknown_options": True}
"""A negative amount is an amount that we refuse, not an unknown option."""

UsdArgument: TypeAlias = Annotated[
    str, typer.Argument(metavar="USD", help="Dollars such as 25.00, to six decimals.")
]
SourceOption: TypeAlias = Annotated[
    str, typer.Option("--source", metavar="SOURCE", help="Where this comes from.")
]
IdOption: TypeAlias = Annotated[
    str | None,
    typer.Option(
        "--id",
        metavar="ID",
        help="Names this within its source: given twice, it counts once. [default: a random one]",
    ),
]
NoteOption: TypeAlias = Annotated[
    str, typer.Option("--note", metavar="TEXT", help="Why, for people.")
]

SOURCE_DEFAULT: Final = "manual"


def id_within(source: str, source_id: str | None) -> str:
    """Return the id, or a random one; raises `InvalidValue` for what names nothing."""
    named = secrets.token_hex(8) if source_id is None else source_id
    check_name("--source", source, limits.SOURCE_BYTES)
    check_name("--id", named, limits.SOURCE_ID_BYTES)
    return named


def told(done: str, source: str, source_id: str, booked: Booked) -> str:
    """Return one line for people: what was done, under which name, and what that left."""
    if booked.repeated:
        done = "booked before, nothing changed"
    account = booked.account
    left = f"the balance is {to_usd(account.balance)} USD"
    if account.credit_limit or account.credit_used:
        left += f", {to_usd(account.credit_used)} USD of credit are used"
    return f"{done}: {source}/{source_id}; {left}"
