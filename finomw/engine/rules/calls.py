"""The rules of a call: hold, start, settle or release; and of holds that outlive a request.

A hold takes from quotas, wallet and credit what its parts say; its ending gives back what was not
used to where it came from. The counts that tiered prices depend on move in the same transaction.
"""

from __future__ import annotations

from typing import NamedTuple

from msgspec.structs import replace

from finomw import limits
from finomw.engine import records
from finomw.errors import InvalidValue, InvariantBroken
from finomw.money import steps
from finomw.money.account import Account, After, after
from finomw.money.entries import CALL_SOURCE, KIND_NAMES, CallDetail, Entry
from finomw.money.funding import Spent, admit, divide_more, spend, uncovered
from finomw.store import Store
from finomw.store.accounts import BlockPolicy
from finomw.store.env import Txn
from finomw.store.holds import NOBODY, HoldRow, Step
from finomw.types import (
    Counts,
    CustomerId,
    EntryKind,
    Fund,
    HoldId,
    HoldState,
    Micros,
    Refusal,
    UnixMicroseconds,
)


class _Taken(NamedTuple):
    """An open hold about to end, and its customer's account."""

    place: bytes
    row: HoldRow
    account: Account


class CallRules:
    """Rules over the holds of one store."""

    def __init__(self, store: Store, policy: BlockPolicy) -> None:
        self._store = store
        self._policy = policy

    def hold(self, txn: Txn, command: records.Hold, number: int) -> After | Refusal:
        """Set the parts aside if the customer may start a call."""
        store, parts = self._store, command.parts
        account = store.accounts.get(txn, command.customer)
        if account is None:
            return Refusal.UNKNOWN_CUSTOMER
        buffer = command.buffer if account.buffer is None else account.buffer
        refusal = admit(account, parts, buffer)
        if refusal is not None:
            return refusal
        # An explicit hold is numbered by its record, above what its command gives.
        place = number + command.number if command.worker == NOBODY else command.number
        hold = store.holds.id_of(command.worker, place)
        row = HoldRow(
            command.customer,
            command.key,
            command.route,
            command.plan,
            command.price_version,
            command.choice,
            parts,
            command.ceiling,
            command.counted,
            command.on_crash,
            command.cap,
            command.at,
            command.expires,
            command.resource,
            command.settle_price,
            command.used,
            command.others,
        )
        store.holds.put(txn, store.holds.place_of(hold), row)
        self._set_aside(txn, row)
        moved = (-parts.wallet, -parts.credit)
        entries = _entries(EntryKind.HOLD, hold, command.at, moved)
        account = replace(account, open_holds=account.open_holds + 1)
        return self._post(txn, command.customer, account, entries, number)

    def start(self, txn: Txn, command: records.Start, _number: int) -> None:
        """Mark a hold as started."""
        place, row = self._store.holds.need(txn, command.hold)
        self._store.holds.put(txn, place, replace(row, started=True))

    def extend(self, txn: Txn, command: records.Extend, number: int) -> After | Refusal:
        """Move an explicit hold's expiry, never back, and set more aside for it."""
        store = self._store
        place, row, expires = store.holds.need_explicit(txn, command.hold)
        account = store.accounts.need(txn, row.customer)
        buffer = command.buffer if account.buffer is None else account.buffer
        more = command.wallet + command.credit
        divided = divide_more(account, buffer, row.parts.order, more)
        if isinstance(divided, Refusal):
            return divided
        if divided != (command.wallet, command.credit):
            raise InvariantBroken(f"hold {command.hold} is extended by {divided}")
        wallet, credit = row.parts.wallet + command.wallet, row.parts.credit + command.credit
        step = row.steps + 1
        extended = replace(
            row,
            parts=replace(row.parts, wallet=wallet, credit=credit),
            ceiling=command.ceiling,
            counted=command.counted,
            expires=max(expires, command.expires),
            used=command.used,
            others=command.others,
            steps=step,
        )
        store.holds.put(txn, place, extended)
        self._reckon(txn, row.customer, _sum(command.counted, row.counted, -1), {})
        moved = (-command.wallet, -command.credit)
        entries = _entries(EntryKind.HOLD, command.hold, command.at, moved, step=step)
        return self._post(txn, row.customer, account, entries, number)

    def settle(self, txn: Txn, command: records.Settle, number: int) -> After:
        """Charge the price, or all that is held, and give the rest back."""
        place, row, account = self._take(txn, command.hold)
        total = _spent(row, command)
        charged = total.wallet + total.credit
        spent = steps.beyond(row.spent, total)
        back = (row.parts.wallet, row.parts.credit)
        entries = _charges(row, command, back, spent)
        if command.whole:
            used = row.counted
        else:
            rest = uncovered(row.whole, command.counts)
            used = {meter: rest.get(meter, 0) for meter in row.counted}
        self._give_back(txn, row, spent.quotas, used)
        account = self._use_lots(txn, row, account, spent.wallet)
        settled = replace(
            row,
            state=HoldState.SETTLED,
            ended=command.at,
            charged=charged,
            counts=command.counts,
        )
        self._store.holds.end(txn, place, settled)
        return self._post(txn, row.customer, account, entries, number)._replace(charged=charged)

    def step(self, txn: Txn, command: records.Step, number: int) -> After:
        """Charge what the running total costs more than was charged so far, or note the total."""
        store = self._store
        place, row = store.holds.need(txn, command.hold)
        if row.expires is not None:
            raise InvalidValue(f"hold {command.hold} is explicit: it is settled at once")
        if command.charge and row.counted:
            raise InvariantBroken(f"hold {command.hold}: its price may fall, but a step charges it")
        account = store.accounts.need(txn, row.customer)
        total = _spent(row, command) if command.charge else row.spent
        booked = row.step.booked if row.step is not None else {}
        stepped = replace(
            row,
            parts=steps.left(row.whole, total),
            steps=row.steps + command.charge,
            step=Step(
                command.counts,
                command.usage,
                command.note,
                command.price,
                command.used,
                command.counts if command.charge else booked,
                total,
            ),
        )
        store.holds.put(txn, place, stepped)
        charged = total.wallet + total.credit
        if not command.charge:
            return after(account, charged)
        spent = steps.beyond(row.spent, total)
        taken = (
            row.parts.wallet - stepped.parts.wallet,
            row.parts.credit - stepped.parts.credit,
        )
        still = tuple(part.amount for part in stepped.parts.quotas)
        self._use_quotas(txn, row, still, spent.quotas)
        account = self._use_lots(txn, row, account, spent.wallet)
        entries = _charges(row, command, taken, spent)
        return self._post(txn, row.customer, account, entries, number)._replace(charged=charged)

    def release(self, txn: Txn, command: records.Release, number: int) -> After:
        """Give everything back."""
        place, row, account = self._take(txn, command.hold)
        if row.step is not None and row.step.booked:
            raise InvariantBroken(f"hold {command.hold} is released, but steps charged of it")
        self._give_back(txn, row, (0,) * len(row.parts.quotas), {})
        released = replace(row, state=HoldState.RELEASED, ended=command.at, charged=0, counts={})
        self._store.holds.end(txn, place, released)
        back = (row.parts.wallet, row.parts.credit)
        entries = _entries(
            EntryKind.HOLD_RELEASE, command.hold, command.at, back, note=command.note
        )
        return self._post(txn, row.customer, account, entries, number)

    def _take(self, txn: Txn, hold: HoldId) -> _Taken:
        place, row = self._store.holds.need(txn, hold)
        account = self._store.accounts.need(txn, row.customer)
        return _Taken(place, row, replace(account, open_holds=account.open_holds - 1))

    def _set_aside(self, txn: Txn, row: HoldRow) -> None:
        """Take a hold's quota parts, and reckon with its counts."""
        quotas = self._store.quotas
        for part in row.parts.quotas:
            quota = quotas.get(txn, row.customer, part.quota)
            if quota is None or quota.start != part.start or quota.left < part.amount:
                raise InvariantBroken(f"quota {part.quota} has not {part.amount} left")
            held = replace(quota, held=quota.held + part.amount)
            quotas.put(txn, row.customer, part.quota, held)
        if row.counted:
            self._reckon(txn, row.customer, row.counted, {})

    def _give_back(self, txn: Txn, row: HoldRow, spent: tuple[int, ...], used: Counts) -> None:
        """Return a hold's quota parts, less what was spent, and count what was used.

        What a period that has ended gave is gone with it.
        """
        self._use_quotas(txn, row, (0,) * len(spent), spent)
        if row.counted:
            returned = {meter: -count for meter, count in row.counted.items()}
            self._reckon(txn, row.customer, returned, used)

    def _use_quotas(
        self, txn: Txn, row: HoldRow, still: tuple[int, ...], spent: tuple[int, ...]
    ) -> None:
        """Count what was spent of a hold's quota parts, of which it keeps ``still``."""
        quotas = self._store.quotas
        for part, kept, units in zip(row.parts.quotas, still, spent, strict=True):
            quota = quotas.get(txn, row.customer, part.quota)
            if quota is not None and quota.start == part.start:
                held = quota.held - part.amount + kept
                quota = replace(quota, held=held, used=quota.used + units)
                quotas.put(txn, row.customer, part.quota, quota)

    def _use_lots(self, txn: Txn, row: HoldRow, account: Account, wallet: Micros) -> Account:
        """Spend micros of the expiring grants."""
        if not account.lots or not wallet:
            return account
        emptied = self._store.grants.use(txn, row.customer, wallet)
        return replace(account, lots=account.lots - emptied)

    def _reckon(self, txn: Txn, customer: CustomerId, held: Counts, used: Counts) -> None:
        """Change what a customer's open holds may use, and what was used, by these counts.

        Usage stops at ``limits.MICROS_MAX``, which is far above any tier's bound: a count that no
        row can hold would keep every hold of the customer from ending.
        """
        quotas = self._store.quotas
        usage = quotas.usage(txn, customer)
        if usage is None:
            if held or used:
                raise InvariantBroken(f"no usage is counted for {customer!r}")
            return
        total = _sum(usage.used, used, 1)
        most = {meter: min(count, limits.MICROS_MAX) for meter, count in total.items()}
        usage = replace(usage, held=_sum(usage.held, held, 1), used=most)
        if max(usage.held.values(), default=0) > limits.MICROS_MAX:
            raise InvalidValue(f"open holds: may use more than {limits.MICROS_MAX} units")
        if min((*usage.held.values(), *usage.used.values()), default=0) < 0:
            raise InvariantBroken(f"usage of {customer!r} fell below 0: {usage}")
        quotas.put_usage(txn, customer, usage)

    def _post(
        self, txn: Txn, customer: CustomerId, account: Account, entries: list[Entry], number: int
    ) -> After:
        accounts = self._store.accounts
        return after(accounts.post(txn, customer, account, entries, number, self._policy))


def _spent(row: HoldRow, command: records.Settle | records.Step) -> Spent:
    """Say what a settlement uses of its hold's parts, all that earlier steps used included."""
    parts = row.whole
    if isinstance(command, records.Settle) and command.whole:
        used = tuple(part.amount for part in parts.quotas)
        return steps.together(row.spent, Spent(used, parts.wallet, parts.credit, 0))
    price = command.price
    if row.cap:
        quota_money = sum(part.amount for part in parts.quotas if part.money)
        price = min(price, parts.money + quota_money)
    return steps.together(row.spent, spend(parts, command.counts, price))


def _charges(
    row: HoldRow,
    command: records.Settle | records.Step,
    back: tuple[Micros, Micros],
    spent: Spent,
) -> list[Entry]:
    """Return the entries of a settlement: micros out of the hold, and those that it charges.

    Their counts are those that no step before charged, so that each unit stands in the ledger once.
    """
    counts = command.counts
    if row.step is not None:
        # One that fell, by a meter that is wrong, is none at all: entries take nothing back.
        more = _sum(counts, row.step.booked, -1)
        counts = {meter: max(0, more.get(meter, 0)) for meter in counts}
    detail = CallDetail(
        row.route,
        counts,
        command.usage,
        row.price_version,
        row.choice,
        spent.overrun,
        sum(spent.quotas),
    )
    step = 1 if row.step is None and isinstance(command, records.Settle) else row.steps + 1
    hold, at, note = command.hold, command.at, command.note
    paid = (-spent.wallet, -spent.credit)
    entries = _entries(EntryKind.HOLD_RELEASE, hold, at, back, step=step)
    entries += _entries(EntryKind.SETTLEMENT, hold, at, paid, step=step, note=note, call=detail)
    return entries


def _entries(
    kind: EntryKind,
    hold: HoldId,
    at: UnixMicroseconds,
    moved: tuple[Micros, Micros],
    *,
    step: int = 1,
    note: str = "",
    call: CallDetail | None = None,
) -> list[Entry]:
    """Return a call's entries of one kind: what it moves of the wallet and of the credit.

    A source id is ``<hold>/<step>/<kind>/<fund>``. Nothing moved is no entry, but a settlement of
    nothing is one, of the wallet: so that every charged call stands in the ledger.
    """
    named = f"{hold}/{step}/{KIND_NAMES[kind]}"
    wallet, credit = moved
    entries: list[Entry] = []
    if wallet or (kind is EntryKind.SETTLEMENT and not credit):
        source_id = f"{named}/wallet"
        entries.append(Entry(kind, Fund.WALLET, wallet, CALL_SOURCE, source_id, at, note, call))
    if credit:
        source_id = f"{named}/credit"
        entries.append(Entry(kind, Fund.CREDIT, credit, CALL_SOURCE, source_id, at, note, call))
    return entries


def _sum(counts: Counts, other: Counts, sign: int) -> Counts:
    """Add counts to counts, or take them away; what is 0 is left out."""
    meters = {**counts, **other}
    total = {meter: counts.get(meter, 0) + sign * other.get(meter, 0) for meter in meters}
    return {meter: count for meter, count in total.items() if count}
