"""Generated decoders that take a few paths out of a document and skip the rest.

For the paths ``usage.prompt_tokens`` and ``error`` this makes the msgspec structs
``{usage: {prompt_tokens: Raw} | None, error: Raw}``: msgspec skips every other member without
decoding it, and leaves the members named as bytes.

The decoding fails, and the document then has to be read whole, where it is not JSON, or where
something on the way to a path is neither an object nor null: there jq fails too, and says how. Of
members with the same name the last counts, in msgspec as in jq. Skipping is strict but for two
things that jq does not mind either: bytes that are not UTF-8, and numbers out of range.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from operator import attrgetter
from typing import Any, Final, TypeAlias

import msgspec

Path: TypeAlias = tuple[str, ...]
Found: TypeAlias = msgspec.Raw | None
"""A member's bytes without blanks around them, or None where it is missing."""


class Missed(Exception):
    """Something on the way to a path is neither an object nor null."""


class Fields:
    """The decoder of some paths, none of them empty."""

    __slots__ = ("_decode", "_nothing", "_parts", "error")

    def __init__(self, paths: Iterable[Path]) -> None:
        parts: dict[str, list[Path]] = {}
        for path in sorted(set(paths)):
            parts.setdefault(path[0], []).append(path[1:])
        names = {key: f"f{number}" for number, key in enumerate(parts)}
        types: list[tuple[str, Any, Any]] = []
        self._parts: dict[str, tuple[Callable[[Any], Any], Fields | None, bool]] = {}
        for key, rests in parts.items():
            deeper = [rest for rest in rests if rest]
            inner = Fields(deeper) if deeper else None
            # What is wanted whole as well stays bytes, and is decoded again for what is in it.
            raw = inner is None or len(deeper) < len(rests)
            kind: Any = msgspec.Raw if raw or inner is None else inner._struct
            types.append((names[key], kind if raw else kind | None, None))
            self._parts[key] = (attrgetter(names[key]), inner, raw)
        struct: Any = msgspec.defstruct(
            "Fields", types, rename={name: key for key, name in names.items()}, gc=False
        )
        self._nothing = struct()
        self.error: Callable[[Any], Found] | None = (
            self.getter(("error",)) if () in parts.get("error", ()) else None
        )
        """Gets the member ``error``, where it is one of the paths."""
        self._decode: Callable[[bytes | msgspec.Raw], Any] = msgspec.json.Decoder(
            struct | None
        ).decode

    @property
    def _struct(self) -> Any:
        return type(self._nothing)

    def decode(self, document: bytes | msgspec.Raw) -> object:
        """Return what ``getter`` and ``part`` read from.

        Raises
        ------
        msgspec.DecodeError, RecursionError
            The document has to be read whole.
        """
        found = self._decode(document)
        return self._nothing if found is None else found

    def getter(self, path: Path) -> Callable[[Any], Found]:
        """Return what gets a path's bytes out of what was decoded; it may raise `Missed`."""
        get, inner, raw = self._parts[path[0]]
        if inner is None or len(path) == 1:
            return get
        below = inner.getter(path[1:])
        if not raw:

            def within(found: Any) -> Found:
                value = get(found)
                return None if value is None else below(value)

            return within

        def decoded(found: Any) -> Found:
            value = get(found)
            try:
                return None if value is None else below(inner.decode(value))
            except (msgspec.DecodeError, RecursionError):
                raise Missed from None

        return decoded


class Part:
    """Writes the smallest document that has some of the paths."""

    __slots__ = ("_getters",)

    def __init__(self, fields: Fields, paths: Iterable[Path]) -> None:
        every = frozenset(paths)
        self._getters = tuple(
            (path, fields.getter(path))
            for path in sorted(every)
            if not any(path[:size] in every for size in range(len(path)))
        )

    def write(self, found: object) -> bytes:
        """Return that document, made of what was decoded; it may raise `Missed`."""
        tree: dict[str, Any] = {}
        for path, get in self._getters:
            raw = get(found)
            if raw is not None:
                inside = tree
                for key in path[:-1]:
                    inside = inside.setdefault(key, {})
                inside[path[-1]] = raw
        return _encode(tree)


_encode: Final = msgspec.json.Encoder().encode
