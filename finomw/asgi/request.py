"""A request body that a rule has to read, and its replay to the app.

The app gets the very messages that came, in the same pieces, unless a rule rewrites the body; then
the app gets that in one piece. After them it hears the server
again, so that it waits for a true disconnect as it would without finomw.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterable
from typing import Final

from starlette.types import Message, Receive

_SIZE: Final = re.compile(rb"[0-9]{1,18}")


class TooLarge(Exception):
    """The body is larger than the rule reads."""

    def __init__(self, bytes_max: int) -> None:
        super().__init__(f"This call may send at most {bytes_max} bytes.")


class ClientLeft(Exception):
    """The client was gone before its request was complete."""


def declared_size(headers: Iterable[tuple[bytes, bytes]]) -> int | None:
    """Return the size in bytes that a request says its body has; None where it does not.

    A server gives the app no more than that, so it may be counted without reading the body; but
    of a chunked body it is not the size, and some servers pass both headers on.
    """
    said = []
    for name, value in headers:
        lowered = name.lower()
        if lowered == b"transfer-encoding":
            return None
        if lowered == b"content-length":
            said.append(value)
    if len(said) != 1 or not _SIZE.fullmatch(said[0]):
        return None
    return int(said[0])


def is_encoded(headers: Iterable[tuple[bytes, bytes]]) -> bool:
    """Say whether a request's body is compressed, so that its size tells little."""
    return any(
        name.lower() == b"content-encoding" and value.strip().lower() not in (b"", b"identity")
        for name, value in headers
    )


class RequestBody:
    """Reads a request body whole; use its `receive` in place of the server's afterwards."""

    def __init__(self, receive: Receive) -> None:
        self._receive = receive
        self._messages: deque[Message] = deque()
        self.replaced: bytes | None = None
        """What the app gets in place of what was read."""
        self.asks_usage = False
        """Whether finomw asked in it for the usage of a stream, and the client had not."""

    async def read(self, bytes_max: int) -> bytes:
        """Return the whole body; raises `TooLarge`, `ClientLeft`."""
        parts: list[bytes] = []
        size = 0
        more = True
        while more:
            message = await self._receive()
            if message["type"] == "http.disconnect":
                raise ClientLeft
            self._messages.append(message)
            part = message.get("body", b"")
            size += len(part)
            if size > bytes_max:
                raise TooLarge(bytes_max)
            parts.append(part)
            more = message.get("more_body", False)
        return b"".join(parts)

    def replace(self, body: bytes) -> None:
        """Give the app another body than the one that was read."""
        self._messages.clear()
        self._messages.append({"type": "http.request", "body": body, "more_body": False})
        self.replaced = body

    async def receive(self) -> Message:
        """Return the messages that were read, then the server's."""
        return self._messages.popleft() if self._messages else await self._receive()
