"""What a reader tells of an answer while it passes: how much, what so far, where it could end."""

from __future__ import annotations

import gzip
import logging

import pytest

from finomw.metering.closing import closing
from finomw.metering.documents import Document
from finomw.metering.elements import ElementScanner
from finomw.metering.events import EventScanner
from finomw.metering.lines import LineScanner
from finomw.metering.meter import Meter
from finomw.metering.readers import Reader, Readers
from finomw.metering.streams import Scanner
from finomw.types import UsageStatus

SPEC = {"tokens": ".usage.tokens"}
ERROR = b'{"type":"c","code":"c","message":"m"}'
Head = list[tuple[bytes, bytes]]
SSE: Head = [(b"content-type", b"text/event-stream")]
JSON: Head = [(b"content-type", b"application/json")]


def readers(body_max: int = 100) -> Readers:
    return Readers("chat", Meter(SPEC), body_max, tail=False)


def reader(head: Head, body_max: int = 100) -> Reader:
    made = readers(body_max).reader_for(200, head)
    assert made is not None
    return made


@pytest.mark.parametrize(
    ("text", "error"),
    [
        (b'{"type":"response.failed","response":{"error":{"code":"x"},"usage":null}}', True),
        (b'{"response":{"error":"down"},"type":"response.failed"}', True),
        (b'{"type":"response.failed","response":{"error":null}}', False),
        (b'{"type":"response.failed","response":{"error":{}}}', False),
        (b'{"type":"response.failed","response":7}', False),
        (b'{"type":"response.failed","response":[{"error":{"code":"x"}}]}', False),
        (b'{"type":"response.completed","response":{"error":{"code":"x"}}}', False),
        (b'{"type":"x","text":"response.failed","response":{"error":{"code":"x"}}}', False),
        (b'[{"type":"response.failed","response":{"error":{"code":"x"}}}]', False),
        (b'{"type":"response.failed","response":{"error":{"code":"x"}},"n":NaN}', True),
    ],
)
def test_a_failed_response_is_an_error_object(text: bytes, error: bool) -> None:
    assert Document(text).is_error is error


def test_texts_that_say_nothing_about_usage_are_deltas() -> None:
    passing = reader(SSE)
    for part, deltas in (
        (b'data: {"text": "a"}\n\ndata: {"text"', 1),
        (b': "b"}\n\n: a comment\n\nevent: ping\ndata: {}\n\n', 3),
        (b'data: {"usage": {"tokens": 4}}\n\n', 3),
        (b'data: {"usage": {"tokens": -4}}\n\n', 3),
        (b'data: {"error": {"code": 1}}\n\ndata: no JSON\n\ndata: [DONE]\n\n', 3),
    ):
        passing.feed(part)
        assert passing.deltas == deltas
    assert reader(JSON).deltas == 0


def test_what_a_stream_said_so_far_is_known_before_its_end() -> None:
    passing = reader(SSE)
    so_far = passing.so_far()
    assert so_far is not None
    assert so_far.status is UsageStatus.MISSING
    passing.feed(b'data: {"usage": {"tokens": 4}}\n\n')
    so_far = passing.so_far()
    assert so_far is not None
    assert (so_far.counts, so_far.status) == ({"tokens": 4}, UsageStatus.KNOWN)
    whole = reader(JSON)
    whole.feed(b'{"usage": {"tokens": 4}}')
    assert whole.so_far() is None


def test_a_size_is_that_of_the_decoded_body() -> None:
    passing = reader([*JSON, (b"content-encoding", b"gzip")], 10_000)
    passing.feed(gzip.compress(b'{"text": "%b"}' % (b"x" * 988)))
    assert passing.size == 1000
    broken = reader([*JSON, (b"content-encoding", b"gzip")])
    broken.feed(b"no gzip at all")
    assert broken.size == 14


def test_a_json_answer_that_says_it_is_too_large_does_not_wait() -> None:
    assert reader([*JSON, (b"content-length", b"100")]).waits
    assert not reader([*JSON, (b"content-length", b"101")]).waits
    assert not reader([(b"Content-Length", b" 1000 "), *JSON]).waits
    assert reader([*JSON, (b"content-length", b"many")]).waits


def test_a_wrong_value_is_told_once_for_each_rule_and_meter(
    caplog: pytest.LogCaptureFixture,
) -> None:
    several = Readers("chat", Meter({**SPEC, "pages": ".pages"}), 100, tail=False)
    with caplog.at_level(logging.WARNING, "finomw"):
        for body in (
            b'{"usage": {"tokens": "7"}, "pages": 1}',
            b'{"usage": {"tokens": -1}, "pages": 2}',
        ):
            made = several.reader_for(200, JSON)
            assert made is not None
            made.feed(body)
            assert made.finish().status is UsageStatus.INVALID
        assert caplog.messages == ["rule chat: an answer has what is no count of tokens"]
        made = several.reader_for(200, JSON)
        assert made is not None
        made.feed(b'{"usage": {"tokens": 1}, "pages": 1.5}')
        made.finish()
        made = several.reader_for(200, JSON)
        assert made is not None
        made.feed(b"{}")
        made.finish()
    assert len(caplog.messages) == 2


def fed(scanner: Scanner, text: bytes) -> Scanner:
    scanner.feed(text)
    return scanner


@pytest.mark.parametrize(
    ("scanner", "text", "between"),
    [
        (EventScanner(), b"", True),
        (EventScanner(), b"data: {}\n\n", True),
        (EventScanner(), b"data: {}\n", False),
        (EventScanner(), b"data: {}", False),
        (EventScanner(), b"data: {}\r\n\r\n", True),
        (EventScanner(), b": comment\n", True),
        (EventScanner(), b"data: {}\n\nda", False),
        (EventScanner(), b"data: " + b"x" * (1 << 21), False),
        (LineScanner(), b"{}\n", True),
        (LineScanner(), b"{}", False),
        (LineScanner(), b"{}\n{", False),
        (ElementScanner(), b"", False),
        (ElementScanner(), b"[", True),
        (ElementScanner(), b"[{}", True),
        (ElementScanner(), b"[{}, ", True),
        (ElementScanner(), b'[{"a": 1', False),
        (ElementScanner(), b'["a', False),
        (ElementScanner(), b"[{}]", False),
    ],
)
def test_a_stream_could_end_where_no_text_is_under_way(
    scanner: Scanner, text: bytes, between: bool
) -> None:
    assert fed(scanner, text).between is between


@pytest.mark.parametrize(
    ("scanner", "text", "end"),
    [
        (
            EventScanner(),
            b"data: {}\n\n",
            b'data: {"error":{"type":"c","code":"c","message":"m"}}\n\ndata: [DONE]\n\n',
        ),
        (
            EventScanner(),
            b"event: a\ndata: {}\n\n",
            b'event: error\ndata: {"type":"error","error":%b}\n\n' % ERROR,
        ),
        (LineScanner(), b"{}\n", b'{"error":"m","code":"c","done":true}\n'),
        (ElementScanner(), b"[{}", b',{"error":{"type":"c","code":"c","message":"m"}}]'),
        (ElementScanner(), b"[", b'{"error":{"type":"c","code":"c","message":"m"}}]'),
        (ElementScanner(), b"[{},\n", b'{"error":{"type":"c","code":"c","message":"m"}}]'),
    ],
)
def test_a_stream_ends_early_in_its_own_format(scanner: Scanner, text: bytes, end: bytes) -> None:
    last = text.rstrip()[-1:]
    assert closing(fed(scanner, text), "c", "m", last) == end
