"""How problems of a configuration speak: the path of an option, a value, the nearest name.

Everything that judges the file (its reading, the checks, the price plans) names places and values
the same way, on one line, whatever stands in the file.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Collection, Iterable
from typing import Final, NamedTuple

from finomw.errors import quoted

_PLAIN_KEY: Final = re.compile(r"[\w.*/:@+-]+")


class FloatText(NamedTuple):
    """A floating-point number of the file, as written: no option takes one, so none is made."""

    text: str


def join(path: str, key: str | int) -> str:
    """Return the path of ``key`` inside ``path``: ``routes[2]``, ``plans.default``."""
    if isinstance(key, int):
        return f"{path}[{key}]"
    if not _PLAIN_KEY.fullmatch(key):
        return f"{path}[{quoted(key)}]"
    return f"{path}.{key}" if path else key


def shown(value: object) -> str:
    """Return a value of the file in the file's own terms, for ``found …``."""
    match value:
        case None:
            return "nothing"
        case bool():
            return "true" if value else "false"
        case int():
            return str(value)
        case str():
            return quoted(value)
        case FloatText():
            return value.text
        case list():
            return "a list"
        case _:
            return "a mapping"


def nearest(name: str, known: Iterable[str]) -> str:
    """Return ``; nearest: X`` when one of ``known`` is close to ``name``, else nothing."""
    found = difflib.get_close_matches(name, list(known), n=1)
    return f"; nearest: {found[0]}" if found else ""


def unknown_meter(meter: str, known: Collection[str]) -> str:
    """Return what to say of a meter that is not among ``known``."""
    return f"unknown meter{nearest(meter, known)}; meters here: {', '.join(known)}"
