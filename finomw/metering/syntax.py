"""The part of jq's language that the planner understands, as a tree.

A node is what it says and no more: what a program reads, how much it may give, and how it is run
without jq are told elsewhere (``references.py``, ``growth.py``, ``evaluate.py``), each as one walk
over the tree. What has no node here is left to jq.
"""

from __future__ import annotations

from typing import TypeAlias

import msgspec


class Node(msgspec.Struct, frozen=True):
    """A part of a program."""


class Identity(Node, frozen=True):
    """``.``."""


class Literal(Node, frozen=True):
    """A constant: ``value`` as jq gives it."""

    value: int | float | str | bool | None


class Variable(Node, frozen=True):
    """``$name``, bound by the program itself."""

    name: str


class Member(Node, frozen=True):
    """``target.key``."""

    target: Expr
    key: str


class Index(Node, frozen=True):
    """``target[number]``."""

    target: Expr


class Iterate(Node, frozen=True):
    """``target[]``."""

    target: Expr


class Recurse(Node, frozen=True):
    """``..``."""


class Optional(Node, frozen=True):
    """``target?``."""

    target: Expr


class Pipe(Node, frozen=True):
    """``left | right``."""

    left: Expr
    right: Expr


class Binary(Node, frozen=True):
    """``left operator right``; the comma is one of the operators."""

    operator: str
    left: Expr
    right: Expr


class Assign(Node, frozen=True):
    """``target = value``, or another operator that assigns, such as ``|=``."""

    operator: str
    target: Expr
    value: Expr


class Array(Node, frozen=True):
    """``[inner]``; no ``inner`` for ``[]``."""

    inner: Expr | None


class Object(Node, frozen=True):
    """``{key: value, ...}``."""

    members: tuple[tuple[str, Expr], ...]


class Call(Node, frozen=True):
    """``name`` or ``name(argument; ...)``."""

    name: str
    arguments: tuple[Expr, ...]


class If(Node, frozen=True):
    """``if condition then yes else no end``; without ``else``, ``no`` is ``.``."""

    condition: Expr
    yes: Expr
    no: Expr


class Bind(Node, frozen=True):
    """``source as $name | body``."""

    source: Expr
    name: str
    body: Expr


class Reduce(Node, frozen=True):
    """``reduce source as $name (start; update)``."""

    source: Expr
    name: str
    start: Expr
    update: Expr


Expr: TypeAlias = (
    Identity
    | Literal
    | Variable
    | Member
    | Index
    | Iterate
    | Recurse
    | Optional
    | Pipe
    | Binary
    | Assign
    | Array
    | Object
    | Call
    | If
    | Bind
    | Reduce
)


def path_of(expr: Expr) -> tuple[str, ...] | None:
    """Return the keys of a plain path such as ``.a.b`` or ``.a | .b``, else ``None``."""
    match expr:
        case Identity():
            return ()
        case Member(target, key):
            path = path_of(target)
            return None if path is None else (*path, key)
        case Pipe(left, right):
            first, second = path_of(left), path_of(right)
            return None if first is None or second is None else first + second
    return None
