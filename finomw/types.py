"""The glossary as types: ids, units, and the enumerations whose numbers go to disk.

Ids are ``NewType``: a customer id cannot be passed where a hold id is wanted. Units are plain
aliases, because they are computed with: the alias says what the number counts. Numbers of an
``IntEnum`` are frozen: they stand in journals and ledgers, so one is added, never changed.
"""

from __future__ import annotations

from enum import IntEnum
from typing import NewType, TypeAlias

CustomerId = NewType("CustomerId", str)
"""Who pays: 1 to ``limits.CUSTOMER_ID_BYTES`` bytes of printable UTF-8."""

KeyHash = NewType("KeyHash", bytes)
"""SHA-256 of a bearer token, 32 bytes. The token itself is never stored."""

PlanName = NewType("PlanName", str)
RouteName = NewType("RouteName", str)

WorkerId = NewType("WorkerId", int)
"""From the node's counter, one for each opened engine, never used again; 0 is nobody."""

HoldId = NewType("HoldId", str)
"""``<node>-<worker>-<number>``; unique for ever, see ``store/holds.py``."""

Micros: TypeAlias = int
"""Whole micro-dollars, within ``limits.MICROS_MAX`` either way."""

Lsn: TypeAlias = int
"""A position in the node's journal, in bytes from its beginning."""

UnixMicroseconds: TypeAlias = int
"""A point in time: microseconds since 1970-01-01T00:00:00Z, from ``clock``."""

Counts: TypeAlias = dict[str, int]
"""Meter name to how many units: each count is an integer from 0 to ``limits.COUNT_MAX``."""


class Fund(IntEnum):
    """Where money comes from."""

    WALLET = 1
    CREDIT = 2


class EntryKind(IntEnum):
    """What a ledger entry is."""

    GRANT = 1
    HOLD = 2
    HOLD_RELEASE = 3
    SETTLEMENT = 4
    REFUND = 5
    ADJUSTMENT = 6


class Status(IntEnum):
    """Whether a customer may call at all; apart from the block mark, and no grant changes it."""

    ACTIVE = 1
    SUSPENDED = 2
    CLOSED = 3


class HoldState(IntEnum):
    """What became of a hold."""

    OPEN = 1
    SETTLED = 2
    RELEASED = 3


class OnCrash(IntEnum):
    """What becomes of a hold whose worker died.

    ``RELEASE`` gives back what never started and settles a started answer at its hold.
    """

    RELEASE = 1
    SETTLE = 2


class UsageStatus(IntEnum):
    """How the counts of a settlement came to be known."""

    KNOWN = 1
    MISSING = 2
    INVALID = 3
    PARTIAL = 4


class Refusal(IntEnum):
    """Why a hold was not made. An expected outcome, so a value and not an exception."""

    UNKNOWN_CUSTOMER = 1
    SUSPENDED = 2
    BLOCKED = 3
    EXHAUSTED = 4
    HELD = 5
