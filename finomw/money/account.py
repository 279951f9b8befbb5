"""An account, and how ledger entries change it: pure functions from one frozen value to the next.

Open holds are already out of ``balance``, so ``balance`` is at every moment the sum of the
account's wallet entries, and ``held`` the sum of its open holds. Only ``balance`` decides; the
totals are for people. The admission rule lets nobody start on the buffer alone, and at most one
call reach into it.
"""

from __future__ import annotations

from typing import NamedTuple

import msgspec

from finomw import limits
from finomw.errors import InvalidValue, InvariantBroken
from finomw.money.entries import Entry
from finomw.types import EntryKind, Micros, PlanName, Refusal, UnixMicroseconds


class Account(msgspec.Struct, frozen=True, array_like=True):
    """One customer's row. Amounts are in micros.

    ``buffer`` is how far below zero the balance may go; ``None`` means the configured default.
    ``blocked_at`` is when the block mark was set; ``full`` the balance right after the last grant.
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


class After(NamedTuple):
    """What an operation left behind; stands in its journal record, and replay must reach it."""

    balance: Micros
    held: Micros
    blocked_at: UnixMicroseconds | None


def after(account: Account) -> After:
    """Return the part of the account that a journal record carries as its result."""
    return After(account.balance, account.held, account.blocked_at)


def apply(account: Account, entry: Entry) -> Account:
    """Return the account after one ledger entry.

    Raises `InvalidValue` where a sum would leave the range of money, and `InvariantBroken` where
    more would be given back than is held; the account is a value, so nothing is half done.
    """
    kind, amount = entry.kind, entry.amount
    balance = account.balance + amount
    held, credited, spent, full = (
        account.held,
        account.credited_total,
        account.spent_total,
        account.full,
    )
    if kind in (EntryKind.HOLD, EntryKind.HOLD_RELEASE):
        held -= amount
    elif kind == EntryKind.SETTLEMENT:
        spent -= amount
    elif kind == EntryKind.GRANT:
        credited += amount
        full = balance
    else:
        raise InvariantBroken(f"no rule applies a {kind.name.lower()} entry")
    if held < 0:
        raise InvariantBroken(f"{-amount} micros given back, but only {account.held} are held")
    for field, value in (("balance", balance), ("held", held), ("total", max(credited, spent))):
        if not -limits.MICROS_MAX <= value <= limits.MICROS_MAX:
            raise InvalidValue(f"{field}: {value} micros is beyond {limits.MICROS_MAX}")
    return Account(
        account.plan,
        account.created,
        account.name,
        balance,
        held,
        credited,
        spent,
        account.buffer,
        account.blocked_at,
        full,
    )


def admit(account: Account, amount: Micros, buffer: Micros) -> Refusal | None:
    """Say why a hold of ``amount`` micros may not be made, or ``None`` when it may.

    A hold needs ``balance > 0`` and ``balance - amount >= -buffer``; one of nothing needs neither.
    ``HELD`` says that the money is there, but set aside for other calls in flight.
    """
    if account.blocked_at is not None:
        return Refusal.BLOCKED
    if amount == 0 or _covers(account.balance, amount, buffer):
        return None
    if _covers(account.balance + account.held, amount, buffer):
        return Refusal.HELD
    return Refusal.EXHAUSTED


def _covers(balance: Micros, amount: Micros, buffer: Micros) -> bool:
    return balance > 0 and balance - amount >= -buffer


def remaining_percent(account: Account) -> int:
    """Return what is left of the balance after the last grant, 0 to 100, rounded down."""
    if account.full <= 0 or account.balance <= 0:
        return 0
    return min(100, account.balance * 100 // account.full)
