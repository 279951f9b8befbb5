"""jq programs, and the planner that runs the plain ones without jq.

A rule names its counts by jq programs. Most are plain paths (``.usage.prompt_tokens // 0``), and
a path is walked on the decoded document in a fraction of the time that jq needs. Everything else
is run by jq, on the whole text.

The invariant: which of the two ran cannot be told from the outcome. On every document both give
jq's first output or both fail. (One limit: jq counts in doubles, so an integer beyond 2**53 may
come out rounded.) Every text is compiled by jq first, so the planner only ever sees programs that
jq accepts, and takes only those whose meaning it knows exactly.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final, NoReturn, Protocol

import jq
import msgspec

from finomw.errors import FinomwError, InvalidValue
from finomw.metering.counts import judge
from finomw.metering.documents import Document
from finomw.types import Counts, UsageStatus

_COMPLAINT_MAX: Final = 100
"""Characters kept of a run-time complaint: jq puts pieces of the document into it."""

# Blanks are jq's own four. A string literal with a backslash is left to jq (escapes, "\(...)").
_PLAIN_PATH: Final = re.compile(
    r"""
    [ \t\r\n]*
    (?P<path> \. | (?: \.[A-Za-z_][A-Za-z0-9_]* [ \t\r\n]* )+ )
    [ \t\r\n]*
    (?: // [ \t\r\n]* (?: (?P<number> -?[0-9]{1,15} ) | "(?P<string> [^"\\\x00-\x1f]* )" ) )?
    [ \t\r\n]*
    """,
    re.VERBOSE,
)


class ProgramFailed(FinomwError):
    """A program met a value that it cannot work on, such as a member of a number."""


class Program(Protocol):
    """A compiled program: the same document always gives the same outcome."""

    def run(self, document: Document) -> object:
        """Return the first output, or None where there is none; raises ``ProgramFailed``."""
        ...


class PathProgram(msgspec.Struct, frozen=True):
    """A plain path: ``keys`` from the outside in, then ``default`` in place of null and false.

    As in jq, null has every member, all of them null; any other value that is no object has
    none, which is a failure, and one that the default does not cover.
    """

    keys: tuple[str, ...]
    default: int | str | None

    def run(self, document: Document) -> object:
        """Walk the decoded document."""
        value = document.value
        for key in self.keys:
            if isinstance(value, dict):
                value = value.get(key)
            elif value is not None:
                _refuse_member(value, key)
        if self.default is not None and (value is None or value is False):
            return self.default
        return value


class JqProgram:
    """Any other program, run by jq."""

    __slots__ = ("_compiled",)

    def __init__(self, compiled: Any) -> None:
        self._compiled = compiled

    def run(self, document: Document) -> object:
        """Give jq the document's text."""
        try:
            output: object = self._compiled.input_text(document.text).first()
        except StopIteration:
            return None
        except ValueError as error:
            raise ProgramFailed(str(error)[:_COMPLAINT_MAX]) from None
        return output


def compile_program(text: str) -> Program:
    """Compile a jq program; plain paths are planned to run without jq.

    Raises
    ------
    InvalidValue
        It does not compile; the message is the first line of jq's complaint.
    """
    if "\0" in text:  # to jq the program would end there
        raise InvalidValue("a jq program cannot hold a NUL character")
    try:
        compiled = jq.compile(text)
    except ValueError as error:
        raise InvalidValue(str(error).partition("\n")[0].rstrip(":")) from None
    plain = _PLAIN_PATH.fullmatch(text)
    if plain is None:
        return JqProgram(compiled)
    keys = tuple(key.strip(" \t\r\n") for key in plain["path"].split(".") if key)
    number: str | None = plain["number"]
    return PathProgram(keys, plain["string"] if number is None else int(number))


class Recipe(msgspec.Struct, frozen=True):
    """Where the counts of a rule come from: some are fixed, some a program reads."""

    constants: Counts
    programs: tuple[tuple[str, Program], ...]


def compile_recipe(spec: Mapping[str, int | str]) -> Recipe:
    """Compile a rule's ``meter`` or ``hold``: meter name to a fixed count or a jq program.

    Raises
    ------
    InvalidValue
        A number is not a count, or a program does not compile; names the meter.
    """
    constants: Counts = {}
    programs: list[tuple[str, Program]] = []
    for name, source in spec.items():
        if isinstance(source, str):
            try:
                programs.append((name, compile_program(source)))
            except InvalidValue as error:
                raise InvalidValue(f"{name}: {error}") from None
        else:
            count = judge(source)
            if isinstance(count, UsageStatus):
                raise InvalidValue(f"{name}: {source} is not a count")
            constants[name] = count
    return Recipe(constants, tuple(programs))


def _refuse_member(value: object, key: str) -> NoReturn:
    kinds = {bool: "boolean", str: "string", list: "array"}
    kind = kinds.get(type(value), "number")
    raise ProgramFailed(f'Cannot index {kind} with string ("{key}")'[:_COMPLAINT_MAX])
