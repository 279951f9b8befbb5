"""What a body is, by its Content-Type, or by how it begins.

The type of the answer decides, never the request's wish: a server asked for a stream may answer
with one JSON text. Case and parameters mean nothing here. A JSON type leaves open whether the body
is one text, an array that arrives in pieces, or an event stream under a wrong name, and a missing
type leaves everything open; then the first bytes tell.
"""

from __future__ import annotations

from enum import Enum
from functools import lru_cache
from typing import Final


class BodyKind(Enum):
    """How a body is read for its usage."""

    JSON = "typed as JSON"
    EVENT_STREAM = "typed as an event stream"
    LINES = "typed as JSON lines"
    UNTYPED = "without a Content-Type"
    OTHER = "typed as something else"


class Form(Enum):
    """What the first bytes of a body say it is."""

    TEXT = "read as one JSON text"
    ARRAY = "read as a JSON array"
    EVENTS = "read as an event stream"
    NONE = "not read for their usage"


_KINDS: Final = {
    b"": BodyKind.UNTYPED,
    b"text/event-stream": BodyKind.EVENT_STREAM,
    b"application/json": BodyKind.JSON,
    b"text/json": BodyKind.JSON,
    b"application/stream+json": BodyKind.LINES,
    **dict.fromkeys(
        (
            b"application/x-ndjson",
            b"application/ndjson",
            b"application/jsonl",
            b"application/x-jsonl",
            b"application/jsonlines",
            b"application/x-jsonlines",
            b"application/json-lines",
            b"text/x-ndjson",
        ),
        BodyKind.LINES,
    ),
}

BOM: Final = b"\xef\xbb\xbf"
_BLANKS: Final = b" \t\r\n"
_FIELDS: Final = (b"data", b"event", b"id:", b"retry:", b":")
_TEXT_BEGINS: Final = b'{"-0123456789tfn'


@lru_cache(maxsize=256)
def kind_of(content_type: bytes | None) -> BodyKind:
    """Tell the kind from a Content-Type header's value, or None where there is no header."""
    media_type = (content_type or b"").partition(b";")[0].strip().lower()
    kind = _KINDS.get(media_type)
    if kind is None:
        json = b"/" in media_type and media_type.endswith(b"+json")
        kind = BodyKind.JSON if json else BodyKind.OTHER
    return kind


def form_of(begin: bytes) -> Form | None:
    """Tell the form of a body from how it begins; None while that is not decided yet."""
    if begin.startswith(b"{"):  # as nearly always
        return Form.TEXT
    begin = begin.removeprefix(BOM).lstrip(_BLANKS)
    if not begin or BOM.startswith(begin):
        return None
    if begin.startswith(b"["):
        return Form.ARRAY
    for field in _FIELDS:
        if begin.startswith(field):
            return Form.EVENTS
        if field.startswith(begin):
            return None
    return Form.TEXT if begin[0] in _TEXT_BEGINS else Form.NONE
