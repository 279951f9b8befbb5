"""Reads the usage of one stream of JSON texts while it passes.

A scanner finds the texts and the end marker of the format (``events.py``, ``lines.py``,
``elements.py``); the tally reads the texts. What is kept does not grow with the stream.

The chunk that completes the last text may lack the newline or blank line that the format asks for
after it, and a client may well not wait for that. So a chunk that ends with a brace has the text
under way looked at, if it may be the last. How much is read that way is bounded by what has come,
and the time so stays linear, in whatever pieces a stream comes.
"""

from __future__ import annotations

from typing import Final, Protocol

from finomw.metering.allowance import Allowance, NotInline
from finomw.metering.documents import Document
from finomw.metering.guard import Guard
from finomw.metering.tally import Tally
from finomw.metering.usage import Usage

_LOOKS: Final = 8
"""Bytes that may be read ahead of their line's end for each byte that came."""


class Scanner(Protocol):
    """Finds the JSON texts of a stream that comes in chunks, cut anywhere."""

    ended: bool
    """Whether the end marker has passed."""

    def feed(self, chunk: bytes) -> list[bytes]:
        """Read on; return the texts that this chunk completes."""

    def finish(self) -> list[bytes]:
        """Take the stream as ended; return what that completes."""

    @property
    def pending(self) -> int:
        """Bytes of the text under way if it may be whole, else 0."""

    @property
    def between(self) -> bool:
        """Whether no text is under way, so that another may follow."""

    def looks_last(self) -> bool:
        """Tell whether the text under way would end the stream if it were complete."""

    def is_last(self, data: bytes) -> bool:
        """Tell whether a text ends the stream."""


class StreamReader:
    """The reader of one stream."""

    __slots__ = ("_late", "_looks", "_tally", "ended", "scanner")

    waits = False

    def __init__(self, tally: Tally, scanner: Scanner) -> None:
        self._tally = tally
        self.scanner = scanner
        self._late: list[bytes] = []
        """Texts that may take too long to read here, and those that came after."""
        self._looks = 0
        self.ended = False

    def feed(self, chunk: bytes) -> bool:
        """Read on; return whether the end marker is in this chunk or was in an earlier one.

        Once it is true, this chunk and all that follow it must wait for the settlement: a client
        that has seen the marker is served.
        """
        for data in self.scanner.feed(chunk):
            self._take(data)
        self._looks += _LOOKS * len(chunk)
        pending = self.scanner.pending
        if 0 < pending <= self._looks and not self.ended and chunk:
            self._looks -= pending
            self.ended = self.scanner.looks_last()
        self.ended = self.ended or self.scanner.ended
        return self.ended

    def finish(self, *, complete: bool = True) -> Usage:  # noqa: ARG002 - the same for a stream
        """Take the stream as ended, however it ended, and return its usage.

        What has come of a last text is read as if it were whole; JSON that was cut off is none.
        """
        for data in self.scanner.finish():
            self._take(data)
        return self._tally.lost() if self._late else self._tally.usage()

    @property
    def deltas(self) -> int:
        """How many texts passed that said nothing about usage, and no error."""
        return self._tally.deltas

    @property
    def late(self) -> bool:
        """Whether something waits to be read apart."""
        return bool(self._late)

    def usage(self) -> Usage:
        """Return what is known so far."""
        return self._tally.usage()

    def lost(self) -> Usage:
        """Return the usage where the rest of the stream could not be read."""
        return self._tally.lost()

    async def read_apart(self, guard: Guard, last: bool) -> None:
        """Have read what may take long, and where the stream has ended, all that is left."""
        if last:
            for data in self.scanner.finish():
                self._take(data)
        while self._late:
            await self._tally.take_apart(self._late[0], guard)
            del self._late[0]

    def _take(self, data: bytes) -> None:
        try:
            if not self._late:
                self._tally.take(Document(data, Allowance(), self._tally.fields))
        except NotInline:
            self._late.append(data)
        else:
            if self._late:
                self._late.append(data)  # what is read later still comes in order
        self.ended = self.ended or self.scanner.is_last(data)
