"""A document is read lazily, once, and never raises."""

from __future__ import annotations

import pytest

from finomw.metering.documents import Document
from finomw.metering.programs import compile_program


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"  \n",
        b'{"a": 1',
        b"{} {}",
        b'{"a": 1} x',
        b'"\\ud800"',
        b"<html></html>",
        b"[" * 100_000,
        b"[" * 100_000 + b"]" * 100_000,
        b'{"a":' * 100_000,
    ],
)
def test_what_is_not_one_text_is_not_valid_and_reads_as_null(raw: bytes) -> None:
    document = Document(raw)
    assert document.valid is False
    assert document.strict is False
    assert document.value is None
    assert document.text == "null"
    assert document.is_error is False


@pytest.mark.parametrize(
    ("raw", "value"),
    [
        (b"NaN", None),
        (b'{"n": NaN, "m": 1}', {"n": None, "m": 1}),
        (b'{"n": 01}', {"n": 1}),
        (b"\xef\xbb\xbf{}", {}),
        (b"[" * 3000 + b"]" * 3000, ...),
    ],
)
def test_what_only_jq_takes_is_valid_but_not_strict(raw: bytes, value: object) -> None:
    document = Document(raw)
    assert document.valid is True
    assert document.strict is False
    assert value is ... or document.value == value


@pytest.mark.parametrize(
    ("raw", "value"),
    [
        (b'{"n": 1e400}', {"n": 1.7976931348623157e308}),
        (b'["\xff"]', ["\ufffd"]),
    ],
)
def test_what_msgspec_skips_but_does_not_decode_is_strict(raw: bytes, value: object) -> None:
    assert Document(raw).strict is True
    assert Document(raw).value == value


@pytest.mark.parametrize(
    ("raw", "expected"),
    [
        (b'{"error": {"code": 1}}', True),
        (b'{"error": "no"}', True),
        (b'{"error": {}}', False),
        (b'{"error": { \n}}', False),
        (b'{"error": ""}', False),
        (b'{"error": null}', False),
        (b'{"error": [1]}', False),
        (b'{"error": "x", "error": {}}', False),
        (b'{"a": NaN, "error": "x"}', True),
        (b'[{"error": "x"}]', False),
        (b'"error"', False),
    ],
)
def test_an_error_object_is_known_by_its_error(raw: bytes, expected: bool) -> None:
    document = Document(raw)
    assert document.is_error is expected


def test_an_error_object_is_known_by_what_a_program_decoded() -> None:
    document = Document(b'{"error": "x", "a": 1}')
    assert compile_program(".a").run(document) == 1
    assert document.is_error is True


def test_a_document_gives_its_value_and_its_text() -> None:
    raw = '{"ü": [1, 2.5, true, null, "❄"]}'.encode()
    document = Document(raw)
    assert document.valid is True
    assert document.value == {"ü": [1, 2.5, True, None, "❄"]}
    assert document.text == raw.decode()


def test_null_is_valid() -> None:
    assert Document(b" null ").valid is True


def test_the_last_of_repeated_members_wins() -> None:
    assert Document(b'{"n": 1, "\\u006e": 2}').value == {"n": 2}
