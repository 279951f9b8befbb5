"""Stored values as JSON documents: the names that programs read, in one place.

Amounts are whole micro-dollars in fields that end in ``_micros``, times RFC 3339 in UTC to the
microsecond, enumerations their names. A field once here stays; a new one may be added.
"""

from __future__ import annotations

from typing import TypeAlias

from finomw.cli.output import SECOND, utc_exact
from finomw.engine.grants import Booked
from finomw.engine.invoice import Invoice, InvoiceLine
from finomw.engine.ledger import Line
from finomw.money.account import Account, remaining_percent
from finomw.money.entries import FUND_NAMES, KIND_NAMES, CallDetail
from finomw.money.funding import QuotaPart
from finomw.store.holds import HoldRow, NamedHold
from finomw.store.keys import KeyRow
from finomw.store.quotas import QuotaRow, UsageRow
from finomw.types import (
    CustomerId,
    HoldState,
    KeyHash,
    Micros,
    OnCrash,
    Status,
    UnixMicroseconds,
    UsageStatus,
)

Document: TypeAlias = dict[str, object]

USAGE_NAMES = {status: status.name.lower() for status in UsageStatus}
STATUS_NAMES = {status: status.name.lower() for status in Status}
STATE_NAMES = {state: state.name.lower() for state in HoldState}
_CRASH_NAMES = {crash: crash.name.lower() for crash in OnCrash}


def of_balance(customer: CustomerId, account: Account) -> Document:
    """Return what a customer has left. A ``blocked_at`` says that new calls are refused."""
    return {
        "customer": customer,
        "status": STATUS_NAMES[account.status],
        "balance_micros": account.balance,
        "held_micros": account.held,
        "credit_limit_micros": account.credit_limit,
        "credit_used_micros": account.credit_used,
        "credit_held_micros": account.credit_held,
        "remaining_percent": remaining_percent(account),
        "blocked_at": utc_exact(account.blocked_at),
    }


def of_account(customer: CustomerId, account: Account) -> Document:
    """Return a customer's whole account.

    ``buffer_micros`` is null for the configured default, ``plan`` where there is none;
    ``subscribed`` is the day that the plan's periods follow.
    """
    return of_balance(customer, account) | {
        "name": account.name,
        "plan": account.plan or None,
        "zone": account.zone,
        "created": utc_exact(account.created),
        "subscribed": utc_exact(account.anchor),
        "credited_total_micros": account.credited_total,
        "spent_total_micros": account.spent_total,
        "buffer_micros": account.buffer,
        "open_holds": account.open_holds,
    }


def of_key(key: KeyHash, row: KeyRow) -> Document:
    """Return a key; ``key`` is the hash of its token, in hex digits."""
    return {
        "key": key.hex(),
        "customer": row.customer,
        "name": row.name,
        "last_four": row.last_four,
        "created": utc_exact(row.created),
        "revoked": utc_exact(row.revoked),
    }


def of_quota(name: str, row: QuotaRow) -> Document:
    """Return a quota in its period; its numbers end in ``_micros`` where it is one of money."""
    unit = "_micros" if row.money else ""
    return {
        "quota": name,
        "meters": list(row.meters),
        "start": utc_exact(row.start),
        "end": utc_exact(row.end),
        f"given{unit}": row.units,
        f"used{unit}": row.used,
        f"held{unit}": row.held,
        f"left{unit}": row.left,
    }


def of_usage(row: UsageRow) -> Document:
    """Return what was used in a period, and what open holds may add, by meter."""
    return {
        "start": utc_exact(row.start),
        "end": utc_exact(row.end),
        "used": row.used,
        "held": row.held,
    }


def of_booked(
    customer: CustomerId, amount: Micros, source: str, source_id: str, booked: Booked
) -> Document:
    """Return a grant, payment or refund, and what it left."""
    return {
        "customer": customer,
        "amount_micros": amount,
        "source": source,
        "source_id": source_id,
        "repeated": booked.repeated,
        "balance_micros": booked.account.balance,
        "credit_used_micros": booked.account.credit_used,
    }


def of_line(line: Line) -> Document:
    """Return a ledger entry; ``left_micros`` is what it left in its fund.

    That is the balance for the wallet, and for the credit minus what is owed.
    """
    entry = line.entry
    return {
        "record": line.number,
        "at": utc_exact(entry.at),
        "kind": KIND_NAMES[entry.kind],
        "fund": FUND_NAMES[entry.fund],
        "amount_micros": entry.amount,
        "left_micros": line.left,
        "source": entry.source,
        "source_id": entry.source_id,
        "note": entry.note,
        "call": None if entry.call is None else _of_call(entry.call),
    }


def _of_call(call: CallDetail) -> Document:
    return {
        "route": call.route,
        "choice": call.choice,
        "counts": call.counts,
        "usage": USAGE_NAMES[call.usage],
        "price_version": call.price_version,
        "overrun_micros": call.overrun,
        "quota": call.quota,
    }


def of_hold(named: NamedHold, now: UnixMicroseconds) -> Document:
    """Return a hold; ``age_seconds`` is how long it has been open, or was.

    Of an open one ``charged_micros`` and ``counts`` are those of its steps so far.
    """
    row = named.row
    counts = row.counts if row.step is None or row.counts is not None else row.step.counts
    return {
        "hold": named.hold,
        "customer": row.customer,
        "route": row.route,
        "choice": row.choice,
        "plan": row.plan,
        "price_version": row.price_version,
        "state": STATE_NAMES[row.state],
        "started": row.started,
        "amount_micros": row.amount,
        "parts": {
            "wallet_micros": row.parts.wallet,
            "credit_micros": row.parts.credit,
            "quotas": [_of_part(part) for part in row.parts.quotas],
        },
        "ceiling": row.ceiling,
        "on_crash": _CRASH_NAMES[row.on_crash],
        "resource": row.resource or None,
        "since": utc_exact(row.since),
        "age_seconds": age(row, now) // SECOND,
        "expires": utc_exact(row.expires),
        "ended": utc_exact(row.ended),
        "charged_micros": row.settled,
        "counts": counts,
    }


def age(row: HoldRow, now: UnixMicroseconds) -> int:
    """Return for how many microseconds a hold has been open, or was."""
    return (now if row.ended is None else row.ended) - row.since


def _of_part(part: QuotaPart) -> Document:
    unit = "amount_micros" if part.money else "amount"
    return {"quota": part.quota, "start": utc_exact(part.start), unit: part.amount}


def of_invoice(invoice: Invoice) -> Document:
    """Return a period's invoice; ``paid_micros`` was paid in it, ``owed_micros`` is as of now."""
    return {
        "customer": invoice.customer,
        "start": utc_exact(invoice.period.start),
        "end": utc_exact(invoice.period.end),
        "lines": [_of_invoice_line(line) for line in invoice.lines],
        "total_micros": invoice.total,
        "paid_micros": invoice.paid,
        "owed_micros": invoice.owed,
    }


def _of_invoice_line(line: InvoiceLine) -> Document:
    return {
        "route": line.route,
        "choice": line.choice,
        "calls": line.calls,
        "units": line.units,
        "amount_micros": line.amount,
    }
