"""Counts what passes in a WebSocket, message by message, in one direction.

A message adds a fixed count, its size in bytes, or what a jq program reads in it, if it is JSON:
in a text or a binary message alike. How the counts of programs come together is the rule's
``merge``. Where they are summed, a connection in which none was said has used 0; a total that was
never said is missing.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from finomw.config.values import BYTES
from finomw.errors import InvalidValue
from finomw.metering.allowance import Allowance, NotInline
from finomw.metering.counts import judge
from finomw.metering.documents import Document
from finomw.metering.guard import Guard
from finomw.metering.meter import Meter
from finomw.metering.splits import Outcomes
from finomw.metering.tally import Merge
from finomw.types import UsageStatus


class MessageMeter:
    """The meters of one direction, compiled once.

    ``spec`` has for each a fixed count, ``BYTES`` or a jq program. Raises `InvalidValue`, naming
    the meter, where one cannot be compiled.
    """

    __slots__ = ("_constants", "_meter", "_sized", "_sums")

    def __init__(self, spec: Mapping[str, int | str], merge: Merge) -> None:
        self._constants = {name: each for name, each in spec.items() if isinstance(each, int)}
        for name, count in self._constants.items():
            if isinstance(judge(count), UsageStatus):
                raise InvalidValue(f"{name}: {count} is not a count")
        self._sized = tuple(name for name, each in spec.items() if each == BYTES)
        programs = {
            name: each for name, each in spec.items() if isinstance(each, str) and each != BYTES
        }
        self._meter = Meter(programs, merge) if programs else None
        self._sums = merge == "sum"

    def tally(self) -> MessageTally:
        """Return an empty tally for the messages of one connection."""
        return MessageTally(self._constants, self._sized, self._meter, self._sums)


class MessageTally:
    """What the messages of one connection came to so far."""

    __slots__ = ("_bytes", "_constants", "_messages", "_sized", "_sums", "_tally")

    def __init__(
        self,
        constants: Mapping[str, int],
        sized: tuple[str, ...],
        meter: Meter | None,
        sums: bool,
    ) -> None:
        self._constants = constants
        self._sized = sized
        self._sums = sums
        self._tally = None if meter is None else meter.tally()
        self._messages = 0
        self._bytes = 0

    async def take(self, message: bytes, guard: Guard) -> None:
        """Count one more message; it is read in the helper process where that may take long."""
        self._messages += 1
        self._bytes += len(message)
        if self._tally is None:
            return
        try:
            self._tally.take(Document(message, Allowance(), self._tally.fields))
        except NotInline:
            await self._tally.take_apart(message, guard)

    def outcomes(self) -> Outcomes:
        """Return what is known of each meter."""
        outcomes: Outcomes = {
            **{name: judge(each * self._messages) for name, each in self._constants.items()},
            **{name: judge(self._bytes) for name in self._sized},
        }
        if self._tally is not None:
            for name, outcome in self._tally.outcomes().items():
                unsaid = self._sums and outcome is UsageStatus.MISSING
                outcomes[name] = 0 if unsaid else outcome
        return outcomes


class Both(NamedTuple):
    """The tallies of both directions of one connection."""

    receive: MessageTally
    send: MessageTally

    def outcomes(self) -> Outcomes:
        """Return what is known of each meter; one that counts in both directions is a sum."""
        outcomes = dict(self.receive.outcomes())
        for name, outcome in self.send.outcomes().items():
            outcomes[name] = _sum(outcomes[name], outcome) if name in outcomes else outcome
        return outcomes


def _sum(one: int | UsageStatus, other: int | UsageStatus) -> int | UsageStatus:
    for outcome in (one, other):
        if outcome is UsageStatus.INVALID:
            return outcome
    if isinstance(one, UsageStatus):
        return other
    return one if isinstance(other, UsageStatus) else judge(one + other)
