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

_ANY = 2**63
_SIGNS = {
    EntryKind.GRANT: (1, _ANY),
    EntryKind.HOLD: (-_ANY, -1),
    EntryKind.HOLD_RELEASE: (1, _ANY),
    EntryKind.SETTLEMENT: (-_ANY, 0),
    EntryKind.REFUND: (-_ANY, -1),
    EntryKind.ADJUSTMENT: (-_ANY, _ANY),
}
"""The least and the most that an entry of a kind may be: its sign."""

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


def hold_of(entry: Entry) -> str:
    """Return the id of the hold that a call's entry is about."""
    return entry.source_id.partition("/")[0]


def check_entry(entry: Entry) -> None:
    """Raise unless the entry has the sign of its kind, a name, and an amount within bounds."""
    kind, amount = entry.kind, entry.amount
    least, most = _SIGNS[kind]
    if not least <= amount <= most or (
        kind is EntryKind.ADJUSTMENT and not (amount and entry.note)
    ):
        raise InvariantBroken(f"a {KIND_NAMES[kind]} entry cannot have the amount {amount}")
    if entry.source == CALL_SOURCE:
        return  # amounts and names of calls are made of what was checked before
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
    if not isinstance(value, str):
        raise InvalidValue(f"{field}: must be a text, not {value!r}")
    if not value:
        raise InvalidValue(f"{field}: must not be empty")
    if not value.isprintable():
        raise InvalidValue(f"{field}: must consist of printable characters")
    if len(value) > bytes_max or len(value.encode("utf-8", "surrogatepass")) > bytes_max:
        raise InvalidValue(f"{field}: longer than {bytes_max} bytes")
