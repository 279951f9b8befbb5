"""Reads the usage out of an answer: one JSON text, or a stream of them.

A rule's ``meter`` gives each count as a number or as a jq program on the answer's JSON. Of one
JSON text the program's outcome is the meter's: a failure, or an answer that is not JSON, is
``INVALID``; null is ``MISSING``. How the texts of a stream come together is told in ``tally.py``.

A JSON array is a stream of its elements to each program that wants an object, as ``.usage.x`` does
and ``.results | length`` does: programs that fail on ``[]``. A program that does not fail on it, as
``length`` or ``map(.pages) | add``, sees the whole array as one text.
"""

from __future__ import annotations

from collections.abc import Mapping, Set
from typing import Literal

import msgspec

from finomw.metering import splits as splitting
from finomw.metering.allowance import Allowance
from finomw.metering.documents import Document
from finomw.metering.elements import ElementScanner
from finomw.metering.events import EventScanner
from finomw.metering.guard import Job
from finomw.metering.media import BOM
from finomw.metering.programs import compile_recipe
from finomw.metering.splits import Split
from finomw.metering.streams import StreamReader
from finomw.metering.tails import last_members
from finomw.metering.tally import Merge, Reading, Tally, is_error, reading
from finomw.metering.usage import Usage, usage_of
from finomw.types import UsageStatus


class Meter:
    """The meters of one rule, compiled once.

    ``names`` are all of them; ``flat`` tells that all are constants, so that no answer changes
    them; ``keeps_arrays`` that some program reads a JSON array as one text. ``ends`` are the names
    or types of events that end an event stream, besides ``[DONE]``; ``splits`` the meters that are
    parts of others; ``error`` a program that tells error objects besides their ``error``. Raises
    ``InvalidValue``, naming the meter, where ``spec`` cannot be compiled. ``apart`` is for the
    helper process.
    """

    __slots__ = (
        "_constants",
        "_ends",
        "_error",
        "_error_text",
        "_fields",
        "_merge",
        "_readings",
        "_spec",
        "_splits",
        "flat",
        "keeps_arrays",
        "names",
    )

    def __init__(
        self,
        spec: Mapping[str, int | str],
        merge: Merge = "last",
        ends: Set[str] = frozenset(),
        *,
        splits: tuple[Split, ...] = (),
        error: str | None = None,
        apart: bool = False,
    ) -> None:
        recipe = compile_recipe(spec, error)
        self._spec = dict(spec)
        self._splits = splits
        self._error_text = error
        self._error = recipe.error
        self._constants = recipe.constants
        self._fields = recipe.fields
        self._readings = tuple(reading(name, program, apart) for name, program in recipe.programs)
        self._merge = merge
        self._ends = frozenset(end.encode() for end in ends)
        self.names = tuple(spec)
        self.flat = not recipe.programs
        self.keeps_arrays = any(each.reads_arrays for each in self._readings)

    def tally(self) -> Tally:
        """Return an empty tally for the texts of one answer."""
        return Tally(
            self._constants,
            self._readings,
            self._merge,
            self.job("text"),
            self._fields,
            self._error,
        )

    def stream(self) -> StreamReader:
        """Return a reader for one answer that is an event stream."""
        return StreamReader(self.tally(), EventScanner(self._ends))

    def unread(self) -> Usage:
        """Return what is known of an answer that was not read."""
        return self.tally().usage()

    def lost(self) -> Usage:
        """Return what is known of an answer that could not be read: something, but not what."""
        return self.tally().lost()

    def job(self, kind: Literal["json", "tail", "text"]) -> Job:
        """Return what tells the helper process to read a body for this meter."""
        return Job(kind, self._spec, self._merge, self._splits, self._error_text)

    def read_json(self, body: bytes, allowance: Allowance | None = None) -> Usage:
        """Return the usage of an answer that is one JSON text. May raise `NotInline`.

        A body that is not JSON is not read as null: it said something that is lost, so what the
        programs read is ``INVALID``. An empty or blank body said nothing, and is null.
        """
        document = Document(body.removeprefix(BOM), allowance, self._fields)
        if not document.valid and not document.blank:
            return self.lost()
        if document.is_array:
            return self._read_array(document)
        outcomes: dict[str, int | UsageStatus] = dict(self._constants)
        for each in self._readings:
            outcomes[each.name] = _settled(each, document)
        return self._usage(outcomes, document)

    def _usage(self, outcomes: dict[str, int | UsageStatus], document: Document) -> Usage:
        told = splitting.apart(outcomes, self._splits)
        return usage_of(told, error=is_error(document, self._error))

    def _read_array(self, document: Document) -> Usage:
        if document.allowance is not None:
            document.allowance.split(len(document.raw))
        tally = self.tally()
        scanner = ElementScanner()
        for element in scanner.feed(document.raw):
            tally.take(Document(element, document.allowance, self._fields))
        outcomes = {
            each.name: _settled(each, document) for each in self._readings if each.reads_arrays
        }
        return tally.usage(outcomes)

    def read_tail(self, tail: bytes, allowance: Allowance | None = None) -> Usage:
        """Return the usage of a JSON object of which only the end was kept.

        What a program reads is known only where all that it looks at is among the object's last
        members; else it is ``MISSING``.
        """
        members = last_members(tail)
        text = b",".join(msgspec.json.encode(name) + b":" + members[name] for name in members)
        document = Document(b"{" + text + b"}", allowance, self._fields)
        outcomes: dict[str, int | UsageStatus] = dict(self._constants)
        for each in self._readings:
            known = document.valid and each.roots is not None and members.keys() >= each.roots
            outcomes[each.name] = _settled(each, document) if known else UsageStatus.MISSING
        return self._usage(outcomes, document)


def _settled(each: Reading, document: Document) -> int | UsageStatus:
    """Return the outcome for one text; what is no JSON to the RFC does not say null."""
    outcome = each.outcome(document)
    if outcome is None or (
        outcome is UsageStatus.MISSING and not document.blank and not document.strict
    ):
        return UsageStatus.INVALID
    return outcome
