"""An account, and how ledger entries change it: pure functions from one frozen value to the next.

Open holds are already out of ``balance``, so ``balance`` is at every moment the sum of the
account's wallet entries, ``held`` the sum of its open holds' wallet parts, and ``credit_used``
minus the sum of the credit's entries. The totals are for people and decide nothing. Who may start
a call is decided in ``funding.py``.
"""

from __future__ import annotations

from typing import NamedTuple

import msgspec
from msgspec.structs import replace

from finomw import limits
from finomw.errors import InvalidValue, InvariantBroken
from finomw.money.entries import Entry
from finomw.types import EntryKind, Fund, Micros, PlanName, Status, UnixMicroseconds


class Account(msgspec.Struct, frozen=True, array_like=True):
    """One customer's row. Amounts are in micros.

    ``balance`` is the wallet, without what open holds set aside (``held``); ``credit_used`` is
    what is owed, including what open holds set aside of the credit (``credit_held``). ``buffer``
    is how far below zero the balance may go; ``None`` means the configured default.
    ``blocked_at`` is when the block mark was set; ``full`` the balance right after the last grant.
    ``anchor`` is when the subscription began, which its periods follow in the time zone ``zone``;
    ``lots`` is how many expiring grants may still have something unspent.
    """

    plan: PlanName
    created: UnixMicroseconds
    name: str = ""
    balance: Micros = 0
    held: Micros = 0
    credited_total: Micros = 0
    spent_total: Micros = 0
    buffer: Micros | None = None
    blocked_at: UnixMicroseconds | None = None
    full: Micros = 0
    status: Status = Status.ACTIVE
    credit_limit: Micros = 0
    credit_used: Micros = 0
    credit_held: Micros = 0
    zone: str = "UTC"
    anchor: UnixMicroseconds = 0
    lots: int = 0
    open_holds: int = 0


class After(NamedTuple):
    """What an operation left behind; stands in its journal record, and replay must reach it."""

    balance: Micros
    held: Micros
    blocked_at: UnixMicroseconds | None
    credit_used: Micros = 0
    charged: Micros = 0


def after(account: Account, charged: Micros = 0) -> After:
    """Return the part of the account that a journal record carries as its result."""
    return After(account.balance, account.held, account.blocked_at, account.credit_used, charged)


def apply(account: Account, entry: Entry) -> Account:
    """Return the account after one ledger entry.

    An adjustment explains a difference and moves nothing. Raises `InvalidValue` where a sum would
    leave the range of money, and `InvariantBroken` where more would be given back than is held;
    the account is a value, so nothing is half done.
    """
    if entry.kind == EntryKind.ADJUSTMENT:
        return account
    changed = (
        _on_wallet(account, entry) if entry.fund == Fund.WALLET else _on_credit(account, entry)
    )
    if changed.held < 0 or changed.credit_held < 0:
        raise InvariantBroken(f"{entry.amount} micros given back, but less is held")
    for field in ("balance", "held", "credited_total", "spent_total", "credit_used"):
        value = getattr(changed, field)
        if not -limits.MICROS_MAX <= value <= limits.MICROS_MAX:
            raise InvalidValue(f"{field}: {value} micros is beyond {limits.MICROS_MAX}")
    return changed


def _on_wallet(account: Account, entry: Entry) -> Account:
    kind, amount = entry.kind, entry.amount
    balance = account.balance + amount
    if kind == EntryKind.HOLD or kind == EntryKind.HOLD_RELEASE:
        return replace(account, balance=balance, held=account.held - amount)
    if kind == EntryKind.SETTLEMENT:
        return replace(account, balance=balance, spent_total=account.spent_total - amount)
    if kind == EntryKind.GRANT:
        credited = account.credited_total + amount
        return replace(account, balance=balance, credited_total=credited, full=balance)
    return replace(account, balance=balance)


def _on_credit(account: Account, entry: Entry) -> Account:
    """Credit is what is owed: a charge raises it, a payment (a grant on this fund) lowers it."""
    kind, amount = entry.kind, entry.amount
    used = account.credit_used - amount
    if kind == EntryKind.HOLD or kind == EntryKind.HOLD_RELEASE:
        return replace(account, credit_used=used, credit_held=account.credit_held - amount)
    if kind == EntryKind.SETTLEMENT:
        return replace(account, credit_used=used, spent_total=account.spent_total - amount)
    return replace(account, credit_used=used)


def remaining_percent(account: Account) -> int:
    """Return what is left of the balance after the last grant, 0 to 100, rounded down."""
    if account.full <= 0 or account.balance <= 0:
        return 0
    return min(100, account.balance * 100 // account.full)
