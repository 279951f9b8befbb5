"""How a program's time grows with its document: whether jq may run it on the event loop.

Nothing can interrupt jq, so what runs there must be surely fast on any document of some size. With
n for that size, each part of a program has three exponents of n: how many outputs it has, how large
they are together, and how long it takes; reading the document is not counted. ``.[]`` has many
outputs, but together they are not larger than its input, so ``map(.x) | add`` is linear.

The answers are upper bounds, constant factors left out. What is not understood has no bound, nor
has what could grow beyond any exponent: ``range(.n)``, ``.a * .b`` on texts, ``reduce``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

from finomw.metering.syntax import (
    Array,
    Assign,
    Binary,
    Bind,
    Call,
    Expr,
    Identity,
    If,
    Index,
    Iterate,
    Literal,
    Member,
    Object,
    Optional,
    Pipe,
    Recurse,
    Variable,
    path_of,
)


class Growth(NamedTuple):
    """Exponents: of the number of outputs, of their size together, of the time."""

    outputs: int
    size: int
    time: int


_ALL: Final = Growth(0, 1, 0)
_SMALL: Final = Growth(0, 0, 0)
_PASS: Final = Growth(0, 1, 1)
_SUM_UP: Final = Growth(0, 0, 1)

_LOOKING: Final = "length not type floor ceil round numbers booleans nulls"
_PASSING: Final = "strings arrays objects iterables scalars values first last empty"
_GOING_THROUGH: Final = (
    "add min max sort unique reverse keys keys_unsorted to_entries from_entries tostring tojson "
    "ascii_downcase ascii_upcase"
)
_ENTERING: Final = "map with_entries add sort_by group_by unique_by min_by max_by"

FUNCTIONS: Final[Mapping[tuple[str, int], Growth]] = {
    **dict.fromkeys(((name, 0) for name in _LOOKING.split()), _SMALL),
    **dict.fromkeys(((name, 0) for name in _PASSING.split()), _ALL),
    **dict.fromkeys(((name, 0) for name in _GOING_THROUGH.split()), _PASS),
    **dict.fromkeys(((name, 0) for name in ("any", "all", "tonumber", "utf8bytelength")), _SUM_UP),
    **dict.fromkeys(((name, 1) for name in _ENTERING.split()), _PASS),
    **dict.fromkeys(((name, 1) for name in ("any", "all")), _SUM_UP),
    **dict.fromkeys(((name, 1) for name in ("has", "select", "first")), _ALL),
}
"""What depends on its input and arguments alone, by name and number of arguments: how it grows,
its arguments left out."""

_EACH: Final = Iterate(Identity())
_REPEAT_MAX: Final = 1000
"""Largest constant that something may be multiplied with: a text times n is n copies of it."""


def growth(expr: Expr | None) -> Growth | None:
    """Return how a program grows, or ``None`` where there is no bound."""
    if expr is None:
        return None
    try:
        return _growth(expr, {})
    except _Unbounded:
        return None


class _Unbounded(Exception):
    """There is no bound for a part of the program."""


def _growth(expr: Expr, bound: Mapping[str, int]) -> Growth:
    """Return how ``expr`` grows; ``bound`` has the sizes of variables."""
    match expr:
        case Identity():
            return _ALL
        case Literal():
            return _SMALL
        case Variable(name):
            return Growth(0, bound[name], 0)
        case Recurse():
            return Growth(1, 2, 1)
        case Iterate(inner):
            outputs, size, time = _growth(inner, bound)
            return Growth(max(outputs, size), size, max(time, size))
        case Member(inner) | Index(inner) | Optional(inner):
            return _growth(inner, bound)
        case Pipe(left, right):
            return _after(_growth(left, bound), _growth(right, bound), bool(bound))
        case Array(inner):
            outputs, size, time = _SMALL if inner is None else _growth(inner, bound)
            return Growth(0, max(outputs, size), max(outputs, time))
        case Object(members):
            return _together([_growth(value, bound) for _, value in members])
        case Binary(operator, left, right):
            return _operator(operator, left, right, bound)
        case Assign(operator, target, value):
            return _assign(operator, target, value, bound)
        case If(condition, yes, no):
            return _together([_growth(part, bound) for part in (condition, yes, no)])
        case Bind(source, name, body):
            first = _growth(source, bound)
            then = _growth(body, {**bound, name: max(1, first.size)})
            return Growth(
                first.outputs + then.outputs,
                first.outputs + then.size,
                max(first.time, first.outputs + then.time),
            )
        case Call(name, arguments):
            return _call(name, arguments, bound)
    raise _Unbounded  # reduce: what is gathered may double at every step


def _after(first: Growth, then: Growth, variables: bool) -> Growth:
    """Return the growth of ``first | then``.

    The parts that ``first`` puts out are together as large as its size says; for each of them
    ``then`` takes a power of that part, so all together take no more than the power of the whole.
    That does not hold for variables, which are as large for each part.
    """
    size = max(1, first.size) if variables else first.size
    more = first.outputs if variables else 0
    outputs = max(first.outputs, more + size * then.outputs)
    return Growth(
        outputs,
        max(outputs, more + size * then.size),
        max(first.time, first.outputs, more + size * then.time),
    )


def _together(parts: list[Growth]) -> Growth:
    """Return the growth of something made of every combination of outputs."""
    outputs = sum(part.outputs for part in parts)
    size = max((part.size for part in parts), default=0)
    time = max((part.time for part in parts), default=0)
    return Growth(outputs, outputs + size, outputs + time)


def _operator(operator: str, left: Expr, right: Expr, bound: Mapping[str, int]) -> Growth:
    one, other = _growth(left, bound), _growth(right, bound)
    if operator in (",", "//"):
        return Growth(*map(max, zip(one, other, strict=True)))
    outputs, size, time = _together([one, other])
    if operator == "-":
        return Growth(outputs, size, max(time, 2 * size))  # arrays, element by element
    numbers = _is_number(left) and _is_number(right)
    if operator == "*" and not (numbers or _is_small(left) or _is_small(right)):
        raise _Unbounded
    return Growth(outputs, size, max(time, size))


def _is_number(expr: Expr) -> bool:
    """Say whether an expression gives numbers or nothing, and so never copies of a text."""
    if isinstance(expr, Pipe):
        return _is_number(expr.right)
    if isinstance(expr, Binary):
        return expr.operator in ("+", "-", "*") and all(map(_is_number, (expr.left, expr.right)))
    return isinstance(expr, Call) and expr.name in ("ceil", "floor", "round", "tonumber")


def _assign(operator: str, target: Expr, value: Expr, bound: Mapping[str, int]) -> Growth:
    """Return how ``target operator value`` grows, where the target is one place."""
    if path_of(target) is None:
        raise _Unbounded
    if operator in ("=", "//="):
        given = _growth(value, bound)
    elif operator == "|=":
        given = _growth(Pipe(target, value), bound)
    else:
        given = _operator(operator.removesuffix("="), target, value, bound)
    return _together([_PASS, given])


def _is_small(expr: Expr) -> bool:
    value = expr.value if isinstance(expr, Literal) else None
    return isinstance(value, int | float) and value <= _REPEAT_MAX


def _are_places(expr: Expr) -> bool:
    """Say whether an argument is one plain path, or several with commas."""
    match expr:
        case Binary(",", left, right):
            return _are_places(left) and _are_places(right)
    return path_of(expr) is not None


def _call(name: str, arguments: tuple[Expr, ...], bound: Mapping[str, int]) -> Growth:
    if name == "del" and len(arguments) == 1 and _are_places(arguments[0]):
        return _PASS
    own = FUNCTIONS.get((name, len(arguments)))
    if own is None:
        raise _Unbounded
    if not arguments:
        return own
    inner = arguments[0]
    if name in ("select", "has", "first"):
        outputs, size, time = _growth(inner, bound)
        return Growth(outputs, max(1, size) + outputs, max(time, outputs))
    if name == "add":
        return _after(_growth(Array(inner), bound), own, bool(bound))
    outputs, size, time = _growth(Array(Pipe(_EACH, inner)), bound)
    return Growth(0, max(1, size), max(1, size, time))
