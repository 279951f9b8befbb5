"""Reading a jq program into the tree of ``syntax.py``, or not at all.

The parser is honest rather than complete. It sees only programs that jq has compiled, and gives a
tree only where it surely reads what jq reads: the same tokens, the same precedence. Comments,
string escapes, definitions, formats, slices, ``try``, ``foreach`` and whatever else
is not listed here end as "not understood", never as a guess; jq then runs the program as it is.
"""

from __future__ import annotations

import re
from typing import Final

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
    Reduce,
    Variable,
)

_TOKEN: Final = re.compile(
    r"""
      (?P<blank> [ \t\r\n]+ )
    | (?P<field> \.[A-Za-z_][A-Za-z0-9_]* )
    | (?P<number> [0-9]{1,15} (?: \.[0-9]{1,15} )? (?! [0-9.eE] ) )
    | (?P<string> " [^"\\\x00-\x1f\ud800-\udfff\ufffd]* " )
    | (?P<variable> \$[A-Za-z][A-Za-z0-9_]* (?! :: ) )
    | (?P<word> [A-Za-z_][A-Za-z0-9_]* (?! :: ) )
    | (?P<assign> //= | [-+*/%|]= | =(?!=) )
    | (?P<mark> \.\.(?!\.) | //(?!=) | [=!<>]= | [-+*/%|](?!=) | [<>] | [][(){}:;,?.] )
    """,
    re.VERBOSE,
)
_KEYWORDS: Final = frozenset(
    (
        *("as", "catch", "def", "elif", "else", "end", "foreach", "if", "import", "include"),
        *("label", "__loc__", "and", "or", "reduce", "then", "try"),
    )
)
_CONSTANTS: Final = {"null": None, "true": True, "false": False}
_COMPARE: Final = frozenset({"==", "!=", "<", "<=", ">", ">="})
_BEFORE_MINUS: Final = frozenset({"", "(", "[", ":", "//", "|", ",", ";"})
_AFTER_NUMBER: Final = frozenset({"", ")", "]", "}", "//", "|", ",", ";"})
_DEPTH_MAX: Final = 50


class _NotUnderstood(Exception):
    """The program has something that this parser does not know."""


def parse(text: str) -> Expr | None:
    """Return a compiled program's tree, or ``None`` where it is not surely understood."""
    try:
        parser = _Parser(_tokens(text))
        tree = parser.pipe()
        parser.take("")
    except _NotUnderstood:
        return None
    return tree


def _tokens(text: str) -> list[tuple[str, str]]:
    tokens: list[tuple[str, str]] = []
    position = 0
    while position < len(text):
        found = _TOKEN.match(text, position)
        if found is None:
            raise _NotUnderstood
        kind = found.lastgroup or ""
        if kind == "number" and "." in found[0] and len(found[0]) > 16:
            raise _NotUnderstood  # jq rounds long literals in its own way
        if kind != "blank":
            tokens.append((kind, found[0]))
        position = found.end()
    tokens.append(("", ""))
    return tokens


class _Parser:
    """Recursive descent, one method for each level of precedence, loosest first."""

    def __init__(self, tokens: list[tuple[str, str]]) -> None:
        self._tokens = tokens
        self._at = 0
        self._depth = 0
        self._bound: list[str] = []
        self._terms = (0, 0)
        """Where the last complete term began and ended."""

    @property
    def _next(self) -> str:
        """The next token's text; a string's is never an operator's, because of its quotes."""
        return self._tokens[self._at][1]

    def take(self, expected: str) -> None:
        """Step over a token that has to be there."""
        if self._next != expected:
            raise _NotUnderstood
        self._at += 1

    def _takes(self, expected: str) -> bool:
        if self._next != expected:
            return False
        self._at += 1
        return True

    def _kind(self, kind: str) -> str:
        if self._tokens[self._at][0] != kind:
            raise _NotUnderstood
        self._at += 1
        return self._tokens[self._at - 1][1]

    def pipe(self, comma: bool = True) -> Expr:
        """Read ``a | b``; object values have no comma."""
        self._depth += 1
        if self._depth > _DEPTH_MAX:
            raise _NotUnderstood
        begin = self._at
        tree = self._comma() if comma else self._alternative()
        if self._next == "as" and self._terms == (begin, self._at):
            tree = self._bind(tree, comma)
        elif self._takes("|"):
            tree = Pipe(tree, self.pipe(comma))
        self._depth -= 1
        return tree

    def _bind(self, source: Expr, comma: bool) -> Expr:
        self.take("as")
        name = self._kind("variable")
        self.take("|")
        return Bind(source, name, self._with(name, comma))

    def _with(self, name: str, comma: bool = True) -> Expr:
        """Read what may use a variable."""
        self._bound.append(name)
        body = self.pipe(comma)
        self._bound.pop()
        return body

    def _comma(self) -> Expr:
        left = self._alternative()
        while self._takes(","):
            left = Binary(",", left, self._alternative())
        return left

    def _alternative(self) -> Expr:
        left = self._assignment()
        return Binary("//", left, self._alternative()) if self._takes("//") else left

    def _assignment(self) -> Expr:
        """Read ``a = b``, which does not group."""
        left = self._left_to_right(0)
        if self._tokens[self._at][0] != "assign":
            return left
        operator = self._kind("assign")
        return Assign(operator, left, self._left_to_right(0))

    def _left_to_right(self, level: int) -> Expr:
        """Read the operators that group from the left, and the comparisons, which do not group."""
        if level == len(_LEVELS):
            return self._postfix()
        left = self._left_to_right(level + 1)
        while self._next in _LEVELS[level]:
            operator = self._next
            self._at += 1
            left = Binary(operator, left, self._left_to_right(level + 1))
            if operator in _COMPARE:
                break
        return left

    def _postfix(self) -> Expr:
        begin = self._at
        tree = self._term()
        while True:
            kind, text = self._tokens[self._at]
            if kind == "field":
                self._at += 1
                tree = Member(tree, text[1:])
            elif text == "." and self._tokens[self._at + 1][0] == "string":
                self._at += 1
                tree = Member(tree, self._kind("string")[1:-1])
            elif text == "[" or (text == "." and self._tokens[self._at + 1][1] == "["):
                self._at += 1 if text == "[" else 2
                tree = self._bracket(tree)
            elif text == "?":
                self._at += 1
                tree = Optional(tree)
            else:
                self._terms = (begin, self._at)
                return tree

    def _bracket(self, target: Expr) -> Expr:
        """Read the inside of ``[...]`` behind a term."""
        if self._takes("]"):
            return Iterate(target)
        kind, text = self._tokens[self._at]
        tree: Expr
        if kind == "string":
            tree = Member(target, text[1:-1])
        elif kind == "number" and "." not in text:
            tree = Index(target)
        else:
            raise _NotUnderstood
        self._at += 1
        self.take("]")
        return tree

    def _term(self) -> Expr:
        kind, text = self._tokens[self._at]
        before = self._tokens[self._at - 1][1] if self._at else ""
        self._at += 1
        match kind, text:
            case "field", _:
                return Member(Identity(), text[1:])
            case "number", _:
                return Literal(float(text) if "." in text else int(text))
            case "string", _:
                return Literal(text[1:-1])
            case "variable", _ if text in self._bound:
                return Variable(text)
            case "mark", "..":
                return Recurse()
            case "mark", ".":
                return self._dot()
            case "mark", "-" if before in _BEFORE_MINUS:
                return self._negative()
            case "mark", "(":
                inner = self.pipe()
                self.take(")")
                return inner
            case "mark", "[":
                return self._array()
            case "mark", "{":
                return self._object()
            case "word", "if":
                return self._if()
            case "word", "reduce":
                return self._reduce()
            case "word", _ if text not in _KEYWORDS:
                return Literal(_CONSTANTS[text]) if text in _CONSTANTS else self._call(text)
        raise _NotUnderstood

    def _dot(self) -> Expr:
        if self._tokens[self._at][0] == "string":
            return Member(Identity(), self._kind("string")[1:-1])
        return Identity()

    def _negative(self) -> Expr:
        """Read a negative constant, where nothing could bind tighter than its sign."""
        text = self._kind("number")
        if self._next not in _AFTER_NUMBER:
            raise _NotUnderstood
        return Literal(-float(text) if "." in text else -int(text))

    def _array(self) -> Expr:
        if self._takes("]"):
            return Array(None)
        inner = self.pipe()
        self.take("]")
        return Array(inner)

    def _object(self) -> Expr:
        members: list[tuple[str, Expr]] = []
        while not self._takes("}"):
            kind, text = self._tokens[self._at]
            if kind not in ("word", "string") or text == "__loc__":
                raise _NotUnderstood
            self._at += 1
            key = text if kind == "word" else text[1:-1]
            value: Expr = Member(Identity(), key)
            if self._takes(":"):
                value = self.pipe(comma=False)
            members.append((key, value))
            if self._next != "}":
                self.take(",")
        return Object(tuple(members))

    def _call(self, name: str) -> Expr:
        arguments: list[Expr] = []
        if self._takes("("):
            arguments.append(self.pipe())
            while self._takes(";"):
                arguments.append(self.pipe())
            self.take(")")
        return Call(name, tuple(arguments))

    def _if(self) -> Expr:
        condition = self.pipe()
        self.take("then")
        yes = self.pipe()
        no: Expr = Identity()
        if self._takes("elif"):
            return If(condition, yes, self._if())
        if self._takes("else"):
            no = self.pipe()
        self.take("end")
        return If(condition, yes, no)

    def _reduce(self) -> Expr:
        source = self._postfix()
        self.take("as")
        name = self._kind("variable")
        self.take("(")
        start = self.pipe()
        self.take(";")
        update = self._with(name)
        self.take(")")
        return Reduce(source, name, start, update)


_LEVELS: Final = (
    frozenset({"or"}),
    frozenset({"and"}),
    _COMPARE,
    frozenset({"+", "-"}),
    frozenset({"*", "/", "%"}),
)
