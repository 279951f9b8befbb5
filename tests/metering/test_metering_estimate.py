"""Estimates from requests."""

from __future__ import annotations

import pytest

from finomw.errors import FinomwError, InvalidValue
from finomw.metering.documents import Document
from finomw.metering.estimate import Estimate, Unestimable


def test_constants_need_no_body() -> None:
    estimate = Estimate({"requests": 1, "documents": 100})
    assert estimate.needs_body is False
    assert estimate.names == ("requests", "documents")
    assert estimate.counts(Document(b"")) == {"requests": 1, "documents": 100}


def test_programs_read_the_request() -> None:
    estimate = Estimate({"output_tokens": ".max_tokens // 512", "texts": ".input | length", "n": 1})
    assert estimate.needs_body is True
    document = Document(b'{"max_tokens": 64.0, "input": ["a", "b"]}')
    assert estimate.counts(document) == {"output_tokens": 64, "texts": 2, "n": 1}


@pytest.mark.parametrize("raw", [b"", b"model=x&max_tokens=5", b'{"max_tokens": 5', b"null", b"{}"])
def test_a_request_that_gives_nothing_gets_the_default(raw: bytes) -> None:
    assert Estimate({"output_tokens": ".max_tokens // 512"}).counts(Document(raw)) == {
        "output_tokens": 512
    }


def test_counts_of_one_call_are_not_those_of_the_next() -> None:
    estimate = Estimate({"requests": 1})
    estimate.counts(Document(b""))["requests"] = 9
    assert estimate.counts(Document(b"")) == {"requests": 1}


@pytest.mark.parametrize(
    ("request_value", "found"),
    [
        ("-1", "-1"),
        ("1.5", "1.5"),
        ("9007199254740994", "9007199254740994"),
        ("true", "true"),
        ("null", "null"),
        ('"many\\n"', '"many\\n"'),
        ("[1, 2]", "an array"),
        ('{"n": 1}', "an object"),
        ('"' + "x" * 10_000 + '"', '"' + "x" * 36 + "..."),
        ("7" * 300, "7777777777777778186148135318256601934..."),
    ],
)
def test_a_value_that_is_no_count_is_named(request_value: str, found: str) -> None:
    estimate = Estimate({"requests": 1, "output_tokens": ".max_tokens"})
    with pytest.raises(Unestimable) as caught:
        estimate.counts(Document(f'{{"max_tokens": {request_value}}}'.encode()))
    assert str(caught.value) == (
        f"output_tokens: the request gives {found}, "
        "expected a whole number from 0 to 9007199254740992"
    )
    assert caught.value.meter == "output_tokens"
    assert isinstance(caught.value, FinomwError)


def test_a_program_that_fails_on_the_request_is_no_guess() -> None:
    with pytest.raises(Unestimable, match=r"^n: the request gives an error \(Cannot index array"):
        Estimate({"n": ".max_tokens // 512"}).counts(Document(b"[1]"))


def test_a_spec_that_cannot_be_compiled_names_the_meter() -> None:
    with pytest.raises(InvalidValue, match=r"^n: jq: error: "):
        Estimate({"n": ".a."})
