"""The journal's records: every command that changes the node, complete with its inputs.

A record's body is msgpack ``[command, result]``. The command carries every input its decision
took from outside the store (price, buffer, time, …), so that replay reads neither the
configuration nor the clock; the result is what the store's rules made of it, and replay must
reach it again. Tags are frozen numbers; a new field goes at the end, with a default.
"""

from __future__ import annotations

from typing import TypeAlias

import msgspec

from finomw.money.account import After
from finomw.types import (
    Counts,
    CustomerId,
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
    """An engine was opened for writing; its id is the counter's next."""

    worker: WorkerId
    pid: int


class AddCustomer(Command, frozen=True, tag=2):
    """A new customer with an empty account."""

    customer: CustomerId
    plan: PlanName
    name: str
    buffer: Micros | None


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
    """Credit given."""

    customer: CustomerId
    amount: Micros
    source: str
    source_id: str
    note: str


class Hold(Command, frozen=True, tag=6):
    """Money set aside for a call. ``buffer`` is the configured default, in micros."""

    worker: WorkerId
    number: int
    customer: CustomerId
    route: RouteName
    amount: Micros
    ceiling: Counts
    buffer: Micros
    on_crash: OnCrash
    price_version: str
    choice: str
    key: KeyHash


class Start(Command, frozen=True, tag=7):
    """The first part of a streamed answer is about to leave."""

    hold: HoldId


class Settle(Command, frozen=True, tag=8):
    """A call's true price replaces its hold."""

    hold: HoldId
    price: Micros
    counts: Counts
    usage: UsageStatus
    note: str


class Release(Command, frozen=True, tag=9):
    """A hold goes back whole."""

    hold: HoldId
    note: str


AnyCommand: TypeAlias = (
    OpenWorker | AddCustomer | CreateKey | RevokeKey | Grant | Hold | Start | Settle | Release
)

_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(tuple[AnyCommand, After | None]).decode


def encode(command: AnyCommand, result: After | None) -> bytes:
    """Return a record's body."""
    return _encode((command, result))


def decode(body: bytes) -> tuple[AnyCommand, After | None]:
    """Read a record's body; raises `msgspec.MsgspecError` for anything else."""
    return _decode(body)
