"""What past usage would have cost under another plan.

Every settled call's counts are priced again, customer by customer and in their order, with the
plan's quotas and tiers counted from the beginning of the time looked at. Prices are those of the
call's own time, so a planned change shows from its date on. Calls whose counts are unknown, and
routes that the plan does not price, keep what they were charged, and are counted apart.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from typing import NamedTuple

from msgspec.structs import replace

from finomw.engine.engine import Engine
from finomw.engine.ledger import Filter, ledger
from finomw.errors import Unpriced
from finomw.money.account import Account
from finomw.money.entries import CallDetail, hold_of
from finomw.money.funding import cover
from finomw.money.periods import Period, period_at, periods_between
from finomw.money.plans import PricePlan
from finomw.money.pricing import PriceList
from finomw.types import (
    Counts,
    CustomerId,
    EntryKind,
    Micros,
    UnixMicroseconds,
    UsageStatus,
)

_ALL = 2**62
_USAGE = ""


class Simulated(NamedTuple):
    """One customer: micros charged, and what it would have been; ``kept`` calls stay as charged."""

    customer: CustomerId
    calls: int
    kept: int
    charged: Micros
    simulated: Micros


class _Call(NamedTuple):
    at: UnixMicroseconds
    detail: CallDetail
    charged: Micros


def simulate(
    engine: Engine,
    plan: PricePlan,
    since: UnixMicroseconds,
    progress: Callable[[int, int], None],
) -> list[Simulated]:
    """Price all calls settled since a time under another plan.

    ``progress`` is told how many of how many customers are done.
    """
    with engine.store.read() as txn:
        accounts = list(engine.store.accounts.items(txn))
    results = []
    for done, (customer, account) in enumerate(accounts, start=1):
        calls = list(_calls(engine, customer, since))
        if calls:
            results.append(_Pricing(plan, account).run(customer, calls))
        progress(done, len(accounts))
    return results


def _calls(engine: Engine, customer: CustomerId, since: UnixMicroseconds) -> Iterator[_Call]:
    """Yield a customer's settled calls, in the order of their ends.

    A call that two funds paid is one, and so is one that was settled in steps.
    """
    wanted = Filter(since=since, kinds=frozenset({EntryKind.SETTLEMENT}))
    calls: dict[str, tuple[int, _Call]] = {}
    for line in reversed(ledger(engine, customer, _ALL, wanted)):
        entry, detail = line.entry, line.entry.call
        if detail is None:
            continue
        call = _Call(entry.at, detail, -entry.amount)
        number, before = calls.pop(hold_of(entry), (0, None))
        if before is not None:
            # Both funds' entries of one record have the same counts; each step has its own.
            more = before.detail.counts if number == line.number else _sum(before, call)
            detail = replace(detail, counts=more)
            call = _Call(entry.at, detail, before.charged + call.charged)
        calls[hold_of(entry)] = (line.number, call)
    for _, call in calls.values():
        yield call


def _sum(one: _Call, other: _Call) -> Counts:
    counts, more = one.detail.counts, other.detail.counts
    return {meter: counts.get(meter, 0) + more.get(meter, 0) for meter in {**counts, **more}}


class _Pricing:
    """One customer's usage and quotas under the plan, as time goes on."""

    def __init__(self, plan: PricePlan, account: Account) -> None:
        self._plan = plan
        self._account = account
        self._periods: dict[str, Period] = {}
        self._used: Counter[str] = Counter()
        self._left: dict[str, int] = {}

    def run(self, customer: CustomerId, calls: list[_Call]) -> Simulated:
        kept = 0
        total = 0
        for call in calls:
            price = self._price(call)
            kept += price is None
            total += call.charged if price is None else price
        return Simulated(customer, len(calls), kept, sum(call.charged for call in calls), total)

    def _price(self, call: _Call) -> Micros | None:
        """Return what a call costs under the plan; ``None`` where that cannot be said."""
        if call.detail.usage not in (UsageStatus.KNOWN, UsageStatus.PARTIAL):
            return None
        if not call.detail.counts:
            return None
        version = self._plan.at(call.detail.route, call.at)
        prices = None if version is None else version.select(call.detail.choice or None)
        if prices is None:
            return None
        return self._charge(prices, call)

    def _charge(self, prices: PriceList, call: _Call) -> Micros | None:
        self._begin_periods(call.at)
        rest: Counts = call.detail.counts
        try:
            prices.price(rest, self._used)
        except Unpriced:
            return None
        for quota in self._plan.quotas:
            if not quota.money:
                given, rest = cover(rest, quota.meters, self._left[quota.name])
                self._left[quota.name] -= given
        price = prices.price(rest, self._used)
        for meter in prices.tiered_meters:
            self._used[meter] += rest.get(meter, 0)
        for quota in self._plan.quotas:
            if quota.money:
                given = min(price, self._left[quota.name])
                self._left[quota.name] -= given
                price -= given
        return price

    def _begin_periods(self, at: UnixMicroseconds) -> None:
        """Begin what has ended: quotas are full again, tiers count from 0."""
        account = self._account
        if self._over(_USAGE, at):
            self._periods[_USAGE] = period_at(self._plan.period, account.anchor, account.zone, at)
            self._used.clear()
        for quota in self._plan.quotas:
            if self._over(quota.name, at):
                before = self._periods.get(quota.name)
                period = period_at(quota.per, account.anchor, account.zone, at)
                units = quota.units
                if before is not None and before.end is not None and quota.roll_over:
                    missed = periods_between(
                        quota.per, account.anchor, account.zone, before.end, period.start
                    )
                    units = units * (missed + 1) + self._left[quota.name]
                self._left[quota.name] = units
                self._periods[quota.name] = period

    def _over(self, name: str, at: UnixMicroseconds) -> bool:
        period = self._periods.get(name)
        return period is None or period.is_over(at)
