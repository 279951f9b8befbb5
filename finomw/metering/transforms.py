"""jq programs that rewrite a JSON text: a request, an answer, the data of an event.

What a program leaves as it was stays so to the byte: the rewriting is jq's only where it makes a
difference. In what is rewritten, numbers that the program does not touch keep their value, however
long they are, and of members with the same name the last one stays, as in all of jq.

A text that is not JSON by the RFC, in UTF-8, is not rewritten: jq would take more than that, and
mend it.
"""

from __future__ import annotations

from typing import Final

import jq
import msgspec

from finomw.errors import InvalidValue
from finomw.metering.allowance import Allowance, NotInline
from finomw.metering.documents import Document
from finomw.metering.growth import growth
from finomw.metering.guard import Guard, Job
from finomw.metering.parser import parse
from finomw.metering.programs import COMPLAINT_MAX, ProgramFailed, compile_program

_WRAPPED: Final = '. as $finomw__ | (%s\n) | if . == $finomw__ then "" else tojson end'
_SAME, _NOTHING, _TEXT, _FAILED = b"=", b"-", b"+", b"!"
"""First byte of the helper's answer; the text, or the complaint, follows."""

_check: Final = msgspec.json.Decoder(msgspec.Raw).decode


class Transform:
    """A compiled program. Raises `InvalidValue` where it does not compile."""

    __slots__ = ("_compiled", "_growth", "text")

    def __init__(self, text: str) -> None:
        compile_program(text)  # by itself, so that the complaint is about what was written
        self.text = text
        self._growth = growth(parse(text))
        try:
            self._compiled = jq.compile(_WRAPPED % text)
        except ValueError:
            raise InvalidValue("expected a program that could stand in parentheses") from None

    @property
    def plan(self) -> str:
        """How it runs, in words."""
        apart = "" if self._growth is not None else ", in the helper process"
        return f"jq on the whole document{apart}"

    def run(self, raw: bytes, allowance: Allowance | None = None) -> bytes | None:
        """Return what a text becomes: ``raw`` itself if unchanged, None if there is no output.

        Raises
        ------
        ProgramFailed
            As jq does; also where the text is not JSON.
        NotInline
            It might take longer than the allowance.
        """
        if not Document(raw, allowance).strict:
            raise ProgramFailed("not a JSON text")
        if allowance is not None:
            allowance.run(len(raw), self._growth)
        try:
            output = self._compiled.input_text(raw.decode("utf-8")).first()
        except StopIteration:
            return None
        except ValueError as error:  # jq's complaint, or bytes that are no UTF-8
            raise ProgramFailed(str(error)[:COMPLAINT_MAX]) from None
        if not output:
            return raw
        written: bytes = output.encode("utf-8", "surrogatepass")
        try:
            _check(written)
        except (msgspec.DecodeError, RecursionError):
            raise ProgramFailed("the output is nested too deeply to be written") from None
        return written

    async def apply(self, raw: bytes, guard: Guard) -> bytes | None:
        """Do the same, in the helper process where it may take long. Raises `ProgramFailed`."""
        try:
            return self.run(raw, Allowance())
        except NotInline:
            reply = await guard.ask(Job("transform", {"": self.text}), raw)
        if reply is None:
            raise ProgramFailed("it takes too long")
        if reply.startswith(_FAILED):
            raise ProgramFailed(reply[1:].decode())
        if reply.startswith(_NOTHING):
            return None
        return raw if reply.startswith(_SAME) else reply[1:]

    def answer(self, raw: bytes) -> bytes:
        """Return what `apply` reads, in the helper process."""
        try:
            written = self.run(raw)
        except ProgramFailed as error:
            return _FAILED + str(error).encode("utf-8", "replace")
        if written is None:
            return _NOTHING
        return _SAME if written is raw else _TEXT + written
