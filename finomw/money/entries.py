"""The facts of the ledger: one entry, and which sign its kind may have.

An entry is never changed and never removed. Its kind fixes its sign, so that a mistake in a
caller cannot turn a charge into a gift; the sign is checked where the entry is made, before
anything is written. `(customer, source, source_id)` names an entry for ever: the same name with
the same content is the same entry, with other content it is an error.
"""

from __future__ import annotations

import msgspec

from finomw import limits
from finomw.errors import InvalidValue, InvariantBroken
from finomw.types import (
    Counts,
    EntryKind,
    Fund,
    Micros,
    RouteName,
    UnixMicroseconds,
    UsageStatus,
)

CALL_SOURCE = "call"
"""Source of the entries that calls make; their source ids are unique by construction."""
CLOSING_SOURCE = "closing"
EXPIRY_SOURCE = "expiry"
RECONCILE_SOURCE = "reconcile"

RESERVED_SOURCES = frozenset({CALL_SOURCE, CLOSING_SOURCE, EXPIRY_SOURCE, RECONCILE_SOURCE})
"""Sources of the entries that finomw makes itself."""

_SUM_SOURCES = frozenset({CLOSING_SOURCE, RECONCILE_SOURCE})
"""Whose amounts are what a whole account comes to, and so may be as large as a sum."""

KIND_NAMES = {kind: kind.name.lower() for kind in EntryKind}
FUND_NAMES = {fund: fund.name.lower() for fund in Fund}


class CallDetail(msgspec.Struct, frozen=True, array_like=True):
    """What a settlement charged for.

    ``choice`` is the value that selected the price list, empty without one; ``overrun`` is how
    many micros were charged above the hold; ``quota`` how many units, and micros of quotas of
    money, were covered by quotas.
    """

    route: RouteName
    counts: Counts
    usage: UsageStatus
    price_version: str
    choice: str = ""
    overrun: Micros = 0
    quota: int = 0


class Entry(msgspec.Struct, frozen=True, array_like=True):
    """One line of a customer's ledger, as it is stored.

    ``amount`` is in micros and signed: what it adds to the fund. ``note`` says why, to people.
    """

    kind: EntryKind
    fund: Fund
    amount: Micros
    source: str
    source_id: str
    at: UnixMicroseconds
    note: str = ""
    call: CallDetail | None = None


def check_entry(entry: Entry) -> None:
    """Raise unless the entry has the sign of its kind, a name, and an amount within bounds."""
    kind, amount = entry.kind, entry.amount
    if kind == EntryKind.GRANT or kind == EntryKind.HOLD_RELEASE:
        right = amount > 0
    elif kind == EntryKind.SETTLEMENT:
        right = amount <= 0
    elif kind in (EntryKind.HOLD, EntryKind.REFUND):
        right = amount < 0
    else:
        right = amount != 0 and bool(entry.note)
    if not right:
        raise InvariantBroken(f"a {KIND_NAMES[kind]} entry cannot have the amount {amount}")
    most = limits.MICROS_MAX if entry.source in _SUM_SOURCES else limits.AMOUNT_MAX
    if abs(amount) > most:
        raise InvalidValue(f"amount: {amount} micros is beyond {most}")
    check_name("source", entry.source, limits.SOURCE_BYTES)
    check_name("source_id", entry.source_id, limits.SOURCE_ID_BYTES)


def check_amount(field: str, amount: Micros, *, least: Micros = 0) -> None:
    """Raise `InvalidValue` unless an amount in micros is an integer from ``least`` to the largest.

    Amounts go to the journal as they are, so one that is no integer must not get that far.
    """
    if type(amount) is not int or not least <= amount <= limits.AMOUNT_MAX:
        raise InvalidValue(
            f"{field}: {amount} micros is not a whole number from {least} to {limits.AMOUNT_MAX}"
        )


def check_name(field: str, value: str, bytes_max: int) -> None:
    """Raise `InvalidValue` unless the value can name something.

    A name is 1 to ``bytes_max`` bytes of UTF-8 without control characters: it becomes a part of
    keys that are joined with NUL, of file lines and of terminal output.
    """
    if not value:
        raise InvalidValue(f"{field}: must not be empty")
    if not value.isprintable():
        raise InvalidValue(f"{field}: must consist of printable characters")
    if len(value) > bytes_max or len(value.encode("utf-8", "surrogatepass")) > bytes_max:
        raise InvalidValue(f"{field}: longer than {bytes_max} bytes")
