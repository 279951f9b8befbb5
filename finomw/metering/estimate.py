"""The most that a call may use, known before it starts.

A rule's ``hold`` gives, for each meter, a fixed count or a jq program on the request's JSON
(``.max_tokens // 512``). The request is the customer's: a value in it that is no count refuses
the call, and is never replaced by a guess. A request that is not JSON reads as null, so that a
program's own default holds for it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import msgspec

from finomw import limits
from finomw.errors import FinomwError
from finomw.metering.counts import judge
from finomw.metering.documents import Document
from finomw.metering.programs import ProgramFailed, compile_recipe
from finomw.types import Counts, UsageStatus

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


class Estimate:
    """Worst-case counts of one rule, compiled once.

    Raises ``InvalidValue``, naming the meter, where ``spec`` cannot be compiled.
    """

    __slots__ = ("_recipe", "names", "needs_body")

    def __init__(self, spec: Mapping[str, int | str]) -> None:
        self._recipe = compile_recipe(spec)
        self.names = tuple(spec)
        self.needs_body = bool(self._recipe.programs)

    def counts(self, document: Document) -> Counts:
        """Return a count for each meter.

        Raises
        ------
        Unestimable
            A program failed on the request, or gave what is no count.
        """
        counts = dict(self._recipe.constants)
        for name, program in self._recipe.programs:
            try:
                value = program.run(document)
            except ProgramFailed as error:
                raise Unestimable(name, error) from None
            count = judge(value)
            if isinstance(count, UsageStatus):
                raise Unestimable(name, value)
            counts[name] = count
        return counts


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
