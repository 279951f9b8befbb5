"""Which reader a body needs, by its Content-Type.

The type of the answer decides, never the request's wish: a server asked for a stream may answer
with one JSON text. Case and parameters mean nothing here.
"""

from __future__ import annotations

from enum import Enum


class BodyKind(Enum):
    """How a body is read for its usage."""

    JSON = "one JSON text"
    EVENT_STREAM = "server-sent events"
    OTHER = "not read"


def kind_of(content_type: bytes | None) -> BodyKind:
    """Tell the kind from a Content-Type header's value, or None where there is no header."""
    if content_type is None:
        return BodyKind.OTHER
    media_type = content_type.partition(b";")[0].strip().lower()
    if media_type == b"text/event-stream":
        return BodyKind.EVENT_STREAM
    if media_type == b"application/json" or (b"/" in media_type and media_type.endswith(b"+json")):
        return BodyKind.JSON
    return BodyKind.OTHER
