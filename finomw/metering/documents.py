"""A JSON text that several programs read.

The programs of a rule share one decoder (``fields.py``), so a `Document` decodes once for all of
them. Everything else that somebody may ask (its text for jq, whether it is JSON at all, whether it
is an error object) is worked out on demand, and the parts that nobody asks for are only skipped.

There are two judges of what JSON is. What msgspec accepts is ``strict``: it keeps to the RFC. jq
takes more (``NaN``, ``01``, a byte order mark), and what jq takes as exactly one text is ``valid``:
an answer's usage is not lost because a number beside it is ``NaN``. Bytes that are not UTF-8 are
read as U+FFFD, as jq does.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Final, NamedTuple

import jq
import msgspec

from finomw import limits
from finomw.metering.allowance import Allowance
from finomw.metering.fields import Fields, Found
from finomw.metering.growth import Growth

_BLANKS: Final = b" \t\r\n"
_SMALL: Final = Growth(0, 0, 0)

_skip: Final = msgspec.json.Decoder(msgspec.Raw).decode
_decode: Final = msgspec.json.Decoder().decode
_head: Final = Fields([("error",)])
_count: Final = jq.compile("length")
_itself: Final = jq.compile(".")
_is_error: Final = jq.compile(
    'type == "object" and (.error | (type == "object" or type == "string") and length > 0)'
)

_FAILED: Final = b"response.failed"
_failed: Final = Fields([("type",), ("response", "error")])
_type_of: Final = _failed.getter(("type",))
_error_of: Final = _failed.getter(("response", "error"))
_is_failed: Final = jq.compile(
    'type == "object" and .type == "response.failed" and (.response | type == "object") and '
    '(.response.error | (type == "object" or type == "string") and length > 0)'
)


class Outcome(NamedTuple):
    """What a program gave: a value, or why there is none."""

    value: object
    failure: str | None


class Document:
    """The JSON text ``raw``, read lazily.

    ``fields`` are those that will be asked for. With an ``allowance`` everything raises `NotInline`
    that might take longer than it allows. Else nothing here raises: bytes that are not one JSON
    text make a document that is not ``valid`` and reads as null.
    """

    __slots__ = (
        "_fields",
        "_found",
        "_hint",
        "_strict",
        "_text",
        "_valid",
        "allowance",
        "known",
        "lost",
        "raw",
    )

    def __init__(
        self, raw: bytes, allowance: Allowance | None = None, fields: Fields | None = None
    ) -> None:
        self._hint = fields
        self.known: Mapping[str, Outcome] | None = None
        """Outcomes of programs that were run apart, by their texts."""
        self.lost = False
        """Whether it could not be read in time."""
        self.raw = raw
        self.allowance = allowance
        self._fields: Fields | None = None
        self._found: object = None
        self._strict: bool | None = None
        self._valid: bool | None = None
        self._text: str | None = None

    @classmethod
    def read_apart(
        cls, raw: bytes, strict: bool, known: Mapping[str, Outcome], lost: bool = False
    ) -> Document:
        """Return a document of which some programs' outcomes are known, and not much else."""
        document = cls(raw, Allowance())
        document._strict, document.known, document.lost = strict, known, lost
        return document

    def found(self, fields: Fields) -> object:
        """Return what ``fields`` found; None where the document has to be read whole."""
        if self._fields is not fields:
            self._fields, self._found = fields, None
            if not self._maybe_too_deep():
                try:
                    self._found = fields.decode(self.raw)
                    self._strict = self._valid = True
                except (msgspec.DecodeError, RecursionError):
                    pass
        return self._found

    @property
    def strict(self) -> bool:
        """Whether the bytes are one JSON text by the RFC, nested no deeper than msgspec goes."""
        if self._strict is None and self._hint is not None:
            self.found(self._hint)
        if self._strict is None:
            self._may_decode()
            try:
                _skip(self.raw)
                self._strict = True
            except (msgspec.DecodeError, RecursionError):
                self._strict = False
        return self._strict

    @property
    def valid(self) -> bool:
        """Whether the bytes are one JSON text, as jq sees it."""
        if self._valid is None:
            self._valid = self._is_one_text()
        return self._valid

    @property
    def blank(self) -> bool:
        """Whether there is nothing in the bytes."""
        return not self.raw or self.raw.isspace()

    @property
    def text(self) -> str:
        """What jq is given: the text itself, or ``null`` where it is not valid."""
        if self._text is None:
            self._text = self.raw.decode("utf-8", "replace") if self.valid else "null"
        return self._text

    @property
    def value(self) -> object:
        """The decoded value, None where not valid. Decodes everything: not for the usual call."""
        if not self.valid:
            return None
        self._may_split()
        if self.strict:
            try:
                return _decode(self.raw)
            except (msgspec.DecodeError, RecursionError):
                pass  # bytes that are not UTF-8, a number out of range
        self._may_run(len(self.raw))
        return _itself.input_text(self.text).first()

    @property
    def is_object(self) -> bool:
        """Whether it is a JSON object."""
        return self.valid and self._begin() == b"{"

    @property
    def is_array(self) -> bool:
        """Whether it is a JSON array."""
        return self.valid and self._begin() == b"["

    @property
    def is_error(self) -> bool:
        """Whether it is an error object: its ``error`` is an object or a text, and not empty.

        The event with which the Responses API says that a response failed has it in ``response``.
        """
        return self._has_error() or (_FAILED in self.raw and self._is_failed_response())

    def _is_failed_response(self) -> bool:
        if not self.is_object:
            return False
        found = self.found(_failed)
        if found is None:
            self._may_run(len(self.raw))
            return _is_failed.input_text(self.text).first() is True
        kind = _type_of(found)
        if kind is None or bytes(kind).strip(b'"') != _FAILED:
            return False
        return _tells_error(_error_of(found))

    def _has_error(self) -> bool:
        fields = self._fields
        found = None if fields is None else self._found
        if found is None or fields is None or fields.error is None:
            if not self.is_object:
                return False
            fields, found = _head, self.found(_head)
        if found is None or fields.error is None:
            self._may_run(len(self.raw))
            return _is_error.input_text(self.text).first() is True
        return _tells_error(fields.error(found))

    def _begin(self) -> bytes:
        return self.raw.removeprefix(b"\xef\xbb\xbf").lstrip(_BLANKS)[:1]

    def _is_one_text(self) -> bool:
        if self.strict and not self._maybe_too_deep():
            return True
        if self.blank:
            return False
        self._may_run(len(self.raw))
        text = self.raw.decode("utf-8", "replace")
        try:
            return bool(_count.input_text(text, slurp=True).first() == 1)
        except ValueError:
            return False

    def _maybe_too_deep(self) -> bool:
        """Say whether msgspec may take what is nested too deeply for jq, and ask to decode it.

        msgspec stops at the interpreter's recursion limit, jq at a depth of its own.
        """
        self._may_decode()
        return len(self.raw) > 2 * limits.JQ_DEPTH and _depth_bound() > limits.JQ_DEPTH

    def _may_decode(self) -> None:
        if self.allowance is not None:
            self.allowance.decode(len(self.raw))

    def _may_split(self) -> None:
        if self.allowance is not None:
            self.allowance.split(len(self.raw))

    def _may_run(self, size: int) -> None:
        if self.allowance is not None:
            self.allowance.run(size, _SMALL)


def _tells_error(raw: Found) -> bool:
    if raw is None:
        return False
    begin = bytes(memoryview(raw)[:1])
    if begin == b'"':
        return len(raw) > 2
    return begin == b"{" and bytes(raw)[1:-1].strip(_BLANKS) != b""


def _depth_bound() -> int:
    """Return how deep msgspec may go; since Python 3.14 it depends on the stack's size."""
    return sys.getrecursionlimit() if sys.version_info < (3, 14) else sys.maxsize
