"""The rules that give and take outside of calls: grants, refunds, expiry, adjustment, closing.

Each is named by its own ``(source, source_id)``: the same name with the same content is the earlier
result, with other content an error that names the difference. A refund names the grant it takes
back, and all refunds of one grant together never exceed it.
"""

from __future__ import annotations

from msgspec.structs import replace

from finomw.engine import records
from finomw.engine.rules.results import Earlier
from finomw.errors import Conflict, InvalidValue, NotFound
from finomw.money.account import Account, After, after
from finomw.money.entries import (
    CLOSING_SOURCE,
    EXPIRY_SOURCE,
    RECONCILE_SOURCE,
    RESERVED_SOURCES,
    Entry,
    check_entry,
)
from finomw.store import Store
from finomw.store.accounts import BlockPolicy
from finomw.store.env import Txn
from finomw.store.grants import GrantRow
from finomw.types import CustomerId, EntryKind, Fund, PlanName, Status


class MoneyRules:
    """Rules over the accounts and grants of one store."""

    def __init__(self, store: Store, policy: BlockPolicy) -> None:
        self._store = store
        self._policy = policy

    def grant(self, txn: Txn, command: records.Grant, number: int) -> After | Earlier:
        """Give credit, once for each name."""
        store = self._store
        account = store.accounts.need(txn, command.customer)
        entry = Entry(
            EntryKind.GRANT,
            command.fund,
            command.amount,
            command.source,
            command.source_id,
            command.at,
            command.note,
        )
        earlier = self._earlier(txn, command.customer, entry)
        if earlier is not None:
            row = store.grants.get(txn, command.customer, command.source, command.source_id)
            if row is not None and row.expires != command.expires:
                name = f"{command.source}/{command.source_id}"
                raise Conflict(
                    f"{name} was used before with expires {row.expires}, not {command.expires}"
                )
            return earlier
        _check_not_closed(command.customer, account)
        if command.expires is not None and command.expires <= command.at:
            raise InvalidValue("expires: must be in the future")
        account = self._post(txn, command.customer, account, entry, number)
        unspent = 0
        if command.expires is not None:
            # What calls hold is not spent, so only what was owed before is.
            unspent = min(command.amount, max(0, account.balance + account.held))
            if unspent:
                account = replace(account, lots=account.lots + 1)
                store.accounts.put(txn, command.customer, account)
        row = GrantRow(
            command.source,
            command.source_id,
            command.fund,
            command.amount,
            expires=command.expires,
            unspent=unspent,
        )
        store.grants.put(txn, command.customer, row)
        return after(account)

    def refund(self, txn: Txn, command: records.Refund, number: int) -> After | Earlier:
        """Take a grant back, or a part of it: the stated amount whole, without buffer check."""
        store = self._store
        account = store.accounts.need(txn, command.customer)
        grant = store.grants.get(txn, command.customer, command.of_source, command.of_source_id)
        of = f"{command.of_source}/{command.of_source_id}"
        if grant is None:
            raise NotFound(f"customer {command.customer!r} has no grant {of}")
        entry = Entry(
            EntryKind.REFUND,
            grant.fund,
            -command.amount,
            command.source,
            command.source_id,
            command.at,
            f"of {of}" + (f": {command.note}" if command.note else ""),
        )
        earlier = self._earlier(txn, command.customer, entry)
        if earlier is not None:
            return earlier
        _check_not_closed(command.customer, account)
        left = grant.amount - grant.refunded
        if command.amount > left:
            raise InvalidValue(
                f"amount: {command.amount} micros is more than the {left} that refunds have left "
                f"of the grant {of}"
            )
        unspent = max(0, grant.unspent - command.amount)
        lots = account.lots - (grant.unspent > 0 and unspent == 0)
        refunded = replace(grant, refunded=grant.refunded + command.amount, unspent=unspent)
        store.grants.put(txn, command.customer, refunded)
        account = replace(account, lots=lots)
        return after(self._post(txn, command.customer, account, entry, number))

    def expire(self, txn: Txn, command: records.Expire, number: int) -> After:
        """Take back what is unspent of a grant, never below zero, never what a call holds.

        Calls hold what expires soonest, as they would use it up. It may come back; it stays a lot
        and expires when they have ended.
        """
        store = self._store
        account = store.accounts.need(txn, command.customer)
        grant = store.grants.get(txn, command.customer, command.source, command.source_id)
        if grant is None or grant.expires is None or grant.expires > command.at:
            raise InvalidValue(f"{command.source}/{command.source_id} does not expire now")
        reserved = store.grants.reserved(txn, command.customer, account.held)
        unspent = next((part for lot, part in reserved if lot == grant), 0)
        amount = min(grant.unspent - unspent, max(0, account.balance))
        lots = account.lots - (grant.unspent > 0 and unspent == 0)
        account = replace(account, lots=lots)
        expired = replace(
            grant, refunded=grant.refunded + amount, unspent=unspent, times=grant.times + 1
        )
        store.grants.put(txn, command.customer, expired)
        if not amount:
            store.accounts.put(txn, command.customer, account)
            return after(account)
        note = f"of {command.source}/{command.source_id}"
        entry = _entry(EntryKind.REFUND, Fund.WALLET, -amount, EXPIRY_SOURCE, number, command, note)
        return after(self._post(txn, command.customer, account, entry, number))

    def adjust(self, txn: Txn, command: records.Adjust, number: int) -> After:
        """Explain a difference. The account keeps what it said; in replay, it is made to say it."""
        account = self._store.accounts.need(txn, command.customer)
        if command.fund is Fund.WALLET:
            account = replace(account, balance=command.found)
        else:
            account = replace(account, credit_used=command.found)
        entry = _entry(
            EntryKind.ADJUSTMENT,
            command.fund,
            command.amount,
            RECONCILE_SOURCE,
            number,
            command,
            command.note,
        )
        return after(self._post(txn, command.customer, account, entry, number))

    def delete_customer(self, txn: Txn, command: records.DeleteCustomer, number: int) -> After:
        """Close an account: what is left is a refund, what is owed a grant, the keys go."""
        store, customer = self._store, command.customer
        account = store.accounts.need(txn, customer)
        if account.open_holds:
            raise Conflict(
                f"customer {customer!r} has {account.open_holds} open holds; "
                "wait until its calls have ended"
            )
        if account.status is Status.CLOSED and not command.erase:
            raise Conflict(f"customer {customer!r} is closed already")
        entries = []
        for fund, amount in ((Fund.WALLET, -account.balance), (Fund.CREDIT, account.credit_used)):
            if amount:
                kind = EntryKind.GRANT if amount > 0 else EntryKind.REFUND
                source_id = f"{number}/{fund.name.lower()}"
                entries.append(
                    Entry(kind, fund, amount, CLOSING_SOURCE, source_id, command.at, "closed")
                )
        account = store.accounts.post(txn, customer, account, entries, number, self._policy)
        for grant in store.grants.lots(txn, customer):
            store.grants.put(txn, customer, replace(grant, unspent=0))
        store.keys.remove_all(txn, customer)
        account = replace(account, status=Status.CLOSED, plan=PlanName(""), lots=0)
        if command.erase:
            store.ledger.erase(txn, customer)
            store.grants.erase(txn, customer)
            account = replace(account, name="")
        store.accounts.put(txn, customer, account)
        return after(account)

    def _earlier(self, txn: Txn, customer: CustomerId, entry: Entry) -> Earlier | None:
        """Return the entry that was made under this name before; raises `Conflict`."""
        if entry.source in RESERVED_SOURCES:
            raise InvalidValue(f"source: {entry.source!r} is kept for finomw's own entries")
        check_entry(entry)
        row = self._store.ledger.find(txn, customer, entry.source, entry.source_id)
        if row is None:
            return None
        for field in ("kind", "fund", "amount", "note"):
            before, now = getattr(row.entry, field), getattr(entry, field)
            if before != now:
                name = f"{entry.source}/{entry.source_id}"
                unit = " micros" if field == "amount" else ""
                raise Conflict(f"{name} was used before with {field} {before!r}{unit}, not {now!r}")
        return Earlier(row)

    def _post(
        self, txn: Txn, customer: CustomerId, account: Account, entry: Entry, number: int
    ) -> Account:
        return self._store.accounts.post(txn, customer, account, [entry], number, self._policy)


def _check_not_closed(customer: CustomerId, account: Account) -> None:
    if account.status is Status.CLOSED:
        raise Conflict(f"customer {customer!r} is closed")


def _entry(
    kind: EntryKind,
    fund: Fund,
    amount: int,
    source: str,
    number: int,
    command: records.Command,
    note: str,
) -> Entry:
    """Return an entry that finomw makes itself, named by its journal record."""
    return Entry(kind, fund, amount, source, str(number), command.at, note)
