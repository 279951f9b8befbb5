"""What ends a stream before its time, in its own format: a last text with an error, and the end.

Clients of the known APIs take these for what they are: an OpenAI-style stream carries an object
with ``error`` and then ``[DONE]``; one whose events have names (Anthropic, the Responses API) an
event named ``error``; JSON lines a line with ``error`` as a text and ``done``, as Ollama's; an
array an element with ``error``. All of them ``metering`` itself takes for an error object.

It may be sent only where no text is under way (``Scanner.between``).
"""

from __future__ import annotations

from typing import Final

import msgspec

from finomw.metering.elements import ElementScanner
from finomw.metering.events import END_MARKER, EventScanner
from finomw.metering.streams import Scanner

_encode: Final = msgspec.json.encode


def closing(scanner: Scanner, code: str, message: str, last: bytes) -> bytes:
    """Return what to send; ``last`` is the last byte that was, blanks aside, or nothing."""
    error = {"type": code, "code": code, "message": message}
    if isinstance(scanner, EventScanner):
        if scanner.named:
            return b"event: error\ndata: %b\n\n" % _encode({"type": "error", "error": error})
        return b"data: %b\n\ndata: %b\n\n" % (_encode({"error": error}), END_MARKER)
    if isinstance(scanner, ElementScanner):
        comma = b"" if last in (b"[", b",") else b","
        return b"%b%b]" % (comma, _encode({"error": error}))
    return _encode({"error": message, "code": code, "done": True}) + b"\n"
