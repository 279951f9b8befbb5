"""Reconciliation: compare every account with its ledger, and explain a difference.

A difference means that a row was damaged, since every change writes both. One adjustment entry
makes the ledger say what the account says, with a note; the balance is never moved, because which
of the two is right is for a person to judge. The record carries the value found, so that a
rebuild ends with the same sums.
"""

from __future__ import annotations

import logging
from typing import NamedTuple

from finomw.engine import records
from finomw.engine.due import Due
from finomw.engine.engine import Engine
from finomw.engine.verify import check_journal, ledger_sums
from finomw.errors import InvalidValue
from finomw.store.env import Txn
from finomw.types import CustomerId, Fund, Micros

logger = logging.getLogger("finomw")


_NOTHING = Due(())
"""There is nothing to explain any more, so no command."""


class Difference(NamedTuple):
    """An account that was not the sum of its ledger: micros found, and summed."""

    customer: CustomerId
    fund: Fund
    found: Micros
    summed: Micros


class Reconciled(NamedTuple):
    """What a pass compared, what it explained, and what is wrong with the journal.

    ``unexplained`` are differences beyond any amount of money, which no entry can hold.
    """

    customers: int
    differences: tuple[Difference, ...]
    journal_faults: tuple[str, ...]
    unexplained: tuple[Difference, ...] = ()


def reconcile(engine: Engine) -> Reconciled:
    """Run one pass; each difference gets one adjustment and one line in the log."""
    with engine.store.read() as txn:
        tail = engine.store.meta.tail(txn)
        suspects, customers = _differences(engine, txn)
    faults = tuple(check_journal(engine, tail))
    for fault in faults:
        logger.error("reconcile: %s", fault)
    explained, unexplained = [], []
    for suspect in suspects:
        try:
            difference = _explain(engine, suspect)
        except InvalidValue as error:
            logger.error(
                "reconcile: customer %s: no entry explains it: %s", suspect.customer, error
            )
            unexplained.append(suspect)
            continue
        if difference is not None:
            explained.append(difference)
    engine.count_alerts(len(explained) + len(unexplained) + len(faults))
    if explained:
        engine.flush()
    return Reconciled(customers, tuple(explained), faults, tuple(unexplained))


def _differences(engine: Engine, txn: Txn) -> tuple[list[Difference], int]:
    sums = ledger_sums(engine, txn)
    found: list[Difference] = []
    customers = 0
    for customer, account in engine.store.accounts.items(txn):
        customers += 1
        for fund, says in ((Fund.WALLET, account.balance), (Fund.CREDIT, account.credit_used)):
            summed = sums.get((customer, fund), 0)
            summed = summed if fund is Fund.WALLET else -summed
            if says != summed:
                found.append(Difference(customer, fund, says, summed))
    return found, customers


def _explain(engine: Engine, suspect: Difference) -> Difference | None:
    """Look again inside a write transaction, and explain what is still different."""
    certain: Difference | None = None

    def decide(txn: Txn) -> records.Adjust | Due:
        nonlocal certain
        account = engine.store.accounts.need(txn, suspect.customer)
        wallet = suspect.fund is Fund.WALLET
        says = account.balance if wallet else account.credit_used
        entries = engine.store.ledger.newest_first(txn, suspect.customer)
        total = sum(row.entry.amount for row in entries if row.entry.fund is suspect.fund)
        summed = total if wallet else -total
        certain = suspect._replace(found=says, summed=summed)
        if says == summed:
            return _NOTHING
        note = f"found {says}, the ledger's sum was {summed}"
        amount = says - summed if wallet else summed - says
        now = engine.clock.now()
        return records.Adjust(now, suspect.customer, suspect.fund, amount, says, note)

    if engine.decide(decide) == _NOTHING or certain is None:
        return None
    logger.error(
        "reconcile: an account of customer %s differed from its ledger on the fund %s; "
        "one adjustment explains it",
        suspect.customer,
        suspect.fund.name.lower(),
    )
    return certain
