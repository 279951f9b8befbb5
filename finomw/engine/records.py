"""The journal's records: every command that changes the node, complete with its inputs.

A record's body is msgpack ``[command, result]``. The command carries every input its decision
took from outside the store (price, buffer, time, period, …), so that replay reads neither the
configuration nor the clock nor the time zones; the result is what the store's rules made of it,
and replay must reach it again. Tags are frozen numbers; a new field goes at the end, with a
default.
"""

from __future__ import annotations

from typing import TypeAlias

import msgspec

from finomw.money.account import After
from finomw.money.funding import Parts
from finomw.types import (
    Counts,
    CustomerId,
    Fund,
    HoldId,
    KeyHash,
    Micros,
    OnCrash,
    PlanName,
    RouteName,
    UnixMicroseconds,
    UsageStatus,
    WorkerId,
)


class Command(msgspec.Struct, frozen=True, array_like=True):
    """What every record has first: when it was decided."""

    at: UnixMicroseconds


class OpenWorker(Command, frozen=True, tag=1):
    """An engine was opened for writing; its id is above all that were given out."""

    worker: WorkerId
    pid: int


class AddCustomer(Command, frozen=True, tag=2):
    """A new customer with an empty account, subscribed to a plan."""

    customer: CustomerId
    plan: PlanName
    name: str
    buffer: Micros | None
    zone: str = "UTC"


class CreateKey(Command, frozen=True, tag=3):
    """A new key, by its token's hash."""

    key: KeyHash
    customer: CustomerId
    last_four: str
    name: str


class RevokeKey(Command, frozen=True, tag=4):
    """A key that is refused from now on."""

    key: KeyHash


class Grant(Command, frozen=True, tag=5):
    """Credit given to the wallet; on the fund ``CREDIT`` a payment of what is owed."""

    customer: CustomerId
    amount: Micros
    source: str
    source_id: str
    note: str
    fund: Fund = Fund.WALLET
    expires: UnixMicroseconds | None = None


class Hold(Command, frozen=True, tag=6):
    """Money and quota set aside. ``buffer`` is the configured default, in micros.

    ``number`` is the worker's next; for an explicit hold, what its record's number is added to.
    ``used`` and ``others`` are the usage and the open holds' counts that it was priced from;
    ``settle_price`` is the price where the ceiling is exactly what will be used.
    """

    worker: WorkerId
    number: int
    customer: CustomerId
    key: KeyHash
    route: RouteName
    plan: PlanName
    price_version: str
    choice: str
    parts: Parts
    ceiling: Counts
    counted: Counts
    buffer: Micros
    on_crash: OnCrash
    cap: bool
    used: Counts
    others: Counts
    expires: UnixMicroseconds | None = None
    resource: str = ""
    settle_price: Micros | None = None


class Start(Command, frozen=True, tag=7):
    """The first part of a streamed answer is about to leave."""

    hold: HoldId


class Settle(Command, frozen=True, tag=8):
    """A call's true price replaces its hold.

    ``price`` is in micros, of what no quota of units covers, at the usage ``used``. With
    ``whole``, all that is held is charged, whatever the counts.
    """

    hold: HoldId
    price: Micros
    counts: Counts
    usage: UsageStatus
    note: str
    used: Counts = {}
    whole: bool = False


class Release(Command, frozen=True, tag=9):
    """A hold goes back whole."""

    hold: HoldId
    note: str


class Suspend(Command, frozen=True, tag=10):
    """New calls are refused, whatever the balance."""

    customer: CustomerId
    reason: str


class Resume(Command, frozen=True, tag=11):
    """A suspension ends."""

    customer: CustomerId
    reason: str


class Refund(Command, frozen=True, tag=12):
    """A grant, or a part of it, is taken back."""

    customer: CustomerId
    amount: Micros
    source: str
    source_id: str
    of_source: str
    of_source_id: str
    note: str


class Adjust(Command, frozen=True, tag=13):
    """Reconciliation explains a difference of ``amount`` micros between ledger and account.

    ``found`` is what the account said, the one value that replay takes instead of computing it:
    the balance, or what is owed on the credit.
    """

    customer: CustomerId
    fund: Fund
    amount: Micros
    found: Micros
    note: str


class SetTerms(Command, frozen=True, tag=14):
    """What an owner agreed with a customer; ``None`` leaves a value as it is."""

    customer: CustomerId
    credit_limit: Micros | None
    buffer: Micros | None


class Subscribe(Command, frozen=True, tag=15):
    """A plan begins now: periods start anew, quotas of before are gone."""

    customer: CustomerId
    plan: PlanName
    zone: str


class Unsubscribe(Command, frozen=True, tag=16):
    """The customer has no plan: nothing has a price for them."""

    customer: CustomerId


class ChangePlan(Command, frozen=True, tag=17):
    """Another plan from now on; periods under way and their quotas go on."""

    customer: CustomerId
    plan: PlanName


class PeriodEnd(Command, frozen=True, tag=18):
    """A period of a quota ended and the next begins; ``quota`` is empty for the usage.

    ``ended`` is the start of the period that ended, ``None`` where there was none before.
    ``units`` is what the new period gives, what rolls over included.
    """

    customer: CustomerId
    quota: str
    ended: UnixMicroseconds | None
    start: UnixMicroseconds
    end: UnixMicroseconds | None
    meters: tuple[str, ...]
    money: bool
    units: int


class Extend(Command, frozen=True, tag=19):
    """An explicit hold lives on, and may be for more.

    ``wallet`` and ``credit`` are the micros added to its parts; ``ceiling`` and ``counted`` replace
    those it had. ``buffer``, ``used`` and ``others`` are as for `Hold`.
    """

    hold: HoldId
    expires: UnixMicroseconds
    wallet: Micros
    credit: Micros
    ceiling: Counts
    counted: Counts
    buffer: Micros
    used: Counts
    others: Counts


class Expire(Command, frozen=True, tag=20):
    """What is unspent of a grant, and not held by a call, is taken back at its date."""

    customer: CustomerId
    source: str
    source_id: str


class DeleteCustomer(Command, frozen=True, tag=21):
    """The account is closed at zero; with ``erase``, what names the customer goes too."""

    customer: CustomerId
    erase: bool


class Step(Command, frozen=True, tag=22):
    """A call under way is settled up to here.

    ``price`` is that of all the counts so far, in micros, as `Settle` has it. Without ``charge``
    they are only recorded, because their price may fall yet: the end charges them, or the sweep.
    """

    hold: HoldId
    price: Micros
    counts: Counts
    usage: UsageStatus
    note: str
    used: Counts
    charge: bool


AnyCommand: TypeAlias = (
    OpenWorker
    | AddCustomer
    | CreateKey
    | RevokeKey
    | Grant
    | Hold
    | Start
    | Settle
    | Release
    | Suspend
    | Resume
    | Refund
    | Adjust
    | SetTerms
    | Subscribe
    | Unsubscribe
    | ChangePlan
    | PeriodEnd
    | Extend
    | Expire
    | DeleteCustomer
    | Step
)

_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(tuple[AnyCommand, After | None]).decode


def encode(command: AnyCommand, result: After | None) -> bytes:
    """Return a record's body."""
    return _encode((command, result))


def decode(body: bytes) -> tuple[AnyCommand, After | None]:
    """Read a record's body; raises `msgspec.MsgspecError` for anything else."""
    return _decode(body)
