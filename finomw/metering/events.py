"""Server-sent events, read while they pass.

The stream comes in chunks that are cut anywhere: inside a character, between CR and LF, inside
the word ``data``. The scanner follows the WHATWG rules (lines end with LF, CR or CRLF; a blank
line dispatches; comments and other fields mean nothing here), and works on bytes, so text that
is not UTF-8 passes. Differing from the rules, an event with empty data is not given, and an event
that the stream ends in, without its blank line, is: ``finish()``.

Invariants: the events do not depend on where the chunks were cut; the time is linear in the bytes
fed, a byte at a time included; what is kept is bounded by ``limits.EVENT_MAX``, twice (the lines
gathered and the line under way). A larger event is passed over and counted.

A client may act on the end marker before its blank line has come. ``ended`` turns true with the
chunk that completes the bytes of ``data: [DONE]``: no line of a JSON text begins so. An end that
is told by an event's name or type comes with data that is still to be read (``looks_last``).
"""

from __future__ import annotations

from collections.abc import Set
from typing import Any, Final

import msgspec

from finomw import limits

END_MARKER: Final = b"[DONE]"

_BOM: Final = b"\xef\xbb\xbf"
_FIELD: Final = b"data:"
_NAME: Final = b"event:"
_LINE_MAX: Final = limits.EVENT_MAX + len(b"data: ")
_MARKER_WITHIN: Final = slice(len(_FIELD), len(_FIELD) + 32)
"""Where in a data line the marker counts: clients strip blanks before it, and what follows."""
_PART: Final = 64 * limits.KIB
"""A chunk is cut into lines by parts, so that a huge one does not make a huge list of lines."""


class _Typed(msgspec.Struct):
    type: Any = None


_typed: Final = msgspec.json.Decoder(_Typed).decode


def _kind_of(data: bytes | bytearray) -> bytes | None:
    """Return the type that a JSON object names, empty if none; None for what is no object."""
    try:
        kind = _typed(data).type
    except (msgspec.DecodeError, RecursionError):
        return None
    return kind.encode() if isinstance(kind, str) else b""


class EventScanner:
    """An incremental reader of one event stream.

    ``ends`` are the names, or types in the JSON, of events that end it besides ``[DONE]``.
    ``ended`` is whether the end marker has passed; ``dropped`` how many events were larger than
    ``limits.EVENT_MAX`` bytes of data.
    """

    __slots__ = (
        "_after_cr",
        "_begin",
        "_closing",
        "_data",
        "_ends",
        "_line",
        "_skip_event",
        "_skip_line",
        "dropped",
        "ended",
        "named",
    )

    def __init__(self, ends: Set[bytes] = frozenset()) -> None:
        self._ends = ends
        self._closing = False  # the event under way has the name of one that ends the stream
        self.ended = False
        self.named = False
        """Whether events came with names."""
        self.dropped = 0
        self._begin: bytes | None = b""  # what may yet become a BOM; None once that is decided
        self._after_cr = False  # the last byte was a CR: an LF now is the same line end
        self._line = bytearray()  # the line under way
        self._data = bytearray()  # the event's data lines so far, each with an LF
        self._skip_line = False  # the line under way is too long to keep
        self._skip_event = False  # the event under way is

    def feed(self, chunk: bytes) -> list[bytes]:
        """Read on; return the data of each event that this chunk completes."""
        events: list[bytes] = []
        for start in range(0, len(chunk), _PART):
            self._read(chunk[start : start + _PART], events)
        return events

    def finish(self) -> list[bytes]:
        """Take the stream's end for the missing line ends; return the last event, if any."""
        events: list[bytes] = []
        if self._line:
            self._end_line(b"", events)
        self._dispatch(events)
        return events

    @property
    def between(self) -> bool:
        """Whether no event is under way."""
        return not (self._line or self._data or self._skip_line or self._skip_event)

    @property
    def pending(self) -> int:
        """Bytes of an event under way whose data might be whole: it ends with a brace."""
        last = self._line[-1:] or self._data[-2:-1]
        return len(self._data) + len(self._line) if last == b"}" else 0

    def looks_last(self) -> bool:
        """Tell whether the event under way would end the stream if its data were complete."""
        line = self._line
        data = self._data + line[len(_FIELD) :] if line.startswith(_FIELD) else self._data
        return _kind_of(data) is not None if self._closing else self.is_last(data)

    def is_last(self, data: bytes | bytearray) -> bool:
        """Tell by its data whether an event ends the stream; its name shows in ``ended``."""
        if b'"type"' not in data:
            return False
        for name in self._ends:
            if name in data:  # most do not even mention one
                return _kind_of(data) in self._ends
        return False

    def _read(self, part: bytes, events: list[bytes]) -> None:
        if self._begin is not None:
            part = self._without_bom(part)
        if self._after_cr and part:
            self._after_cr = False
            part = part.removeprefix(b"\n")
        if b"\r" in part:
            self._after_cr = part.endswith(b"\r")
            part = part.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        lines = part.split(b"\n")
        rest = lines.pop()
        if lines and (self._line or self._skip_line):
            self._end_line(lines[0], events)
            del lines[0]
        for line in lines:
            self._take_line(line, events)
        if rest and not self._skip_line:
            self._keep(rest)

    def _without_bom(self, part: bytes) -> bytes:
        begin = (self._begin or b"") + part
        if len(begin) < len(_BOM) and _BOM.startswith(begin):
            self._begin = begin
            return b""
        self._begin = None
        return begin.removeprefix(_BOM)

    def _keep(self, rest: bytes) -> None:
        """Keep the begin of a line whose end is still to come."""
        line = self._line
        line += rest
        if line.startswith(_FIELD):
            self._look_for_marker(line)
        if len(line) > _LINE_MAX:
            self._skip_line = True
            if line.startswith(_FIELD):
                self._drop_event()
            self._line = bytearray()

    def _end_line(self, rest: bytes, events: list[bytes]) -> None:
        """Complete the line under way, with the bytes up to its end."""
        if self._skip_line:
            self._skip_line = False
            return
        line = bytes(self._line + rest)
        self._line = bytearray()
        self._take_line(line, events)

    def _take_line(self, line: bytes, events: list[bytes]) -> None:
        if not line:
            self._dispatch(events)
            return
        if line.startswith(_FIELD):
            data = line[6:] if line.startswith(b" ", 5) else line[5:]
        elif line == b"data":
            data = b""
        else:
            if line.startswith(_NAME):
                self.named = True
                self._closing = line[len(_NAME) :].strip() in self._ends
            return  # a comment or another field
        self._look_for_marker(line)
        if self._skip_event:
            return
        if len(self._data) + len(data) > limits.EVENT_MAX:
            self._drop_event()
        else:
            self._data += data
            self._data += b"\n"

    def _look_for_marker(self, line: bytes | bytearray) -> None:
        if line[_MARKER_WITHIN].lstrip().startswith(END_MARKER):
            self.ended = True

    def _drop_event(self) -> None:
        if not self._skip_event:
            self._skip_event = True
            self.dropped += 1
        self._data = bytearray()

    def _dispatch(self, events: list[bytes]) -> None:
        self._skip_event = False
        self.ended |= self._closing
        self._closing = False
        if self._data:
            data = bytes(self._data[:-1])
            self._data = bytearray()
            if data:
                events.append(data)
