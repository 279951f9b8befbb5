"""Stored values as JSON documents: the names that programs read, in one place.

Amounts are whole micro-dollars in fields that end in ``_micros``, times RFC 3339 in UTC to the
microsecond, enumerations their names. A field once here stays; a new one may be added.
"""

from __future__ import annotations

from typing import TypeAlias

from finomw.cli.output import utc_exact
from finomw.money.account import Account, remaining_percent
from finomw.money.entries import FUND_NAMES, KIND_NAMES, CallDetail
from finomw.store.keys import KeyRow
from finomw.store.ledger import LedgerRow
from finomw.types import CustomerId, KeyHash, Micros, UsageStatus

Document: TypeAlias = dict[str, object]

USAGE_NAMES = {status: status.name.lower() for status in UsageStatus}


def of_balance(customer: CustomerId, account: Account) -> Document:
    """Return what a customer has left. A ``blocked_at`` says that new calls are refused."""
    return {
        "customer": customer,
        "balance_micros": account.balance,
        "held_micros": account.held,
        "remaining_percent": remaining_percent(account),
        "blocked_at": utc_exact(account.blocked_at),
    }


def of_account(customer: CustomerId, account: Account) -> Document:
    """Return a customer's whole account; ``buffer_micros`` is null for the configured default."""
    return of_balance(customer, account) | {
        "name": account.name,
        "plan": account.plan,
        "created": utc_exact(account.created),
        "credited_total_micros": account.credited_total,
        "spent_total_micros": account.spent_total,
        "buffer_micros": account.buffer,
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


def of_entry(row: LedgerRow, balance: Micros) -> Document:
    """Return a ledger entry with the balance right after it."""
    entry = row.entry
    return {
        "record": row.number,
        "at": utc_exact(entry.at),
        "kind": KIND_NAMES[entry.kind],
        "fund": FUND_NAMES[entry.fund],
        "amount_micros": entry.amount,
        "balance_micros": balance,
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
    }
