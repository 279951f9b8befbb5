"""The story of a call's money: hold, then settle or release.

Each step is one transaction and one journal record. The price is worked out inside it, because
quotas and tiered prices depend on what the customer has used by then; the record carries the price
and what it was worked out from. What comes back carries the LSN behind the record: a caller who
lets something be seen waits until the durable LSN has passed it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, TypeAlias

from finomw.engine import records
from finomw.engine.apply import Earlier
from finomw.engine.due import Due, due_before_hold
from finomw.engine.engine import Engine, Executed
from finomw.errors import Conflict, InvalidValue, InvariantBroken, RecordingFailed
from finomw.money.account import After
from finomw.money.entries import check_amount
from finomw.money.funding import Available, uncovered, walk
from finomw.money.steps import price_of
from finomw.money.terms import WALLET_ONLY, Terms
from finomw.store.env import Txn
from finomw.store.holds import NOBODY, HoldRow
from finomw.types import (
    Counts,
    CustomerId,
    HoldId,
    KeyHash,
    Lsn,
    Micros,
    OnCrash,
    PlanName,
    Refusal,
    RouteName,
    Status,
    UnixMicroseconds,
    UsageStatus,
    WorkerId,
)

Worst: TypeAlias = Callable[[Counts, Counts, Counts], Micros]
"""Highest price of up to these counts, given the usage so far and what other holds may add."""

Pricer: TypeAlias = Callable[[Counts, Counts], Micros]
"""Price of these counts, given the usage so far."""

_DUE_MAX = 1_000
"""Commands that one hold may find due; more means that they do not help."""


class Reservation(NamedTuple):
    """What makes a hold explicit: it belongs to no worker and ends by its expiry."""

    expires: UnixMicroseconds
    resource: str = ""


class HoldRequest(NamedTuple):
    """What a call wants set aside.

    ``amount`` is the worst-case price in micros of the counts in ``ceiling``, or how to work it
    out from what quotas leave; ``buffer`` the configured default in micros; ``choice`` the value
    that selected the price list; ``counted`` the meters whose usage the price depends on;
    ``settle`` works out the price where the ceiling is what will be used: then a crash settles
    at that price, and not at the hold.
    """

    customer: CustomerId
    key: KeyHash
    route: RouteName
    amount: Micros | Worst
    ceiling: Counts
    buffer: Micros
    on_crash: OnCrash
    price_version: str
    choice: str = ""
    plan: PlanName = PlanName("")
    terms: Terms = WALLET_ONLY
    counted: tuple[str, ...] = ()
    cap: bool = False
    reservation: Reservation | None = None
    settle: Pricer | None = None


class Held(NamedTuple):
    """An open hold: ``amount`` micros of wallet and credit."""

    hold: HoldId
    amount: Micros
    end: Lsn


class Ended(NamedTuple):
    """A hold that was settled or released: what was charged, and what that left."""

    charged: Micros
    account: After
    end: Lsn


def hold(engine: Engine, request: HoldRequest) -> Held | Refusal:
    """Set money and quota aside, or say why not. Raises `RecordingFailed`, `InvalidValue`.

    What is due first (a period's end, a grant's expiry) is done first, in its own records. The hold
    of a request is claimed: whoever made it ends it, or says that nobody will by `abandon`.
    """
    if request.reservation:
        return _hold(engine, request, NOBODY, engine.directory.node.id_base)
    worker, number = engine.worker, engine.next_hold_number()
    claim = engine.store.holds.id_of(worker, number)
    # Before there is a row: what is open and not claimed may be ended at any time.
    engine.claims.add(claim)
    done: Held | Refusal | None = None
    try:
        done = _hold(engine, request, worker, number)
    finally:
        if not isinstance(done, Held):
            engine.claims.discard(claim)
    return done


def refusal(engine: Engine, request: HoldRequest) -> Refusal | None:
    """Say, by reading alone, why a hold would be refused; for when nothing can be recorded.

    ``None`` where it would not be, or where that cannot be known: something is due first, or other
    calls hold what is missing, which then may not end.
    """
    try:
        with engine.store.read() as txn:
            decided = _decide_hold(engine, txn, request, NOBODY, 0)
    except RecordingFailed:
        return None
    return decided if isinstance(decided, Refusal) and decided is not Refusal.HELD else None


def abandon(engine: Engine, hold: HoldId) -> None:
    """Say that no call will end a hold any more: the housekeeper does, as for a dead worker."""
    engine.claims.discard(hold)


def _hold(engine: Engine, request: HoldRequest, worker: WorkerId, number: int) -> Held | Refusal:
    """Hold, after what is due first."""
    amount = 0

    def decide(txn: Txn) -> records.Hold | Refusal | Due:
        nonlocal amount
        command = _decide_hold(engine, txn, request, worker, number)
        if isinstance(command, records.Hold):
            amount = command.parts.money
        return command

    for _ in range(_DUE_MAX):
        done = engine.decide(decide)
        if isinstance(done, Refusal):
            return done
        if isinstance(done, Executed):
            place = number + done.number if request.reservation else number
            return Held(engine.store.holds.id_of(worker, place), amount, done.end)
        if isinstance(done, Due):
            _carry_out(engine, done)
    raise InvariantBroken(f"what is due for customer {request.customer!r} stays due")


def _decide_hold(
    engine: Engine, txn: Txn, request: HoldRequest, worker: WorkerId, number: int
) -> records.Hold | Refusal | Due:
    """Walk the customer's sources inside the transaction."""
    store, terms = engine.store, request.terms
    account = store.accounts.get(txn, request.customer)
    if account is None or account.status is Status.CLOSED:
        return Refusal.UNKNOWN_CUSTOMER
    now = engine.clock.now()
    due = due_before_hold(store, txn, request.customer, account, terms, request.counted, now)
    if due.commands:
        return due
    usage = store.quotas.usage(txn, request.customer) if request.counted else None
    used = only(usage.used, request.counted) if usage else {}
    others = only(usage.held, request.counted) if usage else {}

    def worst(rest: Counts) -> Micros:
        amount = request.amount
        return checked("hold", amount if isinstance(amount, int) else amount(rest, used, others))

    available = []
    for quota in terms.quotas:
        row = store.quotas.get(txn, request.customer, quota.name)
        if row is not None:
            available.append(
                Available(quota.name, row.start, row.meters, row.money, row.left, row.held)
            )
    buffer = request.buffer if account.buffer is None else account.buffer
    parts = walk(account, buffer, terms.order, available, request.ceiling, worst)
    if isinstance(parts, Refusal):
        return parts
    rest = uncovered(parts, request.ceiling)
    settle_price = None if request.settle is None else request.settle(rest, used)
    reservation = request.reservation
    return records.Hold(
        now,
        worker,
        number,
        request.customer,
        request.key,
        request.route,
        request.plan,
        request.price_version,
        request.choice,
        parts,
        request.ceiling,
        only(rest, request.counted),
        request.buffer,
        request.on_crash,
        request.cap,
        used,
        others,
        reservation.expires if reservation else None,
        reservation.resource if reservation else "",
        settle_price,
    )


def _carry_out(engine: Engine, due: Due) -> None:
    """Do what is due; another worker may have been faster."""
    for command in due.commands:
        try:
            engine.execute(command)
        except (Conflict, InvalidValue):
            return


def start(engine: Engine, held: Held) -> Lsn:
    """Record that a streamed answer is about to begin: a crash then settles, not releases."""
    return executed(engine.execute(records.Start(engine.clock.now(), held.hold))).end


def settle(
    engine: Engine,
    hold: HoldId,
    price: Micros | Pricer,
    counts: Counts,
    usage: UsageStatus,
    note: str = "",
) -> Ended:
    """Charge a call's true price in micros and give the rest of its hold back.

    ``price`` is that of the counts which no quota covers, or how to work it out. Above the hold,
    it is charged whole and without buffer check, and marked in the ledger, unless the hold is
    capped. It takes nothing that other calls hold: they have it already. Raises `NotFound` for a
    hold that has ended, `RecordingFailed`.
    """

    def decide(txn: Txn) -> records.Settle:
        _, row = engine.store.holds.need(txn, hold)
        now = engine.clock.now()
        if isinstance(price, int):
            return records.Settle(now, hold, checked("price", price), counts, usage, note)
        used, amount = _price_now(engine, txn, row, price, uncovered(row.whole, counts))
        return records.Settle(now, hold, checked("price", amount), counts, usage, note, used)

    return _ended(engine, hold, engine.decide(decide))


def step(
    engine: Engine,
    hold: HoldId,
    price: Pricer,
    counts: Counts,
    usage: UsageStatus,
    note: str = "",
    *,
    record: bool = False,
) -> Ended:
    """Settle a call under way up to its counts so far, of which ``price`` gives the price.

    What is charged is that price less what earlier steps charged, so that steps cost together what
    the settlement at the end alone would. Where the price depends on the customer's usage it may
    fall yet, by this call or by others; so it may where the counts are no totals, which ``record``
    says: then they are only recorded, and charged by the end, or by the sweep if that never comes.
    Returns what was charged so far, in micros. Raises `NotFound`, `InvalidValue` for what has no
    price, `RecordingFailed`.
    """

    def decide(txn: Txn) -> records.Step:
        _, row = engine.store.holds.need(txn, hold)
        now, charge = engine.clock.now(), not (record or row.counted)
        used, amount = _price_now(engine, txn, row, price, uncovered(row.whole, counts))
        return records.Step(now, hold, checked("price", amount), counts, usage, note, used, charge)

    return _booked(executed(engine.decide(decide)))


def _price_now(
    engine: Engine, txn: Txn, row: HoldRow, price: Pricer, rest: Counts
) -> tuple[Counts, Micros]:
    """Return the price of what quotas leave, and the usage it was worked out from.

    That is the usage now; unless calls that began after this one, or a new period, moved it into
    a dearer tier: then it is the nearest usage that its hold reckoned with, and so covers.
    """
    counted = tuple(row.counted)
    if not counted:
        return {}, price(rest, {})
    usage = engine.store.quotas.usage(txn, row.customer)
    now = only(usage.used, counted) if usage else only({}, counted)
    most = {meter: row.used.get(meter, 0) + row.others.get(meter, 0) for meter in counted}
    near = {meter: min(max(now[meter], row.used.get(meter, 0)), most[meter]) for meter in counted}
    if near == now:
        return now, price(rest, now)
    return min(((now, price(rest, now)), (near, price(rest, near))), key=lambda each: each[1])


def settle_whole(
    engine: Engine, hold: HoldId, counts: Counts, usage: UsageStatus, note: str = ""
) -> Ended:
    """Charge all that is held, where the true price cannot be known."""
    command = records.Settle(engine.clock.now(), hold, 0, counts, usage, note, whole=True)
    return _ended(engine, hold, engine.execute(command))


def release(engine: Engine, hold: HoldId, note: str = "") -> Ended:
    """Give a hold back whole, or what steps left of it: what they charged stays charged.

    Raises `NotFound` for a hold that has ended, `RecordingFailed`.
    """

    def decide(txn: Txn) -> records.Release | records.Settle:
        _, row = engine.store.holds.need(txn, hold)
        now, last = engine.clock.now(), row.step
        if last is None or not last.booked:
            return records.Release(now, hold, note)
        price = price_of(row.parts, last.spent)
        return records.Settle(now, hold, price, last.booked, last.usage, note)

    return _ended(engine, hold, engine.decide(decide))


def checked(field: str, amount: Micros) -> Micros:
    """Return an amount in micros that may be recorded; raises `InvalidValue` for another."""
    check_amount(field, amount)
    return amount


def only(counts: Counts, meters: tuple[str, ...]) -> Counts:
    """Return the counts of some meters, each of them present."""
    return {meter: counts.get(meter, 0) for meter in meters}


def executed(done: Executed | Refusal | Earlier | Due) -> Executed:
    """Return what was carried out of a command that nothing can refuse."""
    if not isinstance(done, Executed):
        raise InvariantBroken(f"a command of a call came back as {done}")
    return done


def _ended(engine: Engine, hold: HoldId, done: Executed | Refusal | Earlier | Due) -> Ended:
    carried_out = executed(done)
    engine.claims.discard(hold)
    return _booked(carried_out)


def _booked(done: Executed) -> Ended:
    if done.result is None:
        raise InvariantBroken("a command about money left no account behind")
    return Ended(done.result.charged, done.result, done.end)
