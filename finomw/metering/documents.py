"""A JSON text that several programs read.

A request or an answer is looked at by a handful of small programs: paths want the decoded value,
jq wants the text. A ``Document`` makes each of the two once, and only if somebody asks.

There is one judge of what JSON is: msgspec, which keeps to the RFC. jq alone is more lenient (it
takes ``NaN``, ``01``, ``1e400``, two texts in a row), so a text that msgspec refuses is never
shown to jq: it is not valid and reads as null, whichever way a program is run.
"""

from __future__ import annotations

from typing import Final

import msgspec

_decode: Final = msgspec.json.Decoder().decode


class Document:
    """The JSON text ``raw``, read lazily and at most once.

    Nothing here raises: bytes that are not JSON, or are nested deeper than the decoder goes, make
    a document that is not ``valid`` and reads as null.
    """

    __slots__ = ("_read", "_text", "_valid", "_value", "raw")

    def __init__(self, raw: bytes) -> None:
        self.raw = raw
        self._read = False
        self._valid = False
        self._value: object = None
        self._text: str | None = None

    @property
    def valid(self) -> bool:
        """Whether the bytes are one JSON text."""
        if not self._read:
            self._decode()
        return self._valid

    @property
    def value(self) -> object:
        """The decoded value; of members with the same name the last. None where not valid."""
        if not self._read:
            self._decode()
        return self._value

    @property
    def text(self) -> str:
        """What jq is given: the text itself, or ``null`` where it is not valid."""
        if self._text is None:
            self._text = self.raw.decode() if self.valid else "null"
        return self._text

    def _decode(self) -> None:
        self._read = True
        try:
            self._value = _decode(self.raw)
        except (msgspec.DecodeError, RecursionError):
            return
        self._valid = True
