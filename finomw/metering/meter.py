"""Reads the usage out of an answer: one JSON text, or a stream of events.

A rule's ``meter`` gives each count as a number or as a jq program on the answer's JSON. Of one
JSON text the program's outcome is the meter's: a failure, or an answer that is not JSON, is
``INVALID``; null is ``MISSING``.
How the events of a stream come together is told at `StreamReader`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import msgspec

from finomw.metering.counts import judge
from finomw.metering.documents import Document
from finomw.metering.events import EventScanner
from finomw.metering.programs import Program, ProgramFailed, compile_recipe
from finomw.metering.usage import Usage, is_error, usage_of
from finomw.types import Counts, UsageStatus

_NULL: Final = Document(b"null")


class _Reading(msgspec.Struct, frozen=True):
    """One program of a meter, and what it gives where nothing is said."""

    name: str
    program: Program
    quiet: int | UsageStatus
    fails_on_null: bool


class Meter:
    """The meters of one rule, compiled once.

    ``names`` are all of them; ``flat`` tells that all are constants, so that no answer changes
    them. Raises ``InvalidValue``, naming the meter, where ``spec`` cannot be compiled.
    """

    __slots__ = ("_constants", "_readings", "flat", "names")

    def __init__(self, spec: Mapping[str, int | str]) -> None:
        recipe = compile_recipe(spec)
        self._constants = recipe.constants
        self._readings = tuple(_reading(name, program) for name, program in recipe.programs)
        self.names = tuple(spec)
        self.flat = not recipe.programs

    def read_json(self, body: bytes) -> Usage:
        """Return the usage of an answer that is one JSON text.

        A body that is not JSON is not read as null: it said something that is lost, so what the
        programs read is ``INVALID``. An empty or blank body said nothing, and is null.
        """
        document = Document(body)
        unreadable = not document.valid and body != b"" and not body.isspace()
        outcomes: dict[str, int | UsageStatus] = dict(self._constants)
        for reading in self._readings:
            outcome = UsageStatus.INVALID if unreadable else _outcome(reading.program, document)
            outcomes[reading.name] = UsageStatus.INVALID if outcome is None else outcome
        return usage_of(outcomes, error=is_error(document.value))

    def stream(self) -> StreamReader:
        """Return a reader for one answer that is an event stream."""
        return StreamReader(self._constants, self._readings)


class StreamReader:
    """Reads the usage of one event stream while it passes; made by ``Meter.stream``.

    Every event is an answer of its own, and most say nothing about usage. Per meter the last event
    that says something wins (upstreams send totals, not increments), and saying nothing never
    erases what was said. An event says nothing about a meter where

    * it is not JSON, or larger than ``limits.EVENT_MAX``;
    * the outcome is null, or what the program also gives on null: for ``.usage.x // 0`` that is 0,
      for ``.usage.a - .usage.b`` a failure. A default is thus no count that an event carried;
    * the program fails on an event that is not an object, such as a ping.

    Any other failure or value that is no count comes from a wrong value in the event: ``INVALID``.
    Once some event has said something about one meter, the others get what null gives them: there
    a default holds. If no event said anything, all are ``MISSING``, defaults or not: a stream cut
    before its usage is never taken for a call that used 0.
    """

    __slots__ = ("_constants", "_error", "_readings", "_said", "_scanner")

    def __init__(self, constants: Counts, readings: tuple[_Reading, ...]) -> None:
        self._constants = constants
        self._readings = readings
        self._scanner = EventScanner()
        self._said: dict[str, int | UsageStatus] = {}
        self._error = False

    def feed(self, chunk: bytes) -> bool:
        """Read on; return whether the end marker is in this chunk or was in an earlier one.

        Once it is true, this chunk and all that follow it must wait for the settlement: a client
        that has seen the marker is served.
        """
        for data in self._scanner.feed(chunk):
            self._take(data)
        return self._scanner.ended

    def finish(self) -> Usage:
        """Take the stream as ended, however it ended, and return its usage.

        What has come of a last event is read as if it were whole; JSON that was cut off is none.
        """
        for data in self._scanner.finish():
            self._take(data)
        return self.usage()

    def usage(self) -> Usage:
        """Return what is known so far."""
        outcomes: dict[str, int | UsageStatus] = dict(self._constants)
        for reading in self._readings:
            unsaid = reading.quiet if self._said else UsageStatus.MISSING
            outcomes[reading.name] = self._said.get(reading.name, unsaid)
        return usage_of(outcomes, error=self._error)

    def _take(self, data: bytes) -> None:
        document = Document(data)
        if not document.valid:
            return
        if is_error(document.value):
            self._error = True
        for reading in self._readings:
            outcome = _outcome(reading.program, document)
            if outcome is None:
                if reading.fails_on_null or not isinstance(document.value, dict):
                    continue
                outcome = UsageStatus.INVALID
            if outcome is not UsageStatus.MISSING and not _same(outcome, reading.quiet):
                self._said[reading.name] = outcome


def _outcome(program: Program, document: Document) -> int | UsageStatus | None:
    """Return what the program's output is judged to be, or None where it failed."""
    try:
        return judge(program.run(document))
    except ProgramFailed:
        return None


def _reading(name: str, program: Program) -> _Reading:
    quiet = _outcome(program, _NULL)
    return _Reading(name, program, UsageStatus.MISSING if quiet is None else quiet, quiet is None)


def _same(one: int | UsageStatus, other: int | UsageStatus) -> bool:
    """Compare outcomes; a status is an integer too, and equals the count of its number."""
    return one == other and type(one) is type(other)
