"""Reads an answer that is one JSON text: when all of it is there, or by its end if it is large.

Up to the rule's bound the parts are kept as they came and joined once. A larger text is not kept:
``too_large: tail`` keeps its last ``limits.TAIL`` bytes, and reads the members that end in them.
"""

from __future__ import annotations

import msgspec

from finomw import limits
from finomw.metering.allowance import Allowance, NotInline
from finomw.metering.guard import Guard
from finomw.metering.meter import Meter
from finomw.metering.usage import Usage
from finomw.types import UsageStatus


class TextReader:
    """The reader of one JSON text; ``most`` is the bound in bytes."""

    __slots__ = ("_meter", "_most", "_parts", "_reads_tail", "_size", "_tail", "_usage")

    ended = False
    """A JSON text has no end marker."""
    late = False

    def __init__(self, meter: Meter, most: int, reads_tail: bool) -> None:
        self._meter = meter
        self._most = most
        self._reads_tail = reads_tail
        self._parts: list[bytes | memoryview] = []
        self._size = 0
        self._tail = bytearray()
        self._usage: Usage | None = None

    @property
    def waits(self) -> bool:
        """Whether the text has to wait as a whole: it has not become too large to be kept."""
        return self._size <= self._most

    def feed(self, chunk: bytes | memoryview) -> bool:
        """Keep a part."""
        self._size += len(chunk)
        if self.waits:
            self._parts.append(chunk)
        elif self._reads_tail:
            for part in (*self._parts, chunk):
                self._tail += part[-limits.TAIL :]
                if len(self._tail) > 2 * limits.TAIL:
                    del self._tail[: -limits.TAIL]
        if not self.waits:
            self._parts.clear()
        return False

    def finish(self, *, complete: bool = True) -> Usage:
        """Read the text; one that was cut off says nothing, unless all of it had come."""
        if not self.waits and not complete:
            return self._meter.unread()
        try:
            usage = self._usage or self._read()
        except NotInline:
            usage = self._meter.lost()
        known = complete or usage.status is UsageStatus.KNOWN
        return usage if known else self._meter.unread()

    async def read_apart(self, guard: Guard, last: bool) -> None:
        """Where all of it has come, read it; in the helper process if it may take long."""
        if not last:
            return
        try:
            self._usage = self._read()
        except NotInline:
            job = self._meter.job("json" if self.waits else "tail")
            reply = await guard.ask(job, self._kept())
            self._usage = self._meter.lost()
            if reply is not None:
                self._usage = msgspec.json.decode(reply, type=Usage)

    def _read(self) -> Usage:
        read = self._meter.read_json if self.waits else self._meter.read_tail
        return read(self._kept(), Allowance())

    def _kept(self) -> bytes:
        return b"".join(self._parts) if self.waits else bytes(self._tail[-limits.TAIL :])

    def lost(self) -> Usage:
        """Return the usage of a text that could not be read."""
        return self._meter.lost()
