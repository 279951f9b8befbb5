"""The rules of what an owner decides: workers, customers, their plans and periods, their keys.

None of these moves money. A period ends once: the record names the period that ended, and one that
has ended already is left alone.
"""

from __future__ import annotations

from msgspec.structs import replace

from finomw.engine import records
from finomw.errors import Conflict, InvalidValue, InvariantBroken
from finomw.money.account import Account, After, after
from finomw.store import Store
from finomw.store.env import Txn
from finomw.store.keys import KeyRow
from finomw.store.quotas import QuotaRow, UsageRow
from finomw.types import CustomerId, PlanName, Status


class OwnerRules:
    """Rules over the customers and keys of one store."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def open_worker(self, txn: Txn, command: records.OpenWorker, _number: int) -> None:
        """Give out a worker id that nobody had."""
        meta = self._store.meta
        if command.worker <= meta.last_worker(txn):
            raise InvariantBroken(f"worker {command.worker} is not a new one")
        meta.set_last_worker(txn, command.worker)

    def add_customer(self, txn: Txn, command: records.AddCustomer, _number: int) -> After:
        """Create a customer with an empty account."""
        account = Account(
            command.plan,
            command.at,
            command.name,
            buffer=command.buffer,
            zone=command.zone,
            anchor=command.at,
        )
        self._store.accounts.add(txn, command.customer, account)
        return after(account)

    def set_terms(self, txn: Txn, command: records.SetTerms, _number: int) -> After:
        """Change the credit limit or the buffer."""
        account = self._need(txn, command.customer)
        if command.credit_limit is not None:
            account = replace(account, credit_limit=command.credit_limit)
        if command.buffer is not None:
            account = replace(account, buffer=command.buffer)
        return self._put(txn, command.customer, account)

    def suspend(self, txn: Txn, command: records.Suspend, _number: int) -> After:
        """Refuse new calls, whatever the balance."""
        account = self._need(txn, command.customer)
        if account.status is Status.SUSPENDED:
            raise Conflict(f"customer {command.customer!r} is suspended already")
        return self._put(txn, command.customer, replace(account, status=Status.SUSPENDED))

    def resume(self, txn: Txn, command: records.Resume, _number: int) -> After:
        """End a suspension."""
        account = self._need(txn, command.customer)
        if account.status is not Status.SUSPENDED:
            raise Conflict(f"customer {command.customer!r} is not suspended")
        return self._put(txn, command.customer, replace(account, status=Status.ACTIVE))

    def subscribe(self, txn: Txn, command: records.Subscribe, _number: int) -> After:
        """Begin a plan: its periods start now, what earlier quotas had left is gone.

        What was given once stays as it is: subscribing again does not give it again.
        """
        account = self._need(txn, command.customer)
        quotas = self._store.quotas
        periodic = [(n, row) for n, row in quotas.of(txn, command.customer) if row.end is not None]
        for name, row in periodic:
            if row.held:
                raise Conflict(
                    f"calls of customer {command.customer!r} hold some of the quota {name}; "
                    "wait until they have ended"
                )
            quotas.remove(txn, command.customer, name)
        usage = quotas.usage(txn, command.customer)
        if usage is not None:
            # The next call that counts begins the new plan's period, at nothing used.
            ended = replace(usage, end=command.at, used={})
            quotas.put_usage(txn, command.customer, ended)
        account = replace(account, plan=command.plan, zone=command.zone, anchor=command.at)
        return self._put(txn, command.customer, account)

    def unsubscribe(self, txn: Txn, command: records.Unsubscribe, _number: int) -> After:
        """Leave the customer without a plan."""
        account = self._need(txn, command.customer)
        if not account.plan:
            raise Conflict(f"customer {command.customer!r} has no plan")
        return self._put(txn, command.customer, replace(account, plan=PlanName("")))

    def change_plan(self, txn: Txn, command: records.ChangePlan, _number: int) -> After:
        """Go on under another plan; periods under way go on."""
        account = self._need(txn, command.customer)
        if not account.plan:
            raise Conflict(f"customer {command.customer!r} has no plan to change; subscribe first")
        return self._put(txn, command.customer, replace(account, plan=command.plan))

    def period_end(self, txn: Txn, command: records.PeriodEnd, _number: int) -> None:
        """End a quota's period, or the usage's, and begin the next."""
        quotas = self._store.quotas
        self._need(txn, command.customer)
        if command.quota:
            _check_ends(command, quotas.get(txn, command.customer, command.quota))
            new = QuotaRow(command.meters, command.money, command.start, command.end, command.units)
            quotas.put(txn, command.customer, command.quota, new)
        else:
            usage = quotas.usage(txn, command.customer)
            _check_ends(command, usage)
            held = {} if usage is None else usage.held
            row = UsageRow(command.start, command.end, {}, held)
            quotas.put_usage(txn, command.customer, row)

    def create_key(self, txn: Txn, command: records.CreateKey, _number: int) -> None:
        """Make a key known."""
        self._need(txn, command.customer)
        row = KeyRow(command.customer, command.at, command.last_four, command.name)
        self._store.keys.add(txn, command.key, row)

    def revoke_key(self, txn: Txn, command: records.RevokeKey, _number: int) -> None:
        """Refuse a key from now on."""
        row = self._store.keys.get(txn, command.key)
        if row is None or row.revoked is not None:
            raise InvalidValue("this key does not exist, or was revoked before")
        self._store.keys.put(txn, command.key, replace(row, revoked=command.at))

    def _need(self, txn: Txn, customer: CustomerId) -> Account:
        """Return the account of a customer that is not closed."""
        account = self._store.accounts.need(txn, customer)
        if account.status is Status.CLOSED:
            raise Conflict(f"customer {customer!r} is closed")
        return account

    def _put(self, txn: Txn, customer: CustomerId, account: Account) -> After:
        self._store.accounts.put(txn, customer, account)
        return after(account)


def _check_ends(command: records.PeriodEnd, row: QuotaRow | UsageRow | None) -> None:
    """Raise `Conflict` unless the period under way is the one to end, and over."""
    start, over = (None, True) if row is None else (row.start, row.period.is_over(command.at))
    if start != command.ended or not over:
        raise Conflict(f"the period that began at {command.ended} has ended already")
