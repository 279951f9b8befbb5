"""One function for each command: what it does to the store, and what came out.

The same functions run for a live call and in replay, so a decision cannot be made in two ways.
They read the store and the command and nothing else: no configuration, no clock. A refusal or a
repetition writes nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, TypeAlias

from msgspec.structs import replace

from finomw.engine import records
from finomw.errors import Conflict, InvalidValue, InvariantBroken
from finomw.money.account import Account, After, admit, after
from finomw.money.entries import CALL_SOURCE, CallDetail, Entry, check_entry
from finomw.store import Store
from finomw.store.accounts import BlockPolicy
from finomw.store.env import Txn
from finomw.store.holds import HoldRow
from finomw.store.keys import KeyRow
from finomw.store.ledger import LedgerRow
from finomw.types import EntryKind, Fund, HoldId, Micros, Refusal, UnixMicroseconds


class Earlier(NamedTuple):
    """The command was carried out before; this is the ledger entry it made then."""

    row: LedgerRow


Result: TypeAlias = After | Refusal | Earlier | None


class Apply:
    """Carries commands out on one store under one block policy."""

    def __init__(self, store: Store, policy: BlockPolicy) -> None:
        self._store = store
        self._policy = policy
        self._rules: dict[type, Callable[[Txn, Any, int], Result]] = {
            records.OpenWorker: self._open_worker,
            records.AddCustomer: self._add_customer,
            records.CreateKey: self._create_key,
            records.RevokeKey: self._revoke_key,
            records.Grant: self._grant,
            records.Hold: self._hold,
            records.Start: self._start,
            records.Settle: self._settle,
            records.Release: self._release,
        }

    def __call__(self, txn: Txn, command: records.AnyCommand, number: int) -> Result:
        """Carry out a command inside a write transaction, as journal record ``number``."""
        return self._rules[type(command)](txn, command, number)

    def _open_worker(self, txn: Txn, command: records.OpenWorker, _number: int) -> None:
        meta = self._store.meta
        if command.worker != meta.last_worker(txn) + 1:
            raise InvariantBroken(f"worker {command.worker} is not the next one")
        meta.set_last_worker(txn, command.worker)

    def _add_customer(self, txn: Txn, command: records.AddCustomer, _number: int) -> After:
        account = Account(command.plan, command.at, command.name, buffer=command.buffer)
        self._store.accounts.add(txn, command.customer, account)
        return after(account)

    def _create_key(self, txn: Txn, command: records.CreateKey, _number: int) -> None:
        self._store.accounts.need(txn, command.customer)
        row = KeyRow(command.customer, command.at, command.last_four, command.name)
        self._store.keys.add(txn, command.key, row)

    def _revoke_key(self, txn: Txn, command: records.RevokeKey, _number: int) -> None:
        row = self._store.keys.get(txn, command.key)
        if row is None:
            raise InvariantBroken("the key to be revoked is not there")
        self._store.keys.put(txn, command.key, replace(row, revoked=command.at))

    def _grant(self, txn: Txn, command: records.Grant, number: int) -> After | Earlier:
        store = self._store
        account = store.accounts.need(txn, command.customer)
        if command.source == CALL_SOURCE:
            raise InvalidValue(f"source: {CALL_SOURCE!r} is kept for the entries of calls")
        entry = Entry(
            EntryKind.GRANT,
            Fund.WALLET,
            command.amount,
            command.source,
            command.source_id,
            command.at,
            command.note,
        )
        check_entry(entry)
        row = store.ledger.find(txn, command.customer, command.source, command.source_id)
        if row is not None:
            _check_same(row.entry, entry)
            return Earlier(row)
        return after(
            store.accounts.post(txn, command.customer, account, [entry], number, self._policy)
        )

    def _hold(self, txn: Txn, command: records.Hold, number: int) -> After | Refusal:
        store = self._store
        account = store.accounts.get(txn, command.customer)
        if account is None:
            return Refusal.UNKNOWN_CUSTOMER
        buffer = command.buffer if account.buffer is None else account.buffer
        refusal = admit(account, command.amount, buffer)
        if refusal is not None:
            return refusal
        hold = store.holds.id_of(command.worker, command.number)
        row = HoldRow(
            command.customer,
            command.route,
            command.amount,
            command.ceiling,
            command.on_crash,
            command.at,
            command.price_version,
            command.choice,
        )
        store.holds.put(txn, store.holds.place_of(hold), row)
        entries = _some(_call_entry(EntryKind.HOLD, -command.amount, hold, command.at))
        return after(
            store.accounts.post(txn, command.customer, account, entries, number, self._policy)
        )

    def _start(self, txn: Txn, command: records.Start, _number: int) -> None:
        place, row = self._store.holds.need(txn, command.hold)
        self._store.holds.put(txn, place, replace(row, started=True))

    def _settle(self, txn: Txn, command: records.Settle, number: int) -> After:
        row = self._take(txn, command.hold)
        detail = CallDetail(
            row.route,
            command.counts,
            command.usage,
            row.price_version,
            row.choice,
            max(0, command.price - row.amount),
        )
        entries = _some(_call_entry(EntryKind.HOLD_RELEASE, row.amount, command.hold, command.at))
        settlement = _call_entry(EntryKind.SETTLEMENT, -command.price, command.hold, command.at)
        entries.append(replace(settlement, note=command.note, call=detail))
        return self._post(txn, row, entries, number)

    def _release(self, txn: Txn, command: records.Release, number: int) -> After:
        row = self._take(txn, command.hold)
        back = _call_entry(EntryKind.HOLD_RELEASE, row.amount, command.hold, command.at)
        return self._post(txn, row, _some(replace(back, note=command.note)), number)

    def _take(self, txn: Txn, hold: HoldId) -> HoldRow:
        """Take a hold out of the open ones, to be ended."""
        place, row = self._store.holds.need(txn, hold)
        self._store.holds.remove(txn, place)
        return row

    def _post(self, txn: Txn, row: HoldRow, entries: list[Entry], number: int) -> After:
        accounts = self._store.accounts
        account = accounts.need(txn, row.customer)
        return after(accounts.post(txn, row.customer, account, entries, number, self._policy))


def _call_entry(kind: EntryKind, amount: Micros, hold: HoldId, at: UnixMicroseconds) -> Entry:
    """Return an entry of a call; its source id is ``<hold>/<step>/<kind>/<fund>``."""
    source_id = f"{hold}/1/{kind.name.lower()}/wallet"
    return Entry(kind, Fund.WALLET, amount, CALL_SOURCE, source_id, at)


def _some(entry: Entry) -> list[Entry]:
    """Return the entry in a list, or nothing for an amount of 0, which is no entry."""
    return [entry] if entry.amount else []


def _check_same(found: Entry, wanted: Entry) -> None:
    """Raise `Conflict` when an entry's name was used before for something else."""
    for field in ("kind", "fund", "amount", "note"):
        before, now = getattr(found, field), getattr(wanted, field)
        if before != now:
            name = f"{wanted.source}/{wanted.source_id}"
            raise Conflict(f"{name} was used before with {field} {before!r}, not {now!r}")
