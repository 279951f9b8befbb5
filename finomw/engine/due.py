"""What has to happen before a customer's next hold: periods that ended, grants that expired.

Found inside the hold's own transaction, so the first call after a boundary sees the new period
even if nothing else ran, and done exactly once: each is a record of its own that names what it
ends.
"""

from __future__ import annotations

from typing import NamedTuple

from msgspec.structs import replace

from finomw import limits
from finomw.engine import records
from finomw.money.account import Account
from finomw.money.periods import Per, Period, period_at, periods_between
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
            before = None if usage is None else usage.period
            period = _next_period(terms.usage_per, account, before, now)
            ended = None if before is None else before.start
            commands.append(
                records.PeriodEnd(now, customer, "", ended, period.start, period.end, (), False, 0)
            )
    return Due(tuple(commands))


def _next_period(
    per: Per, account: Account, before: Period | None, now: UnixMicroseconds
) -> Period:
    """Return the period to begin: the calendar's, from where the one before ended.

    The first begins with the subscription. So no two have the same start, even where a plan with
    longer periods takes over, and a hold's part is never taken for one of another period.
    """
    period = period_at(per, account.anchor, account.zone, now)
    earliest = account.anchor if before is None or before.end is None else before.end
    return replace(period, start=max(period.start, earliest))


def expiries(
    store: Store, txn: Txn, customer: CustomerId, account: Account, now: UnixMicroseconds
) -> list[records.Expire]:
    """Return the customer's grants to expire now; one that calls hold whole has to wait."""
    return [
        records.Expire(now, customer, grant.source, grant.source_id)
        for grant, held in store.grants.reserved(txn, customer, account.held)
        if grant.expires is not None and grant.expires <= now and held < grant.unspent
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
    Money never rolls over into units, nor units into money.
    """
    before = None if row is None else row.period
    period = _next_period(quota.per, account, before, now)
    units = quota.units
    rolls = row is not None and row.money == quota.money and quota.roll_over
    if row is not None and row.end is not None and rolls:
        missed = periods_between(quota.per, account.anchor, account.zone, row.end, period.start)
        units = min(units * (missed + 1) + row.left, limits.COUNT_MAX)
    return records.PeriodEnd(
        now,
        customer,
        quota.name,
        None if before is None else before.start,
        period.start,
        period.end,
        quota.meters,
        quota.money,
        units,
    )
