"""Chooses how an answer is read for its usage, and reads it while it is sent.

`Readers.reader_for` looks at the answer's head. A `Reader` then gets every part of the body, in
order and unchanged, and says two things: whether what has come so far has to wait as a whole
(``waits``: one JSON text does), and whether a part carries the stream's end marker. It never
raises: whatever is wrong with a body ends as the status of its usage.

What a reader keeps is bounded: of a stream the text under way (``limits.EVENT_MAX``, twice), of a
JSON text ``max_body`` bytes, and above that the last ``limits.TAIL`` bytes, if at all.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator
from typing import Final

from finomw import limits
from finomw.metering.codings import Undecodable, codings_of, decoder_of, unsupported
from finomw.metering.elements import ElementScanner
from finomw.metering.guard import Guard
from finomw.metering.lines import LineScanner
from finomw.metering.media import BodyKind, Form, form_of, kind_of
from finomw.metering.meter import Meter
from finomw.metering.streams import Scanner, StreamReader
from finomw.metering.texts import TextReader
from finomw.metering.usage import Usage
from finomw.types import UsageStatus

logger = logging.getLogger("finomw")

_STEP: Final = 4 * limits.KIB
"""How much is read at one go: a thousand tiny texts, each of which may take jq 30 microseconds."""
_WARNINGS_MAX: Final = 32
_SHOWN_MAX: Final = 60


class Readers:
    """Makes the readers of one rule's answers, and says once what cannot be read.

    ``body_max`` bounds what is kept of a JSON text, in bytes; ``tail`` tells whether the end of a
    larger one is read.
    """

    def __init__(self, route: str, meter: Meter, body_max: int, tail: bool) -> None:
        self._route = route
        self._warned: set[str] = set()
        self.meter = meter
        self.body_max = body_max
        self.tail = tail

    def reader_for(self, status: int, headers: Iterable[tuple[bytes, bytes]]) -> Reader | None:
        """Return a reader for an answer with this head; None for one that is not read."""
        content_type = None
        encodings = []
        length = None
        for name, value in headers:
            lowered = name.lower()
            if lowered == b"content-type":
                content_type = value
            elif lowered == b"content-length":
                length = value.strip()
            elif lowered == b"content-encoding":
                encodings.append(value)
        kind = kind_of(content_type)
        codings = codings_of(encodings) if encodings else ()
        unknown = unsupported(codings) if codings else None
        if kind is not BodyKind.OTHER and unknown is None:
            return Reader(self, kind, codings, _size_of(length))
        if status < 400:  # an error page in HTML is nothing to warn about
            what = f"Content-Encoding {_shown(unknown)}" if unknown else ""
            what = what or f"Content-Type {_shown(content_type or b'')}"
            self.warn(f"answers with {what} cannot be read for their usage")
        return None

    def warn(self, what: str, details: str = "") -> None:
        """Log what is wrong with this rule's answers, each thing once."""
        if self.meter.flat or what in self._warned or len(self._warned) >= _WARNINGS_MAX:
            return
        self._warned.add(what)
        logger.warning("rule %s: %s%s", self._route, what, details)


class Reader:
    """Reads one answer; made by ``Readers.reader_for``."""

    __slots__ = (
        "_announced",
        "_begin",
        "_body",
        "_decoded_size",
        "_decoder",
        "_kind",
        "_lost",
        "_readers",
        "_size",
    )

    def __init__(
        self, readers: Readers, kind: BodyKind, codings: tuple[bytes, ...], announced: int | None
    ) -> None:
        self._readers = readers
        self._announced = announced
        """How long the head says that the body is, where it does."""
        self._decoded_size = 0
        self._kind = kind
        self._decoder = decoder_of(codings) if codings else None
        self._body = self._typed(kind)
        self._begin = b""
        self._size = 0
        self._lost = False

    def _typed(self, kind: BodyKind) -> StreamReader | TextReader | None:
        if kind is BodyKind.EVENT_STREAM:
            return self._readers.meter.stream()
        if kind is BodyKind.LINES:
            return StreamReader(self._readers.meter.tally(), LineScanner())
        return None

    @property
    def waits(self) -> bool:
        """Whether all that has come has to wait: it is one JSON text, or that is not decided."""
        size = max(self._size, self._announced or 0)
        if self._lost or self._kind is BodyKind.OTHER or size > self._readers.body_max:
            return False
        return self._body is None or self._body.waits

    @property
    def ended(self) -> bool:
        """Whether the end marker of the answer's format has come."""
        return self._body is not None and self._body.ended

    def feed(self, part: bytes) -> bool:
        """Read a part of the body; return ``ended``."""
        for _ in self.steps(part):
            pass
        return self.ended

    def steps(self, part: bytes) -> Iterator[None]:
        """Read a part of the body step by step, so that others may run in between."""
        self._size += len(part)
        if len(part) <= _STEP and self._decoder is None:
            self._take(part)
            yield
            return
        for start in range(0, len(part), _STEP):
            if self._decoder is None and isinstance(self._body, TextReader):
                self._body.feed(memoryview(part)[start:])  # it keeps this, and copies nothing
                yield
                return
            for piece in self._decoded(part[start : start + _STEP]):
                step = len(piece) if isinstance(self._body, TextReader) else _STEP
                for at in range(0, len(piece), step):
                    self._take(piece[at : at + step])
                    yield

    def _decoded(self, part: bytes) -> list[bytes]:
        if self._decoder is None:
            return [part]
        pieces: list[bytes] = []
        if not self._lost:
            try:
                self._decoder.feed(part, pieces.append)
            except Undecodable as error:
                self._lost = True
                self._readers.warn("an answer could not be decoded", f": {error}")
        return pieces

    @property
    def size(self) -> int:
        """Bytes of the body so far, decoded as far as they could be."""
        return max(self._size, self._decoded_size)

    @property
    def deltas(self) -> int:
        """Texts of a stream that passed and said nothing about usage; of anything else, none."""
        return self._body.deltas if isinstance(self._body, StreamReader) else 0

    def so_far(self) -> Usage | None:
        """Return what a stream under way has said; None of anything else."""
        return self._body.usage() if isinstance(self._body, StreamReader) else None

    @property
    def stream(self) -> Scanner | None:
        """What finds the texts of a stream that is sent as it is, and so may be added to."""
        if isinstance(self._body, StreamReader) and self._decoder is None:
            return None if self._announced is not None else self._body.scanner
        return None

    def finish(self, *, complete: bool = True) -> Usage:
        """Return the usage of all that has come; ``complete`` tells whether that is all of it."""
        usage = self._finish(complete)
        if usage.status is UsageStatus.INVALID:
            unknown = [name for name in self._readers.meter.names if name not in usage.counts]
            self._readers.warn(f"an answer has what is no count of {', '.join(unknown)}")
        return usage

    def _finish(self, complete: bool) -> Usage:
        body = self._body
        if self._lost:
            return self._readers.meter.lost() if body is None else body.lost()
        return self._readers.meter.unread() if body is None else body.finish(complete=complete)

    @property
    def late(self) -> bool:
        """Whether something that came waits for `read_apart`."""
        return self._body is not None and self._body.late

    async def read_apart(self, guard: Guard, *, last: bool) -> None:
        """Have read what may take too long here; ``last``: all of the answer has come."""
        if self._body is not None and not self._lost:
            await self._body.read_apart(guard, last)

    def _take(self, piece: bytes) -> None:
        """Read what is decoded; how it is read is decided as soon as its begin allows it."""
        self._decoded_size += len(piece)
        if self._body is not None:
            self._body.feed(piece)
        elif self._kind is not BodyKind.OTHER:
            self._begin += piece
            form = form_of(self._begin)
            if form is None and len(self._begin) >= _STEP:
                form = Form.NONE  # nothing but blanks
            if form is not None:
                self._decide(form)

    def _decide(self, form: Form) -> None:
        """Choose the reader, and give it what has come."""
        readers, begin = self._readers, self._begin
        self._begin = b""
        if self._kind is BodyKind.UNTYPED or form is Form.EVENTS:
            readers.warn(f"answers {self._kind.value} are {form.value}")
        if form is Form.EVENTS:
            self._body = readers.meter.stream()
        elif form is Form.ARRAY and not readers.meter.keeps_arrays:
            self._body = StreamReader(readers.meter.tally(), ElementScanner())
        elif form is not Form.NONE or self._kind is BodyKind.JSON:
            self._body = TextReader(readers.meter, readers.body_max, readers.tail)
        else:
            self._kind = BodyKind.OTHER
            return
        self._body.feed(begin)


def _size_of(length: bytes | None) -> int | None:
    """Return the number in a Content-Length, None for anything else."""
    return int(length) if length is not None and length.isdigit() and len(length) < 20 else None


def _shown(value: bytes) -> str:
    return ascii(value[:_SHOWN_MAX].decode("latin-1"))
