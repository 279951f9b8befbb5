r"""A rule's ``match``: the methods and the path of the calls it is for.

``METHOD PATH``: one method in capitals, several with commas, or ``*``; the path as the app sees
it, each segment literal or a ``{name}``. What looks like more (``*`` in a path, a ``{name:path}``,
a percent escape) would match nothing, and a call that no rule matches may be a call that nobody
pays for: so it is refused.
"""

from __future__ import annotations

import re
from typing import Final

import msgspec

from finomw.errors import InvalidValue, quoted

ANY_METHOD: Final = "*"

WEBSOCKET: Final = "WS"
"""What stands for a method where a rule is for WebSockets; ``*`` is for HTTP alone."""

_FORM: Final = re.compile(r"(?P<methods>\*|[A-Z]+(?:,[A-Z]+)*) (?P<path>/\S*)")
_LITERAL: Final = re.compile(r"[^{}?#*%\\]*")
_PARAMETER: Final = re.compile(r"\{([A-Za-z_][A-Za-z0-9_]*)\}")


class Match(msgspec.Struct, frozen=True, kw_only=True):
    """Which calls a rule is for."""

    methods: tuple[str, ...]
    """Methods in capitals, each once; ``("*",)`` for all."""
    path: str
    """The path as written, with its ``{name}`` segments."""

    @property
    def segments(self) -> tuple[str, ...]:
        """The path's segments: ``/a/{id}`` has ``a`` and ``{id}``."""
        return tuple(self.path.split("/")[1:])

    @property
    def parameters(self) -> tuple[str, ...]:
        """The names of the path's parameters, in their order."""
        return tuple(name for name in map(parameter, self.segments) if name is not None)

    @property
    def shape(self) -> str:
        """The path without its parameters' names: two equal shapes match the same paths."""
        return _PARAMETER.sub("{}", self.path)


def apart(match: Match) -> tuple[Match | None, Match | None]:
    """Return which HTTP calls a rule is for, and which WebSockets; None for none."""
    http = tuple(method for method in match.methods if method != WEBSOCKET)
    socket = None if WEBSOCKET not in match.methods else (WEBSOCKET,)
    return (
        msgspec.structs.replace(match, methods=http) if http else None,
        msgspec.structs.replace(match, methods=socket) if socket else None,
    )


def parameter(segment: str) -> str | None:
    """Return the name in a ``{name}`` segment; None for a literal one."""
    found = _PARAMETER.fullmatch(segment)
    return found[1] if found else None


def parse_match(text: str) -> Match:
    """Read ``METHOD PATH``; raises ``InvalidValue``."""
    form = _FORM.fullmatch(text)
    if form is None:
        raise InvalidValue(f"match: expected METHOD PATH, found {quoted(text)}")
    match = Match(methods=tuple(form["methods"].split(",")), path=form["path"])
    if len(set(match.methods)) < len(match.methods):
        raise InvalidValue(f"match: a method stands twice in {quoted(text)}")
    if len(set(match.parameters)) < len(match.parameters):
        raise InvalidValue(f"match: a parameter stands twice in {quoted(text)}")
    for segment in match.segments:
        if parameter(segment) is None and not _LITERAL.fullmatch(segment):
            raise InvalidValue(f"match: neither literal nor a {{name}}: {quoted(segment)}")
    return match
