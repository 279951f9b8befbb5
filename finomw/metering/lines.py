"""JSON lines (NDJSON), read while they pass: one JSON text a line.

The chunks are cut anywhere, and the last line may lack its newline. Time is linear in the bytes
fed; a line above ``limits.EVENT_MAX`` is passed over. The stream is at its end with the text whose
``done`` is true, as Ollama says it.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec

from finomw import limits
from finomw.metering.media import BOM


class _Last(msgspec.Struct):
    done: Any = None


_last: Final = msgspec.json.Decoder(_Last).decode


class LineScanner:
    """An incremental reader of JSON lines; its scanner methods are those of `EventScanner`."""

    __slots__ = ("_line", "_skip", "ended")

    def __init__(self) -> None:
        self.ended = False
        self._line = bytearray()  # the line under way
        self._skip = False  # it is too long to keep

    def feed(self, chunk: bytes) -> list[bytes]:
        """Read on; return each line that this chunk completes."""
        texts: list[bytes] = []
        first, newline, rest = chunk.partition(b"\n")
        self._keep(first)
        if newline:
            self._end(texts)
            lines = rest.split(b"\n")
            self._line += lines.pop()
            texts += [line for line in lines if line and len(line) <= limits.EVENT_MAX]
            self._keep(b"")
        return texts

    def finish(self) -> list[bytes]:
        """Take the stream's end for the missing newline; return the last line, if any."""
        texts: list[bytes] = []
        self._end(texts)
        return texts

    @property
    def between(self) -> bool:
        """Whether no line is under way."""
        return not (self._line or self._skip)

    @property
    def pending(self) -> int:
        """Bytes of a line under way that might be whole: it ends with a brace."""
        return len(self._line) if self._line.endswith(b"}") else 0

    def looks_last(self) -> bool:
        """Tell whether the line under way would end the stream if it were complete."""
        return self.is_last(self._line)

    def is_last(self, data: bytes | bytearray) -> bool:
        """Tell whether a text ends the stream."""
        try:
            return b'"done"' in data and _last(data).done is True
        except (msgspec.DecodeError, RecursionError):
            return False

    def _keep(self, part: bytes) -> None:
        if not self._skip:
            self._line += part
            if len(self._line) > limits.EVENT_MAX:
                self._skip = True
                self._line = bytearray()

    def _end(self, texts: list[bytes]) -> None:
        line = bytes(self._line).removeprefix(BOM)
        if line:
            texts.append(line)
        self._line = bytearray()
        self._skip = False
