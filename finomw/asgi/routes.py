"""The route table: method and path to a rule, or to nothing.

Literal paths are one dictionary look-up. Paths with ``{name}`` segments are tried after them, the
one with the longest literal beginning first, so that the most particular rule decides. A HEAD
falls under the rule for GET: apps answer it by the same code.

A call must not reach the app by a spelling that no rule matches: it would be free. So a path is
taken as Starlette's router takes it (below ``root_path``, with a final newline that its patterns
overlook), and methods in any case.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Generic, NamedTuple, TypeVar

from starlette.types import Scope

from finomw.config.match import ANY_METHOD, Match, parameter

RuleT = TypeVar("RuleT")


class Matched(NamedTuple, Generic[RuleT]):
    """A rule that matches; ``rule`` is ``None`` for a free one."""

    rule: RuleT | None
    parameters: Mapping[str, str]


class _Pattern(NamedTuple, Generic[RuleT]):
    methods: tuple[str, ...]
    segments: tuple[str, ...]
    rule: RuleT | None

    def match(self, method: str, segments: list[str]) -> dict[str, str] | None:
        """Return the path's parameters, ``None`` where the pattern does not match."""
        if len(segments) != len(self.segments) or not (
            method in self.methods or ANY_METHOD in self.methods
        ):
            return None
        found: dict[str, str] = {}
        for wanted, segment in zip(self.segments, segments, strict=True):
            name = parameter(wanted)
            if name is None:
                if wanted != segment:
                    return None
            elif segment:
                found[name] = segment
            else:
                return None
        return found


class Router(Generic[RuleT]):
    """Rules by method and path."""

    def __init__(self) -> None:
        self._literal: dict[tuple[str, str], Matched[RuleT]] = {}
        self._patterns: list[_Pattern[RuleT]] = []

    def add(self, match: Match, rule: RuleT | None) -> None:
        """Add a rule; ``None`` is a free one."""
        if match.parameters:
            self._patterns.append(_Pattern(match.methods, match.segments, rule))
            self._patterns.sort(key=_particularity, reverse=True)
        else:
            for method in match.methods:
                self._literal[method, match.path] = Matched(rule, {})

    def find(self, method: str, path: str) -> Matched[RuleT] | None:
        """Return the rule for a call, ``None`` where no rule matches."""
        method = method.upper()
        found = self._find(method, path)
        if found is None and method == "HEAD":
            found = self._find("GET", path)
        if found is None and path.endswith("\n"):
            return self.find(method, path.rstrip("\n"))
        return found

    def _find(self, method: str, path: str) -> Matched[RuleT] | None:
        found = self._literal.get((method, path)) or self._literal.get((ANY_METHOD, path))
        if found is not None or not self._patterns:
            return found
        segments = path.split("/")[1:]
        for pattern in self._patterns:
            parameters = pattern.match(method, segments)
            if parameters is not None:
                return Matched(pattern.rule, parameters)
        return None


def _particularity(pattern: _Pattern[RuleT]) -> tuple[tuple[bool, ...], bool]:
    """Order patterns: a literal segment before a parameter, from the left; named methods first."""
    literal = tuple(parameter(segment) is None for segment in pattern.segments)
    return literal, ANY_METHOD not in pattern.methods


def app_path(scope: Scope) -> str:
    """Return a call's path as the app's own routes spell it: below where the app is mounted."""
    path: str = scope["path"]
    root: str = scope.get("root_path", "")
    below = path.removeprefix(root)
    return below if below.startswith("/") else path
