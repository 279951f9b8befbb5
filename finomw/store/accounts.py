"""The one place that changes a balance.

Entries are folded into the account's row by ``money.account.apply`` and written to the ledger in
the same transaction, so ``balance == sum(wallet entries)`` holds after every operation or there
was no operation. This room moves money and sets or clears the block mark; whether a balance means
blocked is decided by the policy it is handed.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Protocol

import msgspec

from finomw.errors import Conflict, NotFound
from finomw.money.account import Account, apply
from finomw.money.entries import CALL_SOURCE, Entry, check_entry
from finomw.store.env import Environment, Txn
from finomw.store.ledger import Ledger
from finomw.types import CustomerId, EntryKind

_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(Account).decode


_CHARGES = (EntryKind.SETTLEMENT, EntryKind.REFUND)


class BlockPolicy(Protocol):
    """Decides about the block mark; see ``engine/policy.py``."""

    def blocks(self, account: Account) -> bool:
        """Say whether a settlement or refund that left the account like this sets it."""
        ...

    def clears(self, account: Account) -> bool:
        """Say whether a grant that left the account like this clears the mark."""
        ...


class Accounts:
    """Account rows by customer."""

    def __init__(self, env: Environment, ledger: Ledger) -> None:
        self._table = env.table("accounts")
        self._ledger = ledger

    def get(self, txn: Txn, customer: CustomerId) -> Account | None:
        """Return a customer's account, ``None`` when there is no such customer."""
        row = txn.get(customer.encode(), db=self._table)
        return None if row is None else _decode(row)

    def need(self, txn: Txn, customer: CustomerId) -> Account:
        """Return a customer's account; raises `NotFound`."""
        account = self.get(txn, customer)
        if account is None:
            raise NotFound(f"customer {customer!r} does not exist")
        return account

    def add(self, txn: Txn, customer: CustomerId, account: Account) -> None:
        """Create a customer; raises `Conflict` when the id is taken."""
        if not txn.put(customer.encode(), _encode(account), db=self._table, overwrite=False):
            raise Conflict(f"customer {customer!r} exists already")

    def post(
        self,
        txn: Txn,
        customer: CustomerId,
        account: Account,
        entries: Sequence[Entry],
        number: int,
        policy: BlockPolicy,
    ) -> Account:
        """Apply entries to a customer's row and write both; return the account after them.

        ``account`` is the row as read in this transaction, ``number`` the journal record's. The
        caller has looked up names that were used before (`Ledger.find`).
        """
        for index, entry in enumerate(entries):
            check_entry(entry)
            account = apply(account, entry)
            self._ledger.append(txn, customer, number, index, entry)
            if entry.source != CALL_SOURCE:
                self._ledger.name(txn, customer, number, index, entry)
        account = _mark(account, entries[-1], policy) if entries else account
        txn.put(customer.encode(), _encode(account), db=self._table)
        return account

    def put(self, txn: Txn, customer: CustomerId, account: Account) -> None:
        """Write what no ledger entry stands for: plan, status, limits; never a balance."""
        txn.put(customer.encode(), _encode(account), db=self._table)

    def items(self, txn: Txn) -> Iterator[tuple[CustomerId, Account]]:
        """Yield every customer with its account, by id."""
        for key, row in txn.cursor(db=self._table):
            yield CustomerId(bytes(key).decode()), _decode(row)


def _mark(account: Account, last: Entry, policy: BlockPolicy) -> Account:
    """Set or clear the block mark after an operation; a mark once set is not set anew."""
    if account.blocked_at is None:
        if last.kind in _CHARGES and policy.blocks(account):
            return msgspec.structs.replace(account, blocked_at=last.at)
    elif last.kind == EntryKind.GRANT and policy.clears(account):
        return msgspec.structs.replace(account, blocked_at=None)
    return account
