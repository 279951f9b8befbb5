"""A document is read lazily, once, and never raises."""

from __future__ import annotations

import pytest

from finomw.metering import documents
from finomw.metering.documents import Document


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"  \n",
        b"NaN",
        b'{"n": NaN}',
        b'{"n": 1e400}',
        b'{"n": 01}',
        b'{"a": 1',
        b"{} {}",
        b'["\xff"]',
        b'"\\ud800"',
        b"\xef\xbb\xbf{}",
        b"<html></html>",
        b"[" * 100_000,
        b"[" * 100_000 + b"]" * 100_000,
        b'{"a":' * 100_000,
    ],
)
def test_what_is_not_json_is_not_valid_and_reads_as_null(raw: bytes) -> None:
    document = Document(raw)
    assert document.valid is False
    assert document.value is None
    assert document.text == "null"


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


def test_a_document_is_decoded_once_and_only_if_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    decoded: list[bytes] = []

    def decode(raw: bytes) -> object:
        decoded.append(raw)
        return {"read": len(decoded)}

    monkeypatch.setattr(documents, "_decode", decode)
    document = Document(b"{}")
    assert decoded == []
    assert (document.text, document.valid, document.value) == ("{}", True, {"read": 1})
    assert document.value is document.value
    assert decoded == [b"{}"]
