"""What has to happen before a customer's next hold: periods that ended, grants that expired.

Found inside the hold's own transaction, so the first call after a boundary sees the new period
even if nothing else ran, and done exactly once: each is a record of its own that names what it
ends.
"""

from __future__ import annotations

from typing import NamedTuple

from finomw import limits
from finomw.engine import records
from finomw.money.account import Account
from finomw.money.periods import period_at, periods_between
from finomw.money.quotas import Quota
from finomw.money.terms import Terms
from finomw.store import Store
from finomw.store.env import Txn
from finomw.store.quotas import QuotaRow
from finomw.types import CustomerId, UnixMicroseconds


class Due(NamedTuple):
    """Commands to carry out first."""

    commands: tuple[records.AnyCommand, ...]


def due_before_hold(
    store: Store,
    txn: Txn,
    customer: CustomerId,
    account: Account,
    terms: Terms,
    counted: tuple[str, ...],
    now: UnixMicroseconds,
) -> Due:
    """Return what is due for a customer whose call is priced under these terms."""
    commands: list[records.AnyCommand] = []
    if account.lots:
        commands += expiries(store, txn, customer, account, now)
    for quota in terms.quotas:
        row = store.quotas.get(txn, customer, quota.name)
        if row is None or row.period.is_over(now):
            commands.append(_quota_period(customer, account, quota, row, now))
    if counted:
        usage = store.quotas.usage(txn, customer)
        if usage is None or usage.period.is_over(now):
            period = period_at(terms.usage_per, account.anchor, account.zone, now)
            ended = None if usage is None else usage.start
            commands.append(
                records.PeriodEnd(now, customer, "", ended, period.start, period.end, (), False, 0)
            )
    return Due(tuple(commands))


def expiries(
    store: Store, txn: Txn, customer: CustomerId, account: Account, now: UnixMicroseconds
) -> list[records.Expire]:
    """Return the customer's grants to expire now; one that calls hold whole has to wait."""
    if account.balance <= 0 and account.open_holds:
        return []
    return [
        records.Expire(now, customer, grant.source, grant.source_id)
        for grant in store.grants.lots(txn, customer)
        if grant.expires is not None and grant.expires <= now
    ]


def _quota_period(
    customer: CustomerId,
    account: Account,
    quota: Quota,
    row: QuotaRow | None,
    now: UnixMicroseconds,
) -> records.PeriodEnd:
    """Begin a quota's period; what rolls over is what the one before had left.

    Periods in which nothing ran gave their units too: that nobody called must not change the sum.
    """
    period = period_at(quota.per, account.anchor, account.zone, now)
    units = quota.units
    if row is not None and row.end is not None and quota.roll_over:
        missed = periods_between(quota.per, account.anchor, account.zone, row.end, period.start)
        units = min(units * (missed + 1) + row.left, limits.COUNT_MAX)
    return records.PeriodEnd(
        now,
        customer,
        quota.name,
        None if row is None else row.start,
        period.start,
        period.end,
        quota.meters,
        quota.money,
        units,
    )
