"""How the JSON texts of one stream come together to one usage.

Every text (an event, a line, an element of an array) is an answer of its own, and most say nothing
about usage. Saying nothing never erases what was said. A text says nothing about a meter where

* it is not JSON, or too large to be read;
* the outcome is null, or what the program also gives on null: for ``.usage.x // 0`` that is 0,
  for ``.usage.a - .usage.b`` a failure. A default is thus no count that a text carried;
* the program fails on a text that is not an object, such as a ping.

Any other failure or value that is no count comes from a wrong value in the text: ``INVALID``.
Once some text has said something about one meter, the others get what null gives them: there
a default holds. If no text said anything, all are ``MISSING``, defaults or not: a stream cut
before its usage is never taken for a call that used 0.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, TypeAlias

import msgspec

from finomw.metering.allowance import Allowance, NotInline
from finomw.metering.counts import judge
from finomw.metering.documents import Document
from finomw.metering.fields import Fields
from finomw.metering.guard import Guard, Job, Outcomes, ask_now
from finomw.metering.programs import Program, ProgramFailed
from finomw.metering.splits import apart
from finomw.metering.usage import Usage, usage_of
from finomw.types import Counts, UsageStatus

Merge: TypeAlias = Literal["last", "sum", "max"]
"""What becomes of the counts that several texts give one meter.

``last``: the last is right, as for totals, which upstreams send; a wrong value holds until a right
one follows. ``sum`` and ``max``: of all, and one wrong value among them makes the outcome wrong.
"""


class Reading(msgspec.Struct, frozen=True):
    """One program of a meter, and what it gives where nothing is said."""

    name: str
    program: Program
    quiet: int | UsageStatus
    fails_on_null: bool
    reads_arrays: bool
    """Whether an array is one text to it: it does not fail on ``[]``, as ``.usage`` would."""
    roots: frozenset[str] | None
    """The members of an object that it looks at, and no others; None where that is not known."""

    def outcome(self, document: Document) -> int | UsageStatus | None:
        """Return what the program's output is judged to be, or None where it failed."""
        return _outcome(self.program, document)


def reading(name: str, program: Program, apart: bool = False) -> Reading:
    """Try a program on what says nothing; ``apart``: this is the helper process."""
    quiet = _tried(program, b"null", apart)
    arrays = _tried(program, b"[]", apart) is not None
    said = UsageStatus.MISSING if quiet is None else quiet
    return Reading(name, program, said, quiet is None, arrays, _roots(program))


class Said(msgspec.Struct, frozen=True):
    """What one text says: about which meters, and whether it is an error object."""

    counts: Counts
    wrong: list[str]
    """Meters for which it has a value that is no count."""
    error: bool


class Tally:
    """The outcomes of one stream so far."""

    __slots__ = (
        "_constants",
        "_error",
        "_failed",
        "_job",
        "_merge",
        "_readings",
        "_said",
        "deltas",
        "fields",
    )

    def __init__(
        self,
        constants: Counts,
        readings: tuple[Reading, ...],
        merge: Merge,
        job: Job,
        fields: Fields | None,
        error: Program | None = None,
    ) -> None:
        self._job = job
        self.fields = fields
        self._failed = error
        self._constants = constants
        self._readings = readings
        self._merge = merge
        self._said: dict[str, int | UsageStatus] = {}
        self._error = False
        self.deltas = 0
        """How many objects said nothing about usage, and no error: parts of the answer itself."""

    def take(self, document: Document) -> None:
        """Read one more text; one that is not JSON says nothing. May raise `NotInline`."""
        self._count(document.raw, self.add(self.look(document)))

    async def take_apart(self, raw: bytes, guard: Guard) -> None:
        """Read one more text in the helper process; what cannot be read there is wrong."""
        reply = await guard.ask(self._job, raw)
        if reply is None:
            self.add(Said({}, [each.name for each in self._readings], error=False))
        else:
            self._count(raw, self.add(msgspec.json.decode(reply, type=Said)))

    def _count(self, raw: bytes, said: Said) -> None:
        self.deltas += raw.startswith(b"{") and not (said.counts or said.wrong or said.error)

    def look(self, document: Document) -> Said:
        """Return what a text says, and leave the tally as it is. May raise `NotInline`."""
        counts: Counts = {}
        wrong: list[str] = []
        if not document.raw.startswith(b"{") and not document.valid:
            return Said(counts, wrong, error=False)
        for each in self._readings:
            outcome = each.outcome(document)
            if outcome is None:
                if each.fails_on_null or not document.is_object:
                    continue
                outcome = UsageStatus.INVALID
            if outcome is UsageStatus.INVALID:
                if not _same(outcome, each.quiet):
                    wrong.append(each.name)
            elif outcome is not UsageStatus.MISSING and not _same(outcome, each.quiet):
                counts[each.name] = outcome
        return Said(counts, wrong, error=is_error(document, self._failed))

    def add(self, said: Said) -> Said:
        """Take in what a text said, and return it."""
        self._error |= said.error
        for name in said.wrong:
            self._merge_in(name, UsageStatus.INVALID)
        for name, count in said.counts.items():
            self._merge_in(name, count)
        return said

    def _merge_in(self, name: str, outcome: int | UsageStatus) -> None:
        said = self._said.get(name)
        self._said[name] = outcome if said is None else self._merged(said, outcome)

    def usage(self, instead: Mapping[str, int | UsageStatus] | None = None) -> Usage:
        """Return what is known so far, with the outcomes that are known otherwise."""
        told = apart({**self.outcomes(), **(instead or {})}, self._job.splits)
        return usage_of(told, error=self._error)

    def outcomes(self) -> dict[str, int | UsageStatus]:
        """Return what is known so far of each meter, the parts of others still among them."""
        outcomes: dict[str, int | UsageStatus] = dict(self._constants)
        for each in self._readings:
            unsaid = each.quiet if self._said else UsageStatus.MISSING
            outcomes[each.name] = self._said.get(each.name, unsaid)
        return outcomes

    def lost(self) -> Usage:
        """Return the usage where some of the texts could not be read: what they said is lost."""
        return self.usage({each.name: UsageStatus.INVALID for each in self._readings})

    def _merged(self, one: int | UsageStatus, other: int | UsageStatus) -> int | UsageStatus:
        if self._merge == "last":
            return other
        if isinstance(one, UsageStatus) or isinstance(other, UsageStatus):
            return UsageStatus.INVALID
        return judge(one + other) if self._merge == "sum" else max(one, other)


def is_error(document: Document, program: Program | None) -> bool:
    """Say whether a text is an error object: by its ``error``, or by what the rule says tells it.

    A program says so by ``true``, or by an object or text that is not empty. May raise `NotInline`.
    """
    if document.is_error:
        return True
    if program is None:
        return False
    try:
        value = program.run(document)
    except ProgramFailed:
        return False
    return value is True or (isinstance(value, dict | str) and len(value) > 0)


def _roots(program: Program) -> frozenset[str] | None:
    if program.paths is None or () in program.paths:
        return None
    return frozenset(path[0] for path in program.paths)


def _outcome(program: Program, document: Document) -> int | UsageStatus | None:
    try:
        return judge(program.run(document))
    except ProgramFailed:
        return None


def _tried(program: Program, raw: bytes, apart: bool) -> int | UsageStatus | None:
    """Return a program's outcome when it is compiled; one that takes too long has failed."""
    try:
        return _outcome(program, Document(raw, None if apart else Allowance()))
    except NotInline:
        reply = ask_now(Job("outcomes", {"": program.text}), raw)
        if reply is None:
            return None
        outcomes = msgspec.json.decode(reply, type=Outcomes)
        return None if outcomes.failures[0] is not None else judge(outcomes.values[0])


def _same(one: int | UsageStatus, other: int | UsageStatus) -> bool:
    """Compare outcomes; a status is an integer too, and equals the count of its number."""
    return one == other and type(one) is type(other)
