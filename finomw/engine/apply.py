"""Carrying a command out: looks up its rule, inside the write transaction.

Live calls and replay both come through here; see ``rules/`` for the rules.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from finomw.engine import records
from finomw.engine.rules.calls import CallRules
from finomw.engine.rules.money import MoneyRules
from finomw.engine.rules.owners import OwnerRules
from finomw.engine.rules.results import Earlier, Result
from finomw.store import Store
from finomw.store.accounts import BlockPolicy
from finomw.store.env import Txn

__all__ = ["Apply", "Earlier", "Result"]


class Apply:
    """Carries commands out on one store under one block policy."""

    def __init__(self, store: Store, policy: BlockPolicy) -> None:
        calls, money = CallRules(store, policy), MoneyRules(store, policy)
        owners = OwnerRules(store)
        self._rules: dict[type, Callable[[Txn, Any, int], Result]] = {
            records.OpenWorker: owners.open_worker,
            records.AddCustomer: owners.add_customer,
            records.SetTerms: owners.set_terms,
            records.Suspend: owners.suspend,
            records.Resume: owners.resume,
            records.Subscribe: owners.subscribe,
            records.Unsubscribe: owners.unsubscribe,
            records.ChangePlan: owners.change_plan,
            records.PeriodEnd: owners.period_end,
            records.CreateKey: owners.create_key,
            records.RevokeKey: owners.revoke_key,
            records.Grant: money.grant,
            records.Refund: money.refund,
            records.Expire: money.expire,
            records.Adjust: money.adjust,
            records.DeleteCustomer: money.delete_customer,
            records.Hold: calls.hold,
            records.Start: calls.start,
            records.Extend: calls.extend,
            records.Step: calls.step,
            records.Settle: calls.settle,
            records.Release: calls.release,
        }

    def __call__(self, txn: Txn, command: records.AnyCommand, number: int) -> Result:
        """Carry out a command inside a write transaction, as journal record ``number``."""
        return self._rules[type(command)](txn, command, number)
