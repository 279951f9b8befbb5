"""The events of a stream as the bytes they are, so that single ones can be changed or taken out.

`Blocks` cuts a stream, which comes in chunks cut anywhere, behind each event's blank line. The
blocks joined are the stream. What is not complete is kept until it is, up to ``limits.EVENT_MAX``
bytes: a larger event is given on as it comes, and not looked at. Time is linear in the bytes fed.
"""

from __future__ import annotations

import re
from typing import Final, NamedTuple

from finomw import limits
from finomw.metering.media import BOM

_BLANK: Final = re.compile(rb"(?:\r\n|\n|\r(?!\n))(?:\r\n|\n|\r)")
_BLANK_MAX: Final = 4
_LINE: Final = re.compile(rb"[^\r\n]*+(?:\r\n|\n|\r)?")
_DATA: Final = re.compile(rb"data(?::[ ]?|\Z)")


class Block(NamedTuple):
    """Bytes of the stream; ``whole`` tells that they are one whole event."""

    raw: bytes
    whole: bool


class Blocks:
    """Cuts one stream."""

    __slots__ = ("_kept", "_looked", "_skipping")

    def __init__(self) -> None:
        self._kept = bytearray()
        self._looked = 0
        self._skipping = False  # the event under way is too large to be kept

    def feed(self, chunk: bytes) -> list[Block]:
        """Read on; return what this chunk completes."""
        kept = self._kept
        kept += chunk
        blocks: list[Block] = []
        begin = 0
        at = self._looked
        while (blank := _BLANK.search(kept, at)) is not None:
            at = blank.end()
            small = not self._skipping and at - begin <= limits.EVENT_MAX
            blocks.append(Block(bytes(kept[begin:at]), small))
            self._skipping = False
            begin = at
        del kept[:begin]
        if self._skipping or len(kept) > limits.EVENT_MAX:
            cut = len(kept) - _BLANK_MAX  # a blank line may be under way
            if cut > 0:
                blocks.append(Block(bytes(kept[:cut]), False))
                del kept[:cut]
                self._skipping = True
        self._looked = max(0, len(kept) - _BLANK_MAX)
        return blocks

    def finish(self) -> list[Block]:
        """Take the stream as ended; return what was kept, which may be an event without its end."""
        kept, whole = bytes(self._kept), not self._skipping
        self._kept.clear()
        self._looked = 0
        return [Block(kept, whole)] if kept else []


def data_of(block: bytes) -> bytes:
    """Return the data of an event, its lines joined."""
    lines = []
    for found in _LINE.finditer(block.removeprefix(BOM)):
        line = found[0].rstrip(b"\r\n")
        field = _DATA.match(line)
        if field is not None:
            lines.append(line[field.end() :])
    return b"\n".join(lines)


def with_data(block: bytes, data: bytes) -> bytes:
    """Return an event with other data, in the place of its first data line; all else stays."""
    begin = BOM if block.startswith(BOM) else b""
    written = [begin]
    placed = False
    for found in _LINE.finditer(block, len(begin)):
        line = found[0].rstrip(b"\r\n")
        field = _DATA.match(line)
        if field is None:
            written.append(found[0])
        elif not placed:
            placed = True
            written.append((field[0] if b":" in field[0] else b"data: ") + data)
            written.append(found[0][len(line) :])
    return b"".join(written)
