"""The story of a call's money: hold, then settle or release.

Each step is one transaction and one journal record. What comes back carries the LSN behind that
record: a caller who lets something be seen waits until the durable LSN has passed it.
"""

from __future__ import annotations

from typing import NamedTuple

from finomw import limits
from finomw.engine import records
from finomw.engine.apply import Earlier
from finomw.engine.engine import Engine, Executed
from finomw.errors import InvalidValue, InvariantBroken
from finomw.money.account import After
from finomw.types import (
    Counts,
    CustomerId,
    HoldId,
    KeyHash,
    Lsn,
    Micros,
    OnCrash,
    Refusal,
    RouteName,
    UsageStatus,
)


class HoldRequest(NamedTuple):
    """What a call wants set aside.

    ``amount`` is the worst-case price in micros, of the counts in ``ceiling``; ``buffer`` the
    configured default in micros; ``choice`` the value that selected the price list.
    """

    customer: CustomerId
    key: KeyHash
    route: RouteName
    amount: Micros
    ceiling: Counts
    buffer: Micros
    on_crash: OnCrash
    price_version: str
    choice: str = ""


class Held(NamedTuple):
    """An open hold of this worker."""

    hold: HoldId
    amount: Micros
    end: Lsn


class Ended(NamedTuple):
    """A hold that was settled or released: what was charged, and what that left."""

    charged: Micros
    account: After
    end: Lsn


def hold(engine: Engine, request: HoldRequest) -> Held | Refusal:
    """Set money aside for a call, or say why not. Raises `RecordingFailed`, `InvalidValue`."""
    _check_amount("hold", request.amount)
    worker, number = engine.worker, engine.next_hold_number()
    done = engine.execute(
        records.Hold(
            engine.clock.now(),
            worker,
            number,
            request.customer,
            request.route,
            request.amount,
            request.ceiling,
            request.buffer,
            request.on_crash,
            request.price_version,
            request.choice,
            request.key,
        )
    )
    if isinstance(done, Refusal):
        return done
    _, end = _executed(done)
    return Held(engine.store.holds.id_of(worker, number), request.amount, end)


def start(engine: Engine, held: Held) -> Lsn:
    """Record that a streamed answer is about to begin: a crash then settles, not releases."""
    _, end = _executed(engine.execute(records.Start(engine.clock.now(), held.hold)))
    return end


def settle(
    engine: Engine,
    hold: HoldId,
    price: Micros,
    counts: Counts,
    usage: UsageStatus,
    note: str = "",
) -> Ended:
    """Charge a call's true price in micros and give the rest of its hold back.

    A price above the hold is charged whole, without buffer check, and marked in the ledger. It
    takes nothing that other calls hold: they have it already. Raises `NotFound` for a hold that
    has ended, `RecordingFailed`.
    """
    _check_amount("price", price)
    command = records.Settle(engine.clock.now(), hold, price, counts, usage, note)
    account, end = _money(engine.execute(command))
    return Ended(price, account, end)


def release(engine: Engine, hold: HoldId, note: str = "") -> Ended:
    """Give a hold back whole. Raises `NotFound` for a hold that has ended, `RecordingFailed`."""
    account, end = _money(engine.execute(records.Release(engine.clock.now(), hold, note)))
    return Ended(0, account, end)


def _check_amount(field: str, amount: Micros) -> None:
    if not 0 <= amount <= limits.AMOUNT_MAX:
        raise InvalidValue(f"{field}: {amount} micros is not from 0 to {limits.AMOUNT_MAX}")


def _executed(done: Executed | Refusal | Earlier) -> Executed:
    if not isinstance(done, Executed):
        raise InvariantBroken(f"a command of a call came back as {done}")
    return done


def _money(done: Executed | Refusal | Earlier) -> tuple[After, Lsn]:
    result, end = _executed(done)
    if result is None:
        raise InvariantBroken("a command about money left no account behind")
    return result, end
