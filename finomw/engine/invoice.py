"""What a customer owes: the calls that the credit paid for in a period, grouped for an invoice.

Amounts are what was settled, so an invoice always equals its ledger entries. Units stand by meter;
the amount stands by route and choice (the model, say), since a call is rounded once, not by meter.
"""

from __future__ import annotations

from collections import Counter
from typing import NamedTuple

from finomw.engine.engine import Engine
from finomw.engine.ledger import Filter, ledger
from finomw.money.entries import hold_of
from finomw.money.periods import Period
from finomw.types import Counts, CustomerId, EntryKind, Fund, Micros, RouteName

_ALL = 2**62


class InvoiceLine(NamedTuple):
    """One route and choice: calls, units by meter, and micros to be paid."""

    route: RouteName
    choice: str
    calls: int
    units: Counts
    amount: Micros


class Invoice(NamedTuple):
    """One customer's period.

    ``total`` is its lines', ``paid`` the payments booked in it less what was taken back of any;
    ``owed`` is as of now.
    """

    customer: CustomerId
    period: Period
    lines: tuple[InvoiceLine, ...]
    total: Micros
    paid: Micros
    owed: Micros


def invoice(engine: Engine, customer: CustomerId, period: Period) -> Invoice:
    """Return what the credit paid for in a period. Raises `NotFound`."""
    calls: dict[tuple[RouteName, str], set[str]] = {}
    amounts: Counter[tuple[RouteName, str]] = Counter()
    units: dict[tuple[RouteName, str], Counter[str]] = {}
    paid = 0
    for line in ledger(engine, customer, _ALL, Filter(period.start, period.end)):
        entry = line.entry
        if entry.fund is not Fund.CREDIT:
            continue
        if entry.kind is EntryKind.SETTLEMENT and entry.call is not None:
            group = (entry.call.route, entry.call.choice)
            calls.setdefault(group, set()).add(hold_of(entry))
            amounts[group] -= entry.amount
            units.setdefault(group, Counter()).update(entry.call.counts)
        elif entry.kind in (EntryKind.GRANT, EntryKind.REFUND):
            paid += entry.amount
    lines = tuple(
        InvoiceLine(*group, len(calls[group]), dict(sorted(units[group].items())), amounts[group])
        for group in sorted(calls)
    )
    with engine.store.read() as txn:
        account = engine.store.accounts.need(txn, customer)
    owed = account.credit_used - account.credit_held
    return Invoice(customer, period, lines, sum(amounts.values()), paid, owed)
