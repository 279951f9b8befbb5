"""The planner against jq itself, on generated programs and documents."""

from __future__ import annotations

import pytest
from planned import differences

from finomw.metering import evaluate
from finomw.metering.documents import Document
from finomw.metering.programs import compile_program


def test_the_planner_gives_what_jq_gives() -> None:
    wrong, plans = differences(seed=1, programs=100, documents=5)
    assert wrong == []
    assert min(plans["decode"], plans["jq"], plans["whole"]) >= 50


@pytest.mark.parametrize(
    ("name", "value"),
    [("_DIGITS", 10_000), ("_EXACT", 2**80), ("_number", lambda value: value)],
)
def test_the_differential_test_finds_a_planner_that_is_wrong(
    name: str, value: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(evaluate, name, value)
    assert any(differences(seed, programs=20, documents=60)[0] for seed in range(2, 12))


@pytest.mark.parametrize(
    ("text", "raw", "expected"),
    [
        (".a.b | 1", b'{"a": null}', 1),
        ("{x: .a, y: .a.b}", b'{"a": null}', {"x": None, "y": None}),
        (".a // .a.b", b'{"a": 5}', 5),
        (".a[0] // .b", b'{"a": [], "b": 7}', 7),
        ('.["é"] + 1', b'{"\\u00e9": 2}', 3),
        (".a | length", b'{"a": {"x": 1, "\\u0078": 2}}', 1),
        (".a * 2", b'{"a": 1e308}', 1.7976931348623157e308),
        (".a - .a", b'{"a": -0}', 0),
        ("-1", b"[]", -1),
        (".a = .b // 1 | .a", b'{"a": 3, "b": null}', None),
        (".a |= . + 1 | .a", b'{"a": 3}', 4),
        ("{x: (.a += 2 | .a)}", b'{"a": 3}', {"x": 5}),
        (".a // (.b = 1 | .b)", b'{"b": 3}', 1),
        ("del(.a, .b.c) | length", b'{"a": 3, "b": {"c": 1}}', 1),
    ],
)
def test_what_once_looked_doubtful(text: str, raw: bytes, expected: object) -> None:
    assert compile_program(text).run(Document(raw)) == expected


@pytest.mark.parametrize(
    ("text", "inline"),
    [
        (".a = 1", True),
        (".a.b |= . + 1 | .c //= 2 | del(.x, .y)", True),
        ("if .stream then .n = 5 else . end", True),
        (".a[] |= 1", False),
        (".a |= until(false; .)", False),
        (".a *= .b", False),
        ("del(.a[])", False),
        ("to_entries | .a = 1", True),
    ],
)
def test_what_assigns_to_plain_places_is_bounded(text: str, inline: bool) -> None:
    assert ("helper" not in compile_program(text).plan) is inline


def test_what_is_nested_deeper_than_jq_goes_is_not_valid() -> None:
    deep = b'{"a": 1, "b": ' + b"[" * 10_001 + b"]" * 10_001 + b"}"
    assert Document(deep).valid is False
