"""Plain values into the structs of ``model``, one node at a time, with the path carried along.

``msgspec.convert`` stops at its first error and does not say which key of a mapping it was in;
so it converts single values here, and the walk over mappings and lists is ours. A node that is
wrong gives a problem and None, and its neighbours are still read: a struct is made only when
nothing in it was wrong.
"""

from __future__ import annotations

import functools
import re
import types
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Any, Final, Literal, TypeVar, Union, get_args, get_origin
from typing import get_type_hints as type_hints

import msgspec

from finomw.config import presets
from finomw.config.instant import parse_instant
from finomw.config.match import WEBSOCKET, Match, parse_match
from finomw.config.model import (
    FreeRoute,
    MeteredRoute,
    Minimum,
    Price,
    Prices,
    Route,
    RoutePrice,
    SocketRoute,
)
from finomw.config.values import REST, SIZE_UNITS, MeterKey, Unit
from finomw.config.wording import FloatText, join, nearest, shown
from finomw.errors import InvalidValue, Problem

_StructT = TypeVar("_StructT", bound=msgspec.Struct)

_SIZE: Final = re.compile(rf"([0-9]{{1,15}})({'|'.join(SIZE_UNITS)})")


class Reader:
    """Reads one file's nodes; ``problems`` grows by everything that was wrong."""

    def __init__(self, problems: list[Problem]) -> None:
        self._problems = problems

    def options(self, node: object, kind: type[msgspec.Struct], path: str) -> dict[str, Any]:
        """Return what ``node`` says for the options of ``kind``; None for a wrong one."""
        if not isinstance(node, dict):
            self._wrong(path, kind, node)
            return {}
        hints = _hints(kind)
        for key in node:
            if key not in hints:
                self._add(join(path, key), _unknown(key, kind))
        values = {}
        for field in msgspec.structs.fields(kind):
            name, where = field.name, join(path, field.name)
            if name in node:
                values[name] = self._value(node[name], hints[name], where)
            elif field.required:
                self._add(where, f"missing: expected {_expected(hints[name])}")
        return values

    def _struct(self, node: object, kind: type[_StructT], path: str) -> _StructT | None:
        before = len(self._problems)
        values = self.options(node, kind, path)
        return kind(**values) if len(self._problems) == before else None

    def _value(self, node: object, kind: Any, path: str) -> Any:
        bare = _bare(kind)
        if bare is Route:
            return self._route(node, path)
        if bare == tuple[RoutePrice, ...]:
            return self._versions(node, path)
        if bare is Prices:
            return self._prices(node, path)
        if _is_struct(bare):
            return self._struct(node, bare, path)
        if get_origin(bare) is dict and isinstance(node, dict):
            key_kind, value_kind = get_args(bare)
            for key in node:
                self._leaf(key, key_kind, join(path, key))
            return {key: self._value(node[key], value_kind, join(path, key)) for key in node}
        if get_origin(bare) is tuple and isinstance(node, list):
            item_kind = get_args(bare)[0]
            return tuple(self._value(item, item_kind, join(path, i)) for i, item in enumerate(node))
        return self._leaf(node, kind, path)

    def _leaf(self, node: object, kind: Any, path: str) -> Any:
        if isinstance(node, FloatText) and _marked(kind, Unit.USD):
            self._add(path, f'a floating-point number: write it in quotes: "{node.text}"')
            return None
        from_text = _from_text(kind)
        try:
            if from_text is not None:
                if isinstance(node, str):
                    return from_text(node)
            elif node is not None:  # no option takes null: one without a value is left out
                value = _size_bytes(node) if _marked(kind, Unit.BYTES) else node
                return msgspec.convert(value, kind)
        except (InvalidValue, msgspec.ValidationError):
            pass  # told in our own words, as every other wrong value is
        self._wrong(path, kind, node)
        return None

    def _route(self, node: object, path: str) -> Route | None:
        if not isinstance(node, dict):
            self._wrong(path, Route, node)
            return None
        free = node.get("free", False)
        # A `free` that is no boolean is the only thing to tell of such a rule.
        preset = bool({"meter", "extends", "receive", "send"} & node.keys())
        if free is True or (free is not False and not preset):
            return self._struct(node, FreeRoute, path)
        before = len(self._problems)
        if _is_socket(node.get("match")):
            return self._struct(node, SocketRoute, path)
        rule = presets.extended(node, path, self._problems)
        if len(self._problems) > before:
            return None
        return self._struct(rule, MeteredRoute, path)

    def _versions(self, node: object, path: str) -> tuple[RoutePrice | None, ...]:
        if isinstance(node, list):
            return tuple(self._version(item, join(path, i), i) for i, item in enumerate(node))
        return (self._version(node, path, None),)

    def _version(self, node: object, path: str, index: int | None) -> RoutePrice | None:
        before = len(self._problems)
        own, rest = _apart(node, ("valid_from", "by"))
        hints = _hints(RoutePrice)
        values = {key: self._value(own[key], hints[key], join(path, key)) for key in own}
        if "by" in own:
            values["lists"] = self._value(rest, dict[str, Prices], path)
        else:
            values["lists"] = {REST: self._prices(rest, path)}
        return RoutePrice(**values, index=index) if len(self._problems) == before else None

    def _prices(self, node: object, path: str) -> Prices | None:
        before = len(self._problems)
        own, rest = _apart(node, ("minimum",))
        values = {key: self._struct(own[key], Minimum, join(path, key)) for key in own}
        meters = self._value(rest, dict[MeterKey, Price], path)
        return Prices(meters=meters, **values) if len(self._problems) == before else None

    def _wrong(self, path: str, kind: Any, node: object) -> None:
        self._add(path, f"expected {_expected(kind)}, found {shown(node)}")

    def _add(self, path: str, message: str) -> None:
        self._problems.append(Problem(path, message))


def _is_socket(match: object) -> bool:
    """Say whether a rule is one for WebSockets: its options are others."""
    return isinstance(match, str) and match.startswith(f"{WEBSOCKET} ")


def _apart(node: object, keys: tuple[str, ...]) -> tuple[dict[str, object], object]:
    """Return what a mapping says for these keys, and the mapping without them."""
    if not isinstance(node, dict):
        return {}, node
    own = {key: node[key] for key in keys if key in node}
    return own, {key: value for key, value in node.items() if key not in own}


def _size_bytes(node: object) -> object:
    size = _SIZE.fullmatch(node) if isinstance(node, str) else None
    return int(size[1]) * SIZE_UNITS[size[2]] if size else node


def _directory(text: str) -> Path:
    if not text or "\0" in text:
        raise InvalidValue("expected the path of a directory")
    return Path(text)


_FROM_TEXT: Final[Mapping[type, Callable[[str], object]]] = {Path: _directory, Match: parse_match}
"""Types that the file spells as one text."""


def _from_text(kind: Any) -> Callable[[str], object] | None:
    if _marked(kind, Unit.INSTANT):
        return parse_instant
    bare = _bare(kind)
    return _FROM_TEXT.get(bare) if isinstance(bare, type) else None


@functools.cache
def _hints(kind: type[msgspec.Struct]) -> Mapping[str, Any]:
    """Return the types of the options of ``kind``, each without its ``| None``."""
    return {name: _present(hint) for name, hint in type_hints(kind, include_extras=True).items()}


def _present(hint: Any) -> Any:
    if get_origin(hint) in (Union, types.UnionType):
        present = [part for part in get_args(hint) if part is not types.NoneType]
        return present[0] if len(present) == 1 else hint
    return hint


def _bare(kind: Any) -> Any:
    return get_args(kind)[0] if get_origin(kind) is Annotated else kind


def _marked(kind: Any, unit: Unit) -> bool:
    return get_origin(kind) is Annotated and unit in get_args(kind)[1:]


def _is_struct(bare: Any) -> bool:
    return isinstance(bare, type) and issubclass(bare, msgspec.Struct) and bare not in _FROM_TEXT


def _expected(kind: Any) -> str:
    """Return what ``kind`` takes, in words."""
    if get_origin(kind) is Annotated:
        told = [meta.description for meta in get_args(kind)[1:] if isinstance(meta, msgspec.Meta)]
        return next(text for text in told if text)
    if get_origin(kind) is Literal:
        return " or ".join(get_args(kind))
    if _is_struct(kind):
        return f"a mapping of {', '.join(_hints(kind))}"
    return {bool: "true or false", str: "a text"}.get(kind, "a mapping")


def _unknown(key: str, kind: type[msgspec.Struct]) -> str:
    known = _hints(kind)
    if kind is FreeRoute and key in _hints(MeteredRoute):
        return f"not in a rule with free: true; known here: {', '.join(known)}"
    return f"unknown option{nearest(key, known)}; known here: {', '.join(known)}"
