"""The package's own rules that no linter knows, read from its syntax trees."""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

import finomw

PACKAGE = Path(finomw.__file__).parent
FUNCTION_LINES_MAX = 70

BANNED = {
    "time.time": "clock.py",
    "time.time_ns": "clock.py",
    "datetime.now": "clock.py",
    "datetime.utcnow": "clock.py",
    "date.today": "clock.py",
    "os.fsync": "journal/files.py",
    "os.fdatasync": "journal/files.py",
    "starlette.middleware.base": "nowhere",
    "BaseHTTPMiddleware": "nowhere",
}
"""Names, by the file that alone may use them."""

BROAD_EXCEPTS_ALLOWED = {
    "journal/files.py": 1,  # closes the descriptor that it opened, and raises again
}
"""Handlers of everything, by file: how many, and why."""

LONG_DOCSTRINGS = {
    "journal/control.py",
    "journal/format.py",
    "journal/recovery.py",
    "store/checkpoints.py",
}
"""Modules that open with a byte layout or a decision table."""

TREES = {
    path.relative_to(PACKAGE).as_posix(): ast.parse(path.read_text(encoding="utf-8"))
    for path in sorted(PACKAGE.rglob("*.py"))
}

each_file = pytest.mark.parametrize("file", TREES)


def names(tree: ast.AST) -> Iterator[tuple[str, int]]:
    """Every name that a file mentions, as ``module.attribute`` where it is dotted, and its line."""
    for node in ast.walk(tree):
        match node:
            case ast.Attribute(value=ast.Name(id=owner) | ast.Attribute(attr=owner), attr=attr):
                yield f"{owner}.{attr}", node.lineno
            case ast.ImportFrom(module=str(module)):
                yield module, node.lineno
                for alias in node.names:
                    yield alias.name, node.lineno
                    yield f"{module}.{alias.name}", node.lineno
            case ast.Name(id=name):
                yield name, node.lineno


def caught(handler: ast.ExceptHandler) -> set[str]:
    """Return the names of what a handler catches; ``BaseException`` when it names nothing."""
    if handler.type is None:
        return {"BaseException"}
    return {node.id for node in ast.walk(handler.type) if isinstance(node, ast.Name)}


def test_a_million_stands_once_in_the_package() -> None:
    found = [
        file
        for file, tree in TREES.items()
        for node in ast.walk(tree)
        if isinstance(node, ast.Constant)
        and isinstance(node.value, int | float)
        and node.value == 1_000_000
    ]
    assert found == ["money/micros.py"]


@pytest.mark.parametrize("file", [file for file in TREES if file.startswith("money/")])
def test_money_has_no_floats(file: str) -> None:
    floats = [
        node.lineno
        for node in ast.walk(TREES[file])
        if isinstance(node, ast.Constant) and isinstance(node.value, float)
    ]
    assert floats == []
    assert [line for name, line in names(TREES[file]) if name == "float"] == []


@each_file
def test_banned_names_stay_where_they_belong(file: str) -> None:
    used = [
        f"{name} on line {line}"
        for name, line in names(TREES[file])
        if BANNED.get(name, file) != file
    ]
    assert used == []


def test_nothing_catches_everything() -> None:
    broad = Counter(
        file
        for file, tree in TREES.items()
        for node in ast.walk(tree)
        if isinstance(node, ast.ExceptHandler) and caught(node) & {"Exception", "BaseException"}
    )
    assert broad == BROAD_EXCEPTS_ALLOWED


@each_file
def test_a_module_says_what_it_is_for(file: str) -> None:
    tree = TREES[file]
    if tree.body:
        lines = len((ast.get_docstring(tree) or "").splitlines())
        assert lines >= 3
        assert lines <= 15 or file in LONG_DOCSTRINGS


@each_file
def test_a_function_fits_a_screen(file: str) -> None:
    long = [
        node.name
        for node in ast.walk(TREES[file])
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and (node.end_lineno or 0) - node.lineno + 1 > FUNCTION_LINES_MAX
    ]
    assert long == []
