"""What a program reads of its document: which part of it jq has to see.

The answer errs to the safe side: a program that is not understood, or whose functions are not
known to depend on their input alone (``input``, ``$__loc__``), reads the whole document.
"""

from __future__ import annotations

from typing import TypeAlias

from finomw.metering.growth import FUNCTIONS
from finomw.metering.syntax import (
    Array,
    Binary,
    Bind,
    Call,
    Expr,
    If,
    Index,
    Iterate,
    Literal,
    Member,
    Object,
    Optional,
    Pipe,
    Recurse,
    Reduce,
    Variable,
    path_of,
)

Path: TypeAlias = tuple[str, ...]


def references(expr: Expr | None) -> frozenset[Path] | None:
    """Return the paths that a program reads, or ``None`` where it may read everything.

    On two documents that agree on these paths, with objects or nulls on the way to them, the
    program gives the same outputs and failures.
    """
    found = None if expr is None else _references(expr, ())
    return None if found is None or () in found else frozenset(found)


def _references(expr: Expr, base: Path | None) -> set[Path] | None:
    """Return what ``expr`` reads where its input lies at ``base``; ``None``: it may read anything.

    Without a base, the input is a value that was made of what is already counted.
    """
    path = path_of(expr)
    if path is not None:
        return set() if base is None else {base + path}
    match expr:
        case Literal() | Variable():
            return set()
        case Recurse():
            return _input(base)
        case Member(inner) | Index(inner) | Iterate(inner) | Optional(inner):
            return _references(inner, base)
        case Pipe(left, right):
            return _through(left, right, base)
        case Binary(_, left, right):
            return _union(base, left, right)
        case Array(inner):
            return set() if inner is None else _references(inner, base)
        case Object(members):
            return _union(base, *(value for _, value in members))
        case If(condition, yes, no):
            return _union(base, condition, yes, no)
        case Bind(source, _, body):
            return _union(base, source, body)
        case Reduce(source, _, start, update):
            if _references(update, None) is None:
                return None
            return _union(base, source, start)
        case Call(name, arguments):
            known = (name, len(arguments)) in FUNCTIONS
            inside = _union(None, *arguments)
            return _input(base) if known and inside is not None else None
    return None


def _through(left: Expr, right: Expr, base: Path | None) -> set[Path] | None:
    """Return what ``left | right`` reads."""
    path = path_of(left)
    if path is None or base is None:
        first, second = _references(left, base), _references(right, None)
        return None if first is None or second is None else first
    here = base + path
    found = _references(right, here)
    if found is not None and not any(one[: len(here)] == here for one in found):
        found.add(here)  # the way there may fail, even where nothing is read at its end
    return found


def _union(base: Path | None, *parts: Expr) -> set[Path] | None:
    total: set[Path] = set()
    for part in parts:
        found = _references(part, base)
        if found is None:
            return None
        total |= found
    return total


def _input(base: Path | None) -> set[Path]:
    return set() if base is None else {base}
