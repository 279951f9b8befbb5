"""The programs that run without jq: paths, defaults, arithmetic, lengths, objects of those.

A program's tree becomes a chain of closures over the decoded fields. Each gives exactly what jq
gives, or raises `Undecided` where that is not certain, and jq is asked. So failures are never
worked out here: jq alone words them.

Where numbers are not certain: jq computes in doubles, and reads literals of more than 17 digits
in a way of its own. So a number written with more than 17 characters is left to jq.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Final, TypeAlias

import msgspec

from finomw.metering.fields import Fields, Found, Path
from finomw.metering.syntax import Binary, Call, Expr, Literal, Object, Pipe, path_of

Evaluator: TypeAlias = Callable[[Any], object]

_EXACT: Final = 2**53
_DIGITS: Final = 17
_LARGEST: Final = 1.7976931348623157e308
"""What jq shows in place of infinity."""

_scalar: Final = msgspec.json.Decoder(int | float | str | bool | None).decode
_items: Final = msgspec.json.Decoder(list[msgspec.Raw]).decode
_members: Final = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_LENGTH_BYTES_MAX: Final = 65_536
"""Largest array or object whose length is counted here: it takes an object for each element."""


class Undecided(Exception):
    """What jq would give is not certain here."""


def evaluator(expr: Expr | None, fields: Fields) -> Evaluator | None:
    """Return what evaluates a program on decoded fields, or ``None`` where only jq can."""
    return None if expr is None else _compile(expr, (), fields)


def is_plain(expr: Expr | None, base: Path = ()) -> bool:
    """Say whether a program can be evaluated without jq."""
    if expr is None:
        return False
    path = path_of(expr)
    if path is not None:
        return bool(base + path)
    match expr:
        case Literal():
            return True
        case Binary("//" | "+" | "-" | "*", left, right):
            return is_plain(left, base) and is_plain(right, base)
        case Object(members):
            return all(is_plain(value, base) for _, value in members)
        case Pipe(left, right):
            path = path_of(left)
            return bool(path) and is_plain(right, base + (path or ()))
        case Call("length", ()):
            return bool(base)
    return False


def _compile(expr: Expr, base: Path, fields: Fields) -> Evaluator | None:
    if not is_plain(expr, base):
        return None
    path = path_of(expr)
    if path is not None:
        return _value_at(fields.getter(base + path))
    match expr:
        case Literal(value):
            constant = _number(value) if isinstance(value, float) else value
            return lambda _: constant
        case Binary(operator, left, right):
            return _binary(operator, _compile(left, base, fields), _compile(right, base, fields))
        case Object(members):
            return _object([(key, _compile(value, base, fields)) for key, value in members])
        case Pipe(left, right):
            here = base + (path_of(left) or ())
            return _behind(fields.getter(here), _compile(right, here, fields))
        case _:
            return _length_at(fields.getter(base))


def _behind(get: Callable[[Any], Found], then: Any) -> Evaluator:
    def value(found: Any) -> object:
        get(found)  # fails where the way there does, even where ``then`` reads nothing
        return then(found)

    return value


def _value_at(get: Callable[[Any], Found]) -> Evaluator:
    def value(found: Any) -> object:
        raw = get(found)
        return None if raw is None else value_of(raw)

    return value


def value_of(raw: msgspec.Raw) -> object:
    """Return a scalar as jq gives it; raises `Undecided` for all else."""
    try:
        value = _scalar(raw)
    except msgspec.DecodeError:
        raise Undecided from None
    if type(value) is int:
        if -_EXACT <= value <= _EXACT:
            return value
        raise Undecided
    if type(value) is float:
        if len(raw) > _DIGITS:
            raise Undecided
        return _number(value)
    return value


def _number(value: float) -> int | float:
    """Return a double as jq shows it: whole where it is whole, never infinite."""
    if value.is_integer():
        return int(value)
    if math.isinf(value):
        return math.copysign(_LARGEST, value)
    return value


def _binary(operator: str, left: Any, right: Any) -> Evaluator:
    if operator == "//":

        def alternative(found: Any) -> object:
            value = left(found)
            return right(found) if value is None or value is False else value

        return alternative
    if operator == "+":
        return lambda found: _add(left(found), right(found))
    sign = operator

    def computed(found: Any) -> object:
        one, other = left(found), right(found)
        if type(one) not in (int, float) or type(other) not in (int, float):
            raise Undecided
        one, other = float(one), float(other)
        return _number(one - other if sign == "-" else one * other)

    return computed


def _add(one: object, other: object) -> object:
    if one is None:
        return other
    if other is None:
        return one
    if type(one) in (int, float) and type(other) in (int, float):
        return _number(float(one) + float(other))  # type: ignore[arg-type]
    if isinstance(one, str) and isinstance(other, str):
        return one + other
    raise Undecided


def _object(members: list[tuple[str, Any]]) -> Evaluator:
    return lambda found: {key: value(found) for key, value in members}


def _length_at(get: Callable[[Any], Found]) -> Evaluator:
    def length(found: Any) -> object:
        raw = get(found)
        if raw is None:
            return 0
        if len(raw) > _LENGTH_BYTES_MAX:
            raise Undecided
        begin = bytes(memoryview(raw)[:1])
        try:
            if begin == b"[":
                return len(_items(raw))
            if begin == b"{":
                return len(_members(raw))
        except (msgspec.DecodeError, RecursionError):
            raise Undecided from None
        value = value_of(raw)
        if value is None:
            return 0
        if isinstance(value, str):
            return len(value)
        if type(value) in (int, float):
            return abs(value)  # type: ignore[arg-type]
        raise Undecided

    return length
