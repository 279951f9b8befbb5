"""What a program means, whichever way the planner runs it."""

from __future__ import annotations

import pytest
from planned import FAILED, by_jq, by_plan, same

from finomw.errors import FinomwError, InvalidValue
from finomw.metering.documents import Document
from finomw.metering.programs import (
    ProgramFailed,
    compile_program,
    compile_recipe,
    compile_together,
)


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
    assert same(by_plan(compile_program(program), text.encode()), expected)
    assert same(by_jq(program, text.encode()), expected)


@pytest.mark.parametrize(
    ("program", "plan"),
    [
        (".a", "decode of .a"),
        (' .a["b c"] // 0', "decode of .a.b c"),
        (".usage.a + (.usage.b // 0)", "decode of .usage.a, .usage.b"),
        ("{in: .usage.a, b}", "decode of .b, .usage.a"),
        (".usage | .a - .b", "decode of .usage.a, .usage.b"),
        (".results | length", "decode of .results"),
        (".usage | to_entries | map(.value) | add", "jq on .usage"),
        ("[.a.x, .b] | add", "jq on .a.x, .b"),
        (".a[0].b", "jq on .a"),
        (".usage | range(.n)", "jq on the whole document, in the helper process"),
        ("reduce .a[] as $x (0; . + $x)", "jq on .a, in the helper process"),
        (".", "jq on the whole document"),
        ("[.. | numbers] | add", "jq on the whole document"),
        (".a, input_line_number", "jq on the whole document, in the helper process"),
        (".a # a comment", "jq on the whole document, in the helper process"),
        ('.a // "\\n"', "jq on the whole document, in the helper process"),
    ],
)
def test_the_plan_of_a_program_is_pinned(program: str, plan: str) -> None:
    assert compile_program(program).plan == plan


@pytest.mark.parametrize("number", ["47093221829.4172858", "12345678901234567890", "1e400"])
def test_a_number_that_jq_reads_in_its_own_way_is_read_so(number: str) -> None:
    raw = f'{{"a": {number}}}'.encode()
    assert same(by_plan(compile_program(".a"), raw), by_jq(".a", raw))


def test_programs_compiled_together_decode_once(monkeypatch: pytest.MonkeyPatch) -> None:
    programs = compile_together([".usage.a", ".usage", ".b // 3", ".usage.a | length"])
    document = Document(b'{"usage": {"a": "xy"}, "other": [1, 2]}')
    assert programs[0].run(document) == "xy"
    document.raw = b"not read again"
    assert [program.run(document) for program in programs[2:]] == [3, 2]


@pytest.mark.parametrize("program", ["empty", "halt", "limit(0; 1)", "select(false)"])
def test_a_program_without_output_gives_none(program: str) -> None:
    assert compile_program(program).run(Document(b"{}")) is None


@pytest.mark.parametrize("raw", [b"", b"\xff", b'{"a": 1', b'{"a": 2} x', b"{}{}", b"[" * 9999])
@pytest.mark.parametrize("program", [".a // 512", "(.a // 512)"])
def test_a_text_that_is_not_json_runs_as_null(program: str, raw: bytes) -> None:
    assert compile_program(program).run(Document(raw)) == 512


@pytest.mark.parametrize(
    "raw", [b'{"a": 3, "b": NaN}', b'\xef\xbb\xbf{"a": 03}', b'{"a":3,"b":"\xff"}']
)
@pytest.mark.parametrize("program", [".a // 512", "(.a | . // 512)"])
def test_what_jq_takes_for_json_is_read(program: str, raw: bytes) -> None:
    assert compile_program(program).run(Document(raw)) == 3


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
