"""jq programs, and the planner that spares jq most of its work.

A rule names its counts by jq programs. Most are plain: paths, defaults, sums of paths, objects of
those. All programs of a rule share one decoder that takes the members which they name out of a
document and skips the rest (``fields.py``); plain programs are evaluated on what it found
(``evaluate.py``), in a fraction of the time that jq needs. Of the others jq runs those that surely
read some members only (``references.py``) on a document of just these members, and the rest on the
whole document.

The invariant: which way a program ran cannot be told from the outcome. On every document it is
jq's first output on the whole, or a failure where jq fails. So whatever is not certain at one step
is left to the next: a text that msgspec does not take, a number in the way, a long literal.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping
from typing import Any, Final

import jq
import msgspec

from finomw.errors import FinomwError, InvalidValue
from finomw.metering.counts import judge
from finomw.metering.documents import Document
from finomw.metering.evaluate import Evaluator, Undecided, evaluator
from finomw.metering.fields import Fields, Missed, Part, Path
from finomw.metering.growth import growth
from finomw.metering.parser import parse
from finomw.metering.references import references
from finomw.metering.syntax import Expr
from finomw.types import Counts, UsageStatus

COMPLAINT_MAX: Final = 100
"""Characters kept of a run-time complaint: jq puts pieces of the document into it."""


class ProgramFailed(FinomwError):
    """A program met a value that it cannot work on, such as a member of a number."""


class Program:
    """A compiled program: the same document always gives the same outcome.

    ``paths`` is what it reads of a document, ``None`` where that may be everything; ``fields`` what
    decodes these.
    """

    __slots__ = ("_compiled", "_evaluate", "_growth", "_part", "fields", "paths", "text")

    def __init__(self, text: str, compiled: Any, tree: Expr | None, fields: Fields | None) -> None:
        self.text = text
        self.paths = references(tree)
        self._compiled = compiled
        self._growth = growth(tree)
        self.fields = fields if self.paths is not None else None
        self._evaluate: Evaluator | None = None
        self._part: Part | None = None
        if fields is not None and self.paths is not None:
            self._evaluate = evaluator(tree, fields)
            self._part = Part(fields, self.paths)

    def run(self, document: Document) -> object:
        """Return the first output, or None where there is none.

        Raises
        ------
        ProgramFailed
            As jq does.
        NotInline
            It might take longer than the document's allowance.
        """
        if document.known is not None and self.text in document.known:
            known = document.known[self.text]
            if known.failure is not None:
                raise ProgramFailed(known.failure)
            return known.value
        if self.fields is not None and self._part is not None:
            found = document.found(self.fields)
            if found is not None:
                try:
                    if self._evaluate is not None:
                        return self._evaluate(found)
                except Undecided:
                    pass
                except Missed:
                    return self._run_jq(document, document.text)
                try:
                    part = self._part.write(found).decode("utf-8", "replace")
                except Missed:
                    part = document.text
                return self._run_jq(document, part)
        return self._run_jq(document, document.text)

    def _run_jq(self, document: Document, text: str) -> object:
        if document.allowance is not None:
            document.allowance.run(len(text), self._growth)
        try:
            output: object = self._compiled.input_text(text).first()
        except StopIteration:
            return None
        except ValueError as error:
            raise ProgramFailed(str(error)[:COMPLAINT_MAX]) from None
        return output

    @property
    def plan(self) -> str:
        """How it runs, in words."""
        apart = "" if self._growth is not None else ", in the helper process"
        if self.paths is None:
            return f"jq on the whole document{apart}"
        names = ", ".join("." + ".".join(path) for path in sorted(self.paths)) or "nothing"
        return f"decode of {names}" if self._evaluate is not None else f"jq on {names}{apart}"


def compile_program(text: str) -> Program:
    """Compile one jq program by itself. Raises `InvalidValue`, as `compile_together` does."""
    return compile_together([text])[0]


def compile_together(texts: Iterable[str]) -> tuple[Program, ...]:
    """Compile jq programs that are run on the same documents: they share a decoder.

    Raises
    ------
    InvalidValue
        One does not compile; the message is the first line of jq's complaint.
    """
    compiled = [(text, *_compile(text)) for text in texts]
    paths: set[Path] = {("error",)}
    for _, _, tree in compiled:
        paths |= references(tree) or set()
    fields = Fields(paths)
    return tuple(Program(text, program, tree, fields) for text, program, tree in compiled)


@functools.lru_cache(maxsize=1024)
def _compile(text: str) -> tuple[Any, Expr | None]:
    if "\0" in text:  # to jq the program would end there
        raise InvalidValue("a jq program cannot hold a NUL character")
    try:
        return jq.compile(text), parse(text)
    except ValueError as error:
        raise InvalidValue(str(error).partition("\n")[0].rstrip(":")) from None


class Recipe(msgspec.Struct, frozen=True):
    """Where the counts of a rule come from: some are fixed, some a program reads."""

    constants: Counts
    programs: tuple[tuple[str, Program], ...]
    fields: Fields | None = None
    """The decoder that the programs share."""
    error: Program | None = None
    """What else tells that a document is an error object."""


def bound(text: str, variables: Mapping[str, int | str]) -> str:
    """Return a program in which ``$name`` is what the program or number of that name gives."""
    for name, source in variables.items():
        if f"${name}" in text:
            text = f"({source}\n) as ${name} | {text}"
    return text


def compile_recipe(spec: Mapping[str, int | str], error: str | None = None) -> Recipe:
    """Compile a rule's ``meter`` or ``hold``: meter name to a fixed count or a jq program.

    ``error`` is one more program that reads the same documents.

    Raises
    ------
    InvalidValue
        A number is not a count, or a program does not compile; names the meter.
    """
    constants: Counts = {}
    texts: dict[str, str] = {}
    for name, source in spec.items():
        if isinstance(source, str):
            try:
                _compile(source)
            except InvalidValue as error:
                raise InvalidValue(f"{name}: {error}") from None
            texts[name] = source
        else:
            count = judge(source)
            if isinstance(count, UsageStatus):
                raise InvalidValue(f"{name}: {source} is not a count")
            constants[name] = count
    *programs, failed = compile_together((*texts.values(), error or "null"))
    fields = next((each.fields for each in programs if each.fields is not None), None)
    named = tuple(zip(texts, programs, strict=True))
    return Recipe(constants, named, fields, failed if error else None)
