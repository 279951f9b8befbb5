"""The elements of a JSON array, read while the array passes.

Gemini streams one array, element by element, cut anywhere. This scanner follows strings and
brackets only, which is all it takes to find where an object among the elements begins and ends;
whether that is JSON is judged when it is read. Elements that are no objects say nothing.

Time is linear in the bytes fed, and no more than one element is kept: one above
``limits.EVENT_MAX`` is passed over. The array's closing bracket ends the stream.
"""

from __future__ import annotations

import re
from typing import Final

from finomw import limits

_QUOTE: Final = ord('"')
_OPENING: Final = frozenset(b"{[")
_OBJECT: Final = ord("{")

_TOKEN: Final = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"|["{}\[\]]', re.DOTALL)
"""A whole string, a bracket, or the quote of a string that goes on beyond the chunk."""
_STRING_END: Final = re.compile(rb'[^"\\]*+(?:\\.[^"\\]*+)*+"', re.DOTALL)


class ElementScanner:
    """An incremental reader of one array; its scanner methods are those of `EventScanner`."""

    __slots__ = ("_depth", "_element", "_escaped", "_keeping", "_string", "ended")

    pending = 0

    def __init__(self) -> None:
        self.ended = False
        self._depth = 0
        self._string = False  # the chunk before ended inside a string
        self._escaped = False  # and right after the backslash of an escape
        self._keeping = False  # an element is under way, and its begin is kept
        self._element = bytearray()

    def feed(self, chunk: bytes) -> list[bytes]:
        """Read on; return each element that this chunk completes."""
        elements: list[bytes] = []
        at = self._after_string(chunk)
        begin = 0
        while not self.ended and (token := _TOKEN.search(chunk, at)) is not None:
            at = token.end()
            first = chunk[token.start()]
            if first == _QUOTE:
                if at - token.start() == 1:
                    self._string = True
                    self._escaped = _escapes(chunk[at:])
                    break
            elif first in _OPENING:
                self._depth += 1
                if self._depth == 2 and first == _OBJECT:
                    self._keeping, begin = True, token.start()
            else:
                self._depth -= 1
                if self._depth == 1 and self._keeping:
                    self._keep(chunk[begin:at])
                    elements += self._take()
                self.ended = self._depth <= 0
        if self._keeping:
            self._keep(chunk[begin:])
        return elements

    def finish(self) -> list[bytes]:
        """Take the stream as ended; an element that was cut off is none."""
        self._take()
        return []

    @property
    def between(self) -> bool:
        """Whether the array is open, and no element is under way."""
        return self._depth == 1 and not self._string

    def looks_last(self) -> bool:
        """No element ends the array: its bracket does."""
        return False

    def is_last(self, data: bytes) -> bool:  # noqa: ARG002
        """No element ends the array."""
        return False

    def _after_string(self, chunk: bytes) -> int:
        """Return where the string that the chunk before ended in is over."""
        if not self._string:
            return 0
        end = _STRING_END.match(chunk, int(self._escaped))
        if end is not None:
            self._string = self._escaped = False
            return end.end()
        if chunk:
            self._escaped = _escapes(chunk[int(self._escaped) :])
        return len(chunk)

    def _keep(self, part: bytes) -> None:
        self._element += part
        if len(self._element) > limits.EVENT_MAX:
            self._take()

    def _take(self) -> list[bytes]:
        """Return the element under way, and have none."""
        element, kept = bytes(self._element), self._keeping
        self._element = bytearray()
        self._keeping = False
        return [element] if kept else []


def _escapes(inside: bytes) -> bool:
    """Tell whether the last of a string's bytes is a backslash that escapes what follows."""
    return (len(inside) - len(inside.rstrip(b"\\"))) % 2 == 1
