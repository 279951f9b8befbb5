"""The YAML text: syntax errors, double keys, aliases, tags, references to the environment."""

from __future__ import annotations

import pytest

from finomw.config.document import read
from finomw.config.wording import FloatText
from finomw.errors import ConfigError, Problem


def read_clean(text: str) -> object:
    problems: list[Problem] = []
    value = read(text, problems)
    assert problems == []
    return value


def problems_in(text: str) -> list[str]:
    problems: list[Problem] = []
    read(text, problems)
    return [str(problem) for problem in problems]


def test_plain_values_keep_to_a_few_clear_forms() -> None:
    assert read_clean("[1, +2, -3, true, False, ~, 1.50, 1e3, yes, 'true', 2026-01-01]") == [
        1, 2, -3, True, False, None, FloatText("1.50"), FloatText("1e3"), "yes", "true",
        "2026-01-01",
    ]  # fmt: skip


def test_an_integer_too_long_to_be_meant_stays_text() -> None:
    assert read_clean("9" * 30) == int("9" * 30)
    assert read_clean("9" * 5000) == "9" * 5000


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a: 1\nb: [1, 2\n", r"^line 3, column 1: while parsing a flow sequence "),
        ("a: 1\n\tb: 2\n", r"^line 2, column 1: .*'\\t'"),
        ("a: b: c\n", r"^line 1, column 5: mapping values are not allowed here$"),
        ("a: 1\n---\nb: 2\n", r"^line 2, column 1: expected a single document"),
        ("a: *none\n", r"^line 1, column 4: found undefined alias 'none'"),
        ("a: 1\nb: \x00\n", r"^line 2, column 4: special characters are not allowed$"),
        ('a: "\\UFFFFFFFF"', r"^cannot be read as YAML: "),
        ("[" * 5000, r"^cannot be read as YAML: "),
    ],
)
def test_a_syntax_error_names_line_and_column(text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message) as raised:
        read(text, [])
    assert len(raised.value.problems) == 1


def test_a_key_that_stands_twice_is_a_problem_with_its_lines() -> None:
    assert problems_in("a: 1\nb:\n  c: 1\n  d: 2\n  c: 3\na: 2\n") == [
        "b.c: the key stands twice: on line 3 and on line 5",
        "a: the key stands twice: on line 1 and on line 6",
    ]


def test_aliases_are_read_but_not_merges_nor_loops() -> None:
    assert read_clean("a: &p {x: 1}\nb: *p\n") == {"a": {"x": 1}, "b": {"x": 1}}
    assert problems_in("a: &p {x: 1}\nb: {<<: *p}\n") == [
        "b: line 2: merge keys (<<) are not read; aliases are"
    ]
    assert problems_in("a: &p\n  b: *p\n") == ["a.b: line 1: an alias of what it stands in"]


@pytest.mark.parametrize(
    "text", ["!!python/name:os.system x", "!!int x", "!!bool maybe", "!!set {a}", "!x [1]"]
)
def test_tags_make_nothing(text: str) -> None:
    [problem] = problems_in(f"a:\n  {text}\n")
    assert problem.startswith("a: line 2: unknown tag ")


def test_a_key_is_a_name() -> None:
    assert problems_in("a: {[1, 2]: 3}") == ["a: line 1: a key must be a name"]


def test_values_take_variables_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FINO_HOME", "/srv/${FINO_PORT}")
    monkeypatch.setenv("FINO_PORT", "80")
    assert read_clean("{'${FINO_PORT}': '${FINO_HOME}/a:${FINO_PORT} $5 $FINO_PORT'}") == {
        "${FINO_PORT}": "/srv/${FINO_PORT}/a:80 $5 $FINO_PORT"
    }


def test_a_missing_variable_is_a_problem(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("FINO_NONE", raising=False)
    assert problems_in("a: ['${FINO_NONE}', '${a-b}', '${', '${}']") == [
        "a[0]: the environment has no variable FINO_NONE",
        'a[1]: expected ${NAME}, found "${a-b}"',
        'a[2]: expected ${NAME}, found "${"',
        'a[3]: expected ${NAME}, found "${}"',
    ]
