"""Plain paths and jq give the same outcome on every document."""

from __future__ import annotations

import json
from typing import Any

import jq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from finomw.errors import FinomwError, InvalidValue
from finomw.metering.documents import Document
from finomw.metering.programs import (
    JqProgram,
    PathProgram,
    Program,
    ProgramFailed,
    compile_program,
    compile_recipe,
)

FAILED = "failed"


class Members(list[tuple[str, Any]]):
    """An object's members as they are written: names may repeat."""


keys = st.sampled_from(["a", "b", "usage", "_x9", "and"])
blanks = st.sampled_from(["", "", "", " ", "\n", "\t ", "\r\n"])
numbers = st.one_of(
    st.integers(-(2**53), 2**53),
    st.sampled_from([0.5, -0.0, 1.0, 120.0, 1e15, 2.5e-3, -7.25]),
)
values = st.recursive(
    st.one_of(st.none(), st.booleans(), numbers, st.text(max_size=4)),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.lists(st.tuples(keys, inner), max_size=4).map(Members),
    ),
    max_leaves=12,
)


def written(value: Any) -> str:
    """Write a value as JSON, repeated names included."""
    if isinstance(value, Members):
        return "{" + ", ".join(f"{json.dumps(k)}: {written(v)}" for k, v in value) + "}"
    if isinstance(value, list):
        return "[" + ",".join(written(item) for item in value) + "]"
    return json.dumps(value, ensure_ascii=False)


@st.composite
def paths(draw: st.DrawFn) -> str:
    """Draw a plain path, with or without a default."""
    steps = draw(st.lists(keys, max_size=3))
    path = "".join(f".{key}{draw(blanks)}" for key in steps) or "."
    default = draw(
        st.one_of(
            st.none(),
            st.integers(-(10**15) + 1, 10**15 - 1).map(str),
            st.sampled_from(["007", "-0", '""', '"x y"', '"é❄"', '"# no comment"']),
        )
    )
    tail = "" if default is None else f"//{draw(blanks)}{default}{draw(blanks)}"
    return draw(blanks) + path + draw(blanks) + tail


def outcome_of_jq(program: str, text: str) -> object:
    """Run jq itself on the whole text."""
    try:
        outputs = jq.compile(program).input_text(text).all()
    except ValueError:
        return FAILED
    return outputs[0] if outputs else None


def outcome_of(program: Program, raw: bytes) -> object:
    """Run the compiled program."""
    try:
        return program.run(Document(raw))
    except ProgramFailed:
        return FAILED


def same(one: object, other: object) -> bool:
    """Compare as JSON does: 1 equals 1.0, but true is not 1."""
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(same, one, other))
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    return one == other and isinstance(one, bool) == isinstance(other, bool)


@settings(derandomize=True, max_examples=500, deadline=None)
@given(program=paths(), value=values)
def test_a_plain_path_gives_what_jq_gives(program: str, value: Any) -> None:
    text = written(value)
    compiled = compile_program(program)
    assert isinstance(compiled, PathProgram)
    assert same(outcome_of(compiled, text.encode()), outcome_of_jq(program, text))


@settings(derandomize=True, max_examples=200, deadline=None)
@given(
    program=st.sampled_from(
        [
            ".a?",
            ".a[0]",
            ".a | length",
            ".a, .b",
            ".[]",
            ".a.b? // 1",
            '.["a"] // "x\\ty"',
            "[.. | numbers] | add",
            "(.a // .b).usage",
            ".a + .b",
            "select(.a)",
            ".a # a comment",
        ]
    ),
    value=values,
)
def test_any_other_program_gives_what_jq_gives(program: str, value: Any) -> None:
    text = written(value)
    first_only = f"first({program}\n)"  # an output before a failure is an output
    compiled = compile_program(program)
    assert isinstance(compiled, JqProgram)
    assert same(outcome_of(compiled, text.encode()), outcome_of_jq(first_only, text))


@settings(derandomize=True, max_examples=300, deadline=None)
@given(raw=st.binary(max_size=12), path=paths())
def test_both_ways_agree_on_any_bytes(raw: bytes, path: str) -> None:
    by_path = outcome_of(compile_program(path), raw)
    by_jq = outcome_of(compile_program(f"{path} | ."), raw)
    assert same(by_path, by_jq)


@pytest.mark.parametrize(
    ("program", "text", "expected"),
    [
        (".", "3", 3),
        (".a.b", '{"a": null}', None),
        (".a.b", "null", None),
        (".a.b", "{}", None),
        (".a.b", '{"a": false}', FAILED),
        (".a.b", '{"a": 1}', FAILED),
        (".a", "[1]", FAILED),
        (".a", '""', FAILED),
        (".a // 5", '{"a": null}', 5),
        (".a // 5", '{"a": false}', 5),
        (".a // 5", '{"a": 0}', 0),
        (".a // 5", '{"a": ""}', ""),
        (".a // 5", "[1]", FAILED),
        (".a // -5", "{}", -5),
        ('.a // "none"', "{}", "none"),
        (".a", '{"a": 1, "a": 2}', 2),
        (".a", '{"a": 1, "a": null}', None),
    ],
)
def test_the_meaning_of_a_path_is_pinned(program: str, text: str, expected: object) -> None:
    compiled = compile_program(program)
    assert isinstance(compiled, PathProgram)
    assert same(outcome_of(compiled, text.encode()), expected)
    assert same(outcome_of_jq(program, text), expected)


@pytest.mark.parametrize(
    "program",
    [
        *(".a?", ".[0]", '."a"', ".a // .b", ".a // 1.5", ".a // 1 // 2", '.a // "\\n"', ".."),
        *("1", ".a // 9999999999999999", ".a | .b", ". .a", '.a // "\\(1 + 1)"'),
    ],
)
def test_what_the_planner_does_not_know_is_left_to_jq(program: str) -> None:
    assert isinstance(compile_program(program), JqProgram)


@pytest.mark.parametrize("program", ["empty", "halt", "limit(0; 1)", "select(false)"])
def test_a_program_without_output_gives_none(program: str) -> None:
    assert compile_program(program).run(Document(b"{}")) is None


@pytest.mark.parametrize("raw", [b"", b"NaN", b'{"a": 1e400}', b'{"a": 2} x', b"[" * 9999])
@pytest.mark.parametrize("program", [".a // 512", "(.a // 512)"])
def test_a_text_that_is_not_json_runs_as_null(program: str, raw: bytes) -> None:
    assert compile_program(program).run(Document(raw)) == 512


def test_a_program_can_be_run_again_after_it_failed_or_halted() -> None:
    program = compile_program("if . == 1 then halt elif . == 2 then error else . * 2 end")
    assert program.run(Document(b"4")) == 8
    assert program.run(Document(b"1")) is None
    with pytest.raises(ProgramFailed):
        program.run(Document(b"2"))
    assert program.run(Document(b"5")) == 10


@pytest.mark.parametrize("program", [".a.b", "(.a.b)"])
def test_a_failure_says_what_was_wrong(program: str) -> None:
    with pytest.raises(ProgramFailed, match=r'Cannot index number with string \("b"\)') as caught:
        compile_program(program).run(Document(b'{"a": 1}'))
    assert isinstance(caught.value, FinomwError)


def test_a_failure_repeats_no_long_pieces_of_the_document() -> None:
    with pytest.raises(ProgramFailed) as caught:
        compile_program("error").run(Document(b'"' + b"x" * 10_000 + b'"'))
    assert len(str(caught.value)) == 100


def test_a_program_that_does_not_compile_is_refused_with_the_complaint_of_jq() -> None:
    with pytest.raises(InvalidValue) as caught:
        compile_program("foo(1)")
    message = str(caught.value)
    assert message == "jq: error: foo/1 is not defined at <top-level>, line 1, column 1"


@pytest.mark.parametrize("program", ["", ".a.", ".a //", "{", ".é", ".a\0.b", "\ud800"])
def test_what_jq_refuses_is_an_invalid_value(program: str) -> None:
    with pytest.raises(InvalidValue):
        compile_program(program)


def test_a_recipe_parts_constants_from_programs() -> None:
    recipe = compile_recipe({"requests": 1, "tokens": ".n", "free": 0})
    assert recipe.constants == {"requests": 1, "free": 0}
    assert [name for name, _ in recipe.programs] == ["tokens"]


@pytest.mark.parametrize("source", [-1, 2**53 + 1, True, ".a."])
def test_a_recipe_that_cannot_be_used_names_the_meter(source: int | str) -> None:
    with pytest.raises(InvalidValue, match=r"^output_tokens: "):
        compile_recipe({"requests": 1, "output_tokens": source})
