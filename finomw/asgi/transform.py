"""What a rule changes of requests and answers: ``request``, ``response``, ``ensure_usage``.

A request is changed before it is held for, so that the hold is for what the app gets. An answer is
changed on its way from the responder to the server: the meter has read what the app sent, and what
had to wait has waited. Three things can happen to an answer:

* a JSON answer that waited as a whole is rewritten, and its head corrected;
* of an event stream single events are rewritten or taken out, the others keep their bytes;
* anything else passes. So does what cannot be rewritten: the program fails on it or takes too
  long, the answer is too large or in an unknown coding. The log tells it, once for each cause.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple, TypeAlias

from starlette.types import Message, Send

from finomw import limits
from finomw.asgi.problems import Refused
from finomw.metering.blocks import Block, Blocks, data_of, with_data
from finomw.metering.codings import Undecodable, codings_of, decoder_of, unsupported
from finomw.metering.ensured import ask_for_usage, is_usage_chunk
from finomw.metering.events import END_MARKER
from finomw.metering.guard import Guard
from finomw.metering.media import BodyKind, Form, form_of, kind_of
from finomw.metering.programs import ProgramFailed
from finomw.metering.transforms import Transform

logger = logging.getLogger("finomw")

Headers: TypeAlias = list[tuple[bytes, bytes]]

_OF_THE_BODY: Final = frozenset(
    (b"content-md5", b"digest", b"content-digest", b"repr-digest", b"etag")
)
"""Headers that say something of the very bytes of a body."""
_BODILESS: Final = frozenset((204, 205, 206, 304))
"""Statuses of answers that are left alone; 206 has a part of a body."""
_BLANKS_MAX: Final = 4 * limits.KIB
"""Bytes of blanks after which a body is nothing that is known."""
_DECODED_AT_ONCE: Final = 64 * limits.KIB


class Rewritten(NamedTuple):
    """A request as the app gets it, and whether finomw asked for the stream's usage in it."""

    body: bytes
    asks_usage: bool


class Rewrites:
    """What one rule changes, compiled."""

    def __init__(
        self,
        route: str,
        request: Transform | None,
        response: Transform | None,
        events: Transform | None,
        ensure_usage: bool,
        body_max: int,
        keeps_arrays: bool,
    ) -> None:
        self._route = route
        self._request = request
        self._ensure_usage = ensure_usage
        self._warned: set[str] = set()
        self.response = response
        self.events = events
        self.body_max = body_max
        self.keeps_arrays = keeps_arrays
        self.changes_requests = request is not None or ensure_usage
        self.changes_answers = response is not None or events is not None

    async def rewrite_request(
        self, body: bytes, headers: Iterable[tuple[bytes, bytes]], guard: Guard
    ) -> Rewritten | Refused:
        """Return the request as the app shall get it, or why it is refused."""
        if not body or body.isspace():
            return Rewritten(body, False)
        encodings = [value for name, value in headers if name.lower() == b"content-encoding"]
        if codings_of(encodings):
            return Refused("unsupported_encoding", "Send the request without a Content-Encoding.")
        changed: bytes | None = body
        if self._request is not None:
            try:
                changed = await self._request.apply(body, guard)
            except ProgramFailed as error:
                logger.info("rule %s: request.transform: %s", self._route, error)
                return Refused(
                    "invalid_request", "The request is not of the form that this API takes."
                )
            if changed is None:
                return Refused(
                    "invalid_request", "The request is not of the form that this API takes."
                )
        if not self._ensure_usage:
            return Rewritten(changed or b"", False)
        asked = await ask_for_usage(changed or b"", guard)
        wished = asked if changed is body else await ask_for_usage(body, guard)
        if asked is None or wished is None:
            return Refused("invalid_request", "The request takes too long to read.")
        return Rewritten(asked, wished is not body)

    def warn(self, what: str, details: str = "") -> None:
        """Log what was not rewritten, each cause once."""
        if what not in self._warned:
            self._warned.add(what)
            logger.warning("rule %s: %s%s", self._route, what, details)


def request_headers(headers: Iterable[tuple[bytes, bytes]], body: bytes) -> Headers:
    """Return the headers of a request whose body has become another."""
    dropped = _OF_THE_BODY | {b"content-length", b"transfer-encoding"}
    kept = [(name, value) for name, value in headers if name.lower() not in dropped]
    return [*kept, (b"content-length", b"%d" % len(body))]


class Rewriter:
    """Stands between the responder and the server for one answer that may be changed."""

    def __init__(
        self, rewrites: Rewrites, guard: Guard, head: bool, drops_usage: bool, send: Send
    ) -> None:
        self._rewrites = rewrites
        self._guard = guard
        self._head = head
        self._drops_usage = drops_usage
        self._send = send
        self._waiting: list[Message] = []
        """The head of an answer whose form is not known, or all of one that is rewritten."""
        self._size = 0
        self._form: Form | None = None
        self._whole = False
        self._blocks: Blocks | None = None

    async def send(self, message: Message) -> None:
        """Take a message; it, or what becomes of it, goes to the server."""
        kind = message["type"]
        if kind == "http.response.start":
            await self._start(message)
        elif kind != "http.response.body":
            await self._send(message)
        elif self._blocks is not None:
            await self._stream(self._blocks, message)
        elif self._waiting:
            await self._wait(message)
        else:
            await self._send(message)

    async def _start(self, message: Message) -> None:
        self._waiting, self._size, self._form, self._blocks = [], 0, None, None
        if self._head or message["status"] in _BODILESS:
            await self._send(message)
            return
        rewrites = self._rewrites
        kind = kind_of(next(_values(message, b"content-type"), None))
        self._whole = (
            kind is BodyKind.JSON and rewrites.response is not None and message["status"] < 400
        )
        events = rewrites.events is not None or self._drops_usage
        if kind is BodyKind.EVENT_STREAM and events:
            await self._start_stream(message)
        elif self._whole or (events and kind in (BodyKind.JSON, BodyKind.UNTYPED)):
            self._waiting = [message]
        else:
            await self._send(message)

    async def _start_stream(self, message: Message) -> None:
        """Send the head of a stream, whose events are looked at unless they are encoded."""
        if _codings(message):
            self._rewrites.warn("event streams with a Content-Encoding are not rewritten")
        else:
            self._blocks = Blocks()
            message = _with_headers(message, {b"content-length"})
        await self._send(message)

    async def _wait(self, message: Message) -> None:
        """Keep a message until the answer is there, or turns out to be none that is rewritten."""
        self._waiting.append(message)
        body = bytes(message.get("body", b""))
        self._size += len(body)
        last = not message.get("more_body", False)
        if self._form is None and not _codings(self._waiting[0]):
            self._form = form_of(b"".join(_bodies(self._waiting)))
        if self._form is Form.EVENTS or not self._whole:
            if self._form is not None or last or self._size > _BLANKS_MAX:
                await self._release()
        elif self._size > self._rewrites.body_max:
            self._rewrites.warn("answers larger than max_body are not rewritten")
            await self._release()
        elif last:
            await self._rewrite()
        elif self._passes_by_elements(body):
            await self._release()

    def _passes_by_elements(self, body: bytes) -> bool:
        """Say whether this is an array that does not wait as a whole, and is not all there."""
        array = self._form is Form.ARRAY and not self._rewrites.keeps_arrays
        return array and not body.rstrip().endswith(b"]")

    async def _release(self) -> None:
        """Let go what was kept; from here on the answer passes, or its events are looked at."""
        start, *bodies = self._waiting
        self._waiting = []
        events = self._rewrites.events is not None or self._drops_usage
        if self._form is Form.EVENTS and events:
            await self._start_stream(start)
        else:
            await self._send(start)
        for body in bodies:
            await self.send(body)

    async def _rewrite(self) -> None:
        """Send a whole JSON answer as it was rewritten, or as it is."""
        waiting, self._waiting = self._waiting, []
        start = waiting[0]
        body = b"".join(_bodies(waiting))
        changed = await self._transformed(start, body) if body and not body.isspace() else None
        if changed is None:
            for kept in waiting:
                await self._send(kept)
            return
        await self._send(_with_headers(start, _OF_THE_BODY | {b"content-encoding"}, len(changed)))
        await self._send({"type": "http.response.body", "body": changed, "more_body": False})

    async def _transformed(self, start: Message, body: bytes) -> bytes | None:
        """Return what becomes of a JSON answer; None where it stays as it is."""
        transform, rewrites = self._rewrites.response, self._rewrites
        if transform is None:
            return None
        try:
            codings = _codings(start)
            if unsupported(codings) is not None:
                raise Undecodable("its Content-Encoding is not known")
            decoded = await _decoded(body, codings, rewrites.body_max) if codings else body
            changed = await transform.apply(decoded, self._guard)
        except (ProgramFailed, Undecodable) as error:
            rewrites.warn("an answer was not rewritten", f": {error}")
            return None
        if changed is None:
            rewrites.warn("an answer was not rewritten", ": response.transform has no output")
        return None if changed is decoded else changed

    async def _stream(self, blocks: Blocks, message: Message) -> None:
        """Send of a part of a stream what is complete and stays."""
        last = not message.get("more_body", False)
        found = blocks.feed(bytes(message.get("body", b"")))
        if last:
            found += blocks.finish()
        written = []
        for number, block in enumerate(found):
            if number:
                await asyncio.sleep(0)  # many events in one part shall not stop the loop
            written.append(await self._event(block))
        body = b"".join(written)
        if body or last:
            await self._send({**message, "body": body})

    async def _event(self, block: Block) -> bytes:
        """Return what becomes of an event: nothing where it is taken out."""
        data = data_of(block.raw) if block.whole else b""
        if not data or data.lstrip().startswith(END_MARKER):
            return block.raw
        if self._drops_usage and is_usage_chunk(data):
            return b""
        transform = self._rewrites.events
        if transform is None:
            return block.raw
        try:
            changed = await transform.apply(data, self._guard)
        except ProgramFailed as error:
            self._rewrites.warn("an event was not rewritten", f": {error}")
            return block.raw
        if changed is None or changed == b"null":
            return b""
        return block.raw if changed is data else with_data(block.raw, changed)


async def _decoded(body: bytes, codings: tuple[bytes, ...], most: int) -> bytes:
    """Undo the codings of a whole body, which may come to ``most`` bytes. Raises `Undecodable`."""
    decoder = decoder_of(codings)
    pieces: list[bytes] = []
    size = 0
    for start in range(0, len(body), _DECODED_AT_ONCE):
        before = len(pieces)
        decoder.feed(body[start : start + _DECODED_AT_ONCE], pieces.append)
        size += sum(map(len, pieces[before:]))
        if size > most:
            raise Undecodable(f"it decodes to more than {most} bytes")
        await asyncio.sleep(0)
    return b"".join(pieces)


def _values(start: Message, wanted: bytes) -> Iterator[bytes]:
    return (value for name, value in start.get("headers", ()) if name.lower() == wanted)


def _codings(start: Message) -> tuple[bytes, ...]:
    return codings_of(list(_values(start, b"content-encoding")))


def _bodies(messages: list[Message]) -> Iterator[bytes]:
    """Return the parts of a body, of messages that begin with the head."""
    return (message.get("body", b"") for message in messages[1:])


def _with_headers(start: Message, dropped: Iterable[bytes], length: int | None = None) -> Message:
    """Return a head without some headers, and with the content-length corrected if it has one."""
    headers: Headers = []
    for name, value in start.get("headers", ()):
        lowered = name.lower()
        if lowered == b"content-length" and length is not None:
            value = b"%d" % length
        if lowered not in dropped:
            headers.append((name, value))
    return {**start, "headers": headers}
