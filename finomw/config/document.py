"""The YAML text as plain values: mappings, lists, texts, integers, true and false.

PyYAML guesses too much for a file about money: it keeps the last of two equal keys, and reads
``no`` as false, ``010`` as 8 and ``1:30`` as 90. Only its parser is used here; the few guesses
that remain stand in ``_PLAIN``. Keys are names and always text. ``${NAME}`` in a value is taken
from the environment. A fault is a ``Problem`` and the reading goes on, so that all are found.
"""

from __future__ import annotations

import os
import re
from typing import Final

import yaml

from finomw.config.wording import FloatText, join
from finomw.errors import ConfigError, Problem, quoted

_TAG: Final = "tag:yaml.org,2002:"

_PLAIN: Final = {
    _TAG + "null": re.compile(r"~|null|Null|NULL|"),
    _TAG + "bool": re.compile(r"true|True|TRUE|false|False|FALSE"),
    _TAG + "int": re.compile(r"[-+]?[0-9]{1,30}"),
    _TAG + "float": re.compile(
        r"[-+]?(?:\.[0-9]+|[0-9]+\.[0-9]*)(?:[eE][-+]?[0-9]+)?"
        r"|[-+]?[0-9]+[eE][-+]?[0-9]+"
        r"|[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN)"
    ),
}
"""What an unquoted scalar may be other than text: YAML 1.2's own rules, decimal integers only."""

_REFERENCE: Final = re.compile(r"\$\{([^}]*)\}?")
_VARIABLE: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


def read(text: str, problems: list[Problem]) -> object:
    """Return the value of the one document in ``text``; None when there is none.

    Raises
    ------
    ConfigError
        The text is not YAML; names line and column.
    """
    try:
        node = yaml.compose(text, Loader=_Loader)
    except yaml.MarkedYAMLError as error:
        raise ConfigError([Problem("", _syntax(error))]) from error
    except yaml.reader.ReaderError as error:
        before = text[: error.position]
        column = error.position - before.rfind("\n")
        where = f"line {before.count(chr(10)) + 1}, column {column}"
        raise ConfigError([Problem("", f"{where}: {error.reason}")]) from error
    except (ValueError, OverflowError, RecursionError) as error:
        # PyYAML checks neither an escape beyond Unicode nor how deep brackets are nested.
        raise ConfigError([Problem("", f"cannot be read as YAML: {error}")]) from error
    return None if node is None else _Reading(problems).value(node, "")


class _Loader(yaml.SafeLoader):
    """PyYAML's parser with the guesses of ``_PLAIN`` in place of its own."""

    yaml_implicit_resolvers = {}  # noqa: RUF012 -- the stubs declare it for instances


for _tag, _form in _PLAIN.items():
    _Loader.add_implicit_resolver(_tag, re.compile(rf"(?:{_form.pattern})\Z"), None)


class _Reading:
    def __init__(self, problems: list[Problem]) -> None:
        self._problems = problems
        self._open: list[yaml.Node] = []

    def value(self, node: yaml.Node, path: str) -> object:
        """Return what ``node`` says; None where that is a problem."""
        if node in self._open:
            self._problem(node, path, "an alias of what it stands in")
            return None
        if isinstance(node, yaml.ScalarNode):
            return self._scalar(node, path)
        self._open.append(node)
        value: object = None
        if isinstance(node, yaml.MappingNode) and node.tag == _TAG + "map":
            value = self._mapping(node, path)
        elif isinstance(node, yaml.SequenceNode) and node.tag == _TAG + "seq":
            value = [self.value(item, join(path, i)) for i, item in enumerate(node.value)]
        else:
            self._problem(node, path, f"unknown tag {node.tag}")
        self._open.pop()
        return value

    def _mapping(self, node: yaml.MappingNode, path: str) -> dict[str, object]:
        values: dict[str, object] = {}
        lines: dict[str, int] = {}
        for key_node, value_node in node.value:
            if not isinstance(key_node, yaml.ScalarNode):
                self._problem(key_node, path, "a key must be a name")
                continue
            key = str(key_node.value)
            line = key_node.start_mark.line + 1
            if key == "<<":
                self._problem(key_node, path, "merge keys (<<) are not read; aliases are")
            elif key in values:
                message = f"the key stands twice: on line {lines[key]} and on line {line}"
                self._problems.append(Problem(join(path, key), message))
            else:
                lines[key] = line
                values[key] = self.value(value_node, join(path, key))
        return values

    def _scalar(self, node: yaml.ScalarNode, path: str) -> object:
        text = str(node.value)
        if node.tag == _TAG + "str":
            return self._with_environment(text, path)
        form = _PLAIN.get(node.tag)
        if form is None or not form.fullmatch(text):
            self._problem(node, path, f"unknown tag {node.tag}, or not for {quoted(text)}")
            return None
        match node.tag.removeprefix(_TAG):
            case "null":
                return None
            case "bool":
                return text.lower() == "true"
            case "int":
                return int(text)
            case _:
                return FloatText(text)

    def _with_environment(self, text: str, path: str) -> str:
        def resolve(reference: re.Match[str]) -> str:
            name = reference[1]
            if not (reference[0].endswith("}") and _VARIABLE.fullmatch(name)):
                message = f"expected ${{NAME}}, found {quoted(reference[0])}"
            elif name in os.environ:
                return os.environ[name]
            else:
                message = f"the environment has no variable {name}"
            self._problems.append(Problem(path, message))
            return reference[0]

        return _REFERENCE.sub(resolve, text)

    def _problem(self, node: yaml.Node, path: str, message: str) -> None:
        line = node.start_mark.line + 1
        self._problems.append(Problem(path, f"line {line}: {message}"))


def _syntax(error: yaml.MarkedYAMLError) -> str:
    what = " ".join(part for part in (error.context, error.problem) if part)
    mark = error.problem_mark or error.context_mark
    return what if mark is None else f"line {mark.line + 1}, column {mark.column + 1}: {what}"
