"""The most that a call may use, known before it starts.

A rule's ``hold`` gives, for each meter, a fixed count, a jq program on the request's JSON
(``.max_tokens // 512``), or a part of the request's size (``request_bytes / 4``). The request is
the customer's: a value in it that is no count refuses the call, and is never replaced by a guess.
A request that is not JSON reads as null, so that a program's own default holds for it. Of a batch,
a JSON array that a program fails on, it asks each element, and adds up.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final, NamedTuple

import msgspec

from finomw import limits
from finomw.errors import FinomwError
from finomw.metering.counts import judge
from finomw.metering.documents import Document
from finomw.metering.programs import (
    Program,
    ProgramFailed,
    bound,
    compile_program,
    compile_recipe,
)
from finomw.types import Counts, UsageStatus

_CONTEXT: Final = ""
"""The name, which no meter has, under which ``context`` is worked out."""
_SHOWN_MAX: Final = 40
"""Characters of a request's value that a message repeats."""


class Unestimable(FinomwError):
    """The request gives no count for a meter; names the meter and what was found."""

    def __init__(self, meter: str, value: object) -> None:
        super().__init__(
            f"{meter}: the request gives {_shown(value)}, "
            f"expected a whole number from 0 to {limits.COUNT_MAX}"
        )
        self.meter = meter
        self.value = value


_REQUEST_BYTES: Final = re.compile(r"\s*request_bytes\s*(?:/\s*0*([1-9][0-9]{0,8})\s*)?")
_IN_BATCH: Final = "[.[] | ({}\n)] | if all(type == {}) and all(. >= 0) then add else {{}} end"
_LETTER: Final = re.compile(rb"\\u00([2-7][0-9a-fA-F])")


class Bounds(NamedTuple):
    """What a rule says of the most that its calls may use.

    ``ceiling`` and ``context``, counts or programs on the request, are ``$ceiling`` and
    ``$context`` in its programs; ``context`` bounds what ``request_bytes`` comes to, and is all
    that it comes to where one of ``references`` is in the request.
    """

    ceiling: int | str | None = None
    context: int | str | None = None
    references: tuple[str, ...] = ()


_UNBOUNDED: Final = Bounds()


def divisor_of(source: int | str) -> int | None:
    """Return N of ``request_bytes / N``, 1 of ``request_bytes``; None for anything else."""
    found = _REQUEST_BYTES.fullmatch(source) if isinstance(source, str) else None
    return None if found is None else int(found[1] or 1)


def program_of(source: int | str, bounds: Bounds) -> int | str:
    """Return a program of ``hold`` with the variables that it names."""
    if isinstance(source, int):
        return source
    values = {"ceiling": bounds.ceiling, "context": bounds.context}
    return bound(source, {name: value for name, value in values.items() if value is not None})


class Estimate:
    """Worst-case counts of one rule, compiled once.

    ``needs_body`` tells that the request has to be read, ``needs_json`` that it has to be JSON,
    ``needs_size`` that its size counts. ``programs`` are all that may be run on it. Raises
    ``InvalidValue``, naming the meter, where ``spec`` cannot be compiled.
    """

    __slots__ = (
        "_batches",
        "_context",
        "_divisors",
        "_mention",
        "_recipe",
        "names",
        "needs_body",
        "needs_json",
        "needs_size",
        "programs",
    )

    def __init__(self, spec: Mapping[str, int | str], bounds: Bounds = _UNBOUNDED) -> None:
        self._divisors = {
            name: divisor
            for name, source in spec.items()
            if (divisor := divisor_of(source)) is not None
        }
        wanted = {
            name: program_of(source, bounds)
            for name, source in spec.items()
            if name not in self._divisors
        }
        self.needs_size = bool(self._divisors)
        if self.needs_size and bounds.context is not None:
            wanted[_CONTEXT] = bounds.context
        self._recipe = compile_recipe(wanted)
        self._mention = _mention(bounds.references) if self.needs_size else None
        self._batches = {
            name: compile_program(_IN_BATCH.format(program.text, '"number"'))
            for name, program in self._recipe.programs
        }
        self.names = tuple(spec)
        self.needs_json = bool(self._recipe.programs)
        self.needs_body = self.needs_json or self._mention is not None
        self.programs = tuple(
            each.text
            for name, program in self._recipe.programs
            for each in (program, self._batches[name])
        )

    def counts(self, document: Document, size: int | None = None) -> Counts:
        """Return a count for each meter, but for parts of others, which are held with those.

        ``size`` is that of the request in bytes, where ``document`` is not all of it.

        Raises
        ------
        Unestimable
            A program failed on the request, or gave what is no count.
        """
        counts = dict(self._recipe.constants)
        for name, program in self._recipe.programs:
            counts[name] = self._count(name, program, document)
        context = counts.pop(_CONTEXT, None)
        if self._divisors:
            size = len(document.raw) if size is None else size
            refers = self._mention is not None and mentions(document.raw, self._mention)
            for name, divisor in self._divisors.items():
                count = max(1, -(-size // divisor))
                if context is not None:
                    count = max(1, context if refers else min(count, context))
                counts[name] = count
        return counts

    def _count(self, name: str, program: Program, document: Document) -> int:
        try:
            value = program.run(document)
        except ProgramFailed as error:
            value = self._count_batch(name, document)
            if value is None:
                raise Unestimable(_said(name), error) from None
        count = judge(value)
        if isinstance(count, UsageStatus):
            raise Unestimable(_said(name), value)
        return count

    def _count_batch(self, name: str, document: Document) -> object:
        if not document.is_array:
            return None
        try:
            return self._batches[name].run(document)
        except ProgramFailed:
            return None


def mentions(raw: bytes, mention: re.Pattern[bytes]) -> bool:
    """Say whether one of some JSON strings is in a text, as a value, or as a key but of null or [].

    It is found however it is spelled; what merely looks like one is taken for one.
    """
    if b"\\u00" in raw:
        raw = _LETTER.sub(lambda found: bytes.fromhex(found[1].decode()), raw)
    return mention.search(raw) is not None


def _mention(references: tuple[str, ...]) -> re.Pattern[bytes] | None:
    if not references:
        return None
    texts = b"|".join(re.escape(text.encode()) for text in references)
    return re.compile(rb'"(?:' + texts + rb')"(?!\s*+:\s*+(?:null\b|\[\s*+\]))')


def _said(name: str) -> str:
    return "context" if name == _CONTEXT else name


def _shown(value: object) -> str:
    """Return a few printable characters that tell what was found."""
    if isinstance(value, dict):
        return "an object"
    if isinstance(value, list):
        return "an array"
    if isinstance(value, ProgramFailed):
        return f"an error ({_cut(str(value))})"
    if isinstance(value, str):
        return _cut(msgspec.json.encode(value[:_SHOWN_MAX]).decode())
    if value is None or isinstance(value, bool):
        return msgspec.json.encode(value).decode()
    return _cut(str(value))


def _cut(text: str) -> str:
    return text if len(text) <= _SHOWN_MAX else f"{text[: _SHOWN_MAX - 3]}..."
