"""A request body that a rule has to read, and its replay to the app.

The app gets the very messages that came, in the same pieces; after them it hears the server
again, so that it waits for a true disconnect as it would without finomw.
"""

from __future__ import annotations

from collections import deque

from starlette.types import Message, Receive


class TooLarge(Exception):
    """The body is larger than the rule reads."""


class ClientLeft(Exception):
    """The client was gone before its request was complete."""


class RequestBody:
    """Reads a request body whole; use its `receive` in place of the server's afterwards."""

    def __init__(self, receive: Receive) -> None:
        self._receive = receive
        self._messages: deque[Message] = deque()

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
                raise TooLarge
            parts.append(part)
            more = message.get("more_body", False)
        return b"".join(parts)

    async def receive(self) -> Message:
        """Return the messages that were read, then the server's."""
        return self._messages.popleft() if self._messages else await self._receive()
