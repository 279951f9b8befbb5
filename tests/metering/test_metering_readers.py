"""Choosing a reader by an answer's head, and what each makes of its body."""

from __future__ import annotations

import json
import logging
import tracemalloc
from collections.abc import Iterable

import pytest

from finomw import limits
from finomw.metering.meter import Meter
from finomw.metering.readers import Reader, Readers
from finomw.metering.tally import Merge
from finomw.metering.usage import Usage
from finomw.types import UsageStatus

JSON = b"application/json"
SSE = b"text/event-stream"
LINES = b"application/x-ndjson"
ENDS = {"message_stop", "response.completed", "response.incomplete", "response.failed"}
CHAT = {"input_tokens": ".usage.prompt_tokens", "output_tokens": ".usage.completion_tokens"}
MISSING = Usage({}, UsageStatus.MISSING, False)
INVALID = Usage({}, UsageStatus.INVALID, False)


def known(given: int, made: int) -> Usage:
    return Usage({"input_tokens": given, "output_tokens": made}, UsageStatus.KNOWN, False)


def used(given: object, made: object) -> bytes:
    return json.dumps({"usage": {"prompt_tokens": given, "completion_tokens": made}}).encode()


def readers(
    spec: dict[str, int | str] | None = None,
    merge: Merge = "last",
    body_max: int = limits.RESPONSE_BODY_MAX,
    tail: bool = False,
) -> Readers:
    return Readers("chat", Meter(spec or CHAT, merge, ENDS), body_max, tail)


def reader_of(kind: bytes | None, made: Readers | None = None, status: int = 200) -> Reader:
    headers = [] if kind is None else [(b"Content-Type", kind)]
    reader = (made or readers()).reader_for(status, headers)
    assert reader is not None
    return reader


def read(kind: bytes | None, *chunks: bytes, made: Readers | None = None) -> Usage:
    reader = reader_of(kind, made)
    for chunk in chunks:
        reader.feed(chunk)
    return reader.finish()


def sse(*texts: bytes) -> bytes:
    return b"".join(b"data: " + text + b"\n\n" for text in texts)


def test_the_type_of_the_answer_chooses_the_reader() -> None:
    body = used(8, 2)
    assert read(JSON, body) == known(8, 2)
    assert read(b"application/problem+json; x=y", body) == known(8, 2)
    assert read(SSE, sse(body, b"[DONE]")) == known(8, 2)
    assert read(b"Text/Event-Stream ;charset=UTF-8", sse(body)) == known(8, 2)
    assert read(LINES, b'{"a":1}\n' + body) == known(8, 2)
    assert read(JSON, b'[{"a":1},\n' + body + b"]") == known(8, 2)
    assert readers().reader_for(200, [(b"content-type", b"text/html")]) is None


@pytest.mark.parametrize("kind", [None, b"", JSON])
def test_a_wrong_or_missing_type_is_seen_through_and_said_once(
    kind: bytes | None, caplog: pytest.LogCaptureFixture
) -> None:
    made = readers()
    with caplog.at_level(logging.WARNING, "finomw"):
        for begin in (b"", b": hi\n\n", b"event: x\n", b"\xef\xbb\xbf", b"\r\n\r\nid: 1\n"):
            stream = begin + sse(used(37, 5), b"[DONE]")
            assert read(kind, stream, made=made) == known(37, 5)
            one_by_one = (stream[at : at + 1] for at in range(len(stream)))
            assert read(kind, *one_by_one, made=made) == known(37, 5)
    assert len(caplog.records) == 1


def test_without_a_type_json_is_read_and_anything_else_passes(
    caplog: pytest.LogCaptureFixture,
) -> None:
    made = readers()
    with caplog.at_level(logging.WARNING, "finomw"):
        assert read(None, used(1, 2), made=made) == known(1, 2)
        for body in (b"<html>", b"\x89PNG", b"\xff", b"PK\x03\x04"):
            reader = reader_of(None, made)
            assert reader.waits
            reader.feed(body)
            assert not reader.waits
            assert reader.finish() == MISSING
    assert [record.getMessage() for record in caplog.records] == [
        "rule chat: answers without a Content-Type are read as one JSON text",
        "rule chat: answers without a Content-Type are not read for their usage",
    ]


def test_a_type_that_is_not_read_is_said_once_and_not_of_errors_or_flat_rules(
    caplog: pytest.LogCaptureFixture,
) -> None:
    made = readers()
    flat = readers({"requests": 1})
    with caplog.at_level(logging.WARNING, "finomw"):
        for status in (502, 200, 200, 404):
            assert made.reader_for(status, [(b"content-type", b"audio/mpeg\n")]) is None
            assert flat.reader_for(status, [(b"content-type", b"audio/mpeg\n")]) is None
        for number in range(100):
            made.reader_for(200, [(b"content-type", b"x/%d" % number)])
    assert caplog.records[0].getMessage() == (
        "rule chat: answers with Content-Type 'audio/mpeg\\n' cannot be read for their usage"
    )
    assert len(caplog.records) <= 32


def test_only_one_json_text_waits_as_a_whole() -> None:
    for kind, chunk, waits in [
        (JSON, b' {"a":', True),
        (JSON, b"<html>", True),
        (JSON, b" \n", True),
        (JSON, b" [", False),
        (JSON, b"data", False),
        (JSON, b"da", True),
        (SSE, b"{", False),
        (LINES, b"{", False),
    ]:
        reader = reader_of(kind)
        assert reader.waits == (kind == JSON)
        reader.feed(chunk)
        assert reader.waits == waits


ARRAY = b'[{"text":"a ]}"},\r\n{"usage":null}\n,' + used(7, 1) + b",\n" + used(7, 3) + b"\n]\n"


def test_an_array_is_a_stream_of_its_elements_in_every_cut() -> None:
    """Gemini's way: a JSON array, an element at a time."""
    for at in range(len(ARRAY) + 1):
        assert read(JSON, ARRAY[:at], ARRAY[at:]) == known(7, 3)
    reader = reader_of(JSON)
    marks = [reader.feed(ARRAY[at : at + 1]) for at in range(len(ARRAY))]
    assert marks == [False] * (len(ARRAY) - 2) + [True, True]
    assert reader.finish() == known(7, 3)


def test_an_array_that_is_cut_off_gives_what_came() -> None:
    assert read(JSON, ARRAY[:-10]) == known(7, 1)
    assert read(JSON, ARRAY[:30]) == MISSING
    assert read(JSON, b"[]") == MISSING
    assert read(JSON, b'[{"error":{"code":429}}]') == Usage({}, UsageStatus.MISSING, True)


def test_a_program_that_takes_arrays_sees_the_whole_one() -> None:
    made = readers(
        {
            "rows": "length",
            "pages": "map(.pages) | add",
            "tokens": ".usage.tokens",
            "results": ".results | length",
        }
    )
    body = b'[{"pages":2},{"pages":3,"usage":{"tokens":9},"results":[1]}]'
    reader = reader_of(JSON, made)
    reader.feed(body[:9])
    assert reader.waits
    reader.feed(body[9:])
    counts = {"rows": 2, "pages": 5, "tokens": 9, "results": 1}
    assert reader.finish() == Usage(counts, UsageStatus.KNOWN, False)


@pytest.mark.parametrize(
    ("merge", "expected"), [("last", known(4, 0)), ("sum", known(18, 9)), ("max", known(9, 5))]
)
@pytest.mark.parametrize("kind", [SSE, LINES, JSON])
def test_counts_of_several_texts_come_together_as_the_rule_says(
    merge: Merge, expected: Usage, kind: bytes
) -> None:
    texts = [used(5, 4), used(9, 5), b'{"usage":null}', b"{}", used(4, None), used(None, 0)]
    body = {SSE: sse(*texts), LINES: b"\n".join(texts), JSON: b"[" + b",".join(texts) + b"]"}
    assert read(kind, body[kind], made=readers(merge=merge)) == expected


def test_a_wrong_count_among_several_spoils_a_sum_and_a_maximum() -> None:
    texts = [used(5, 4), used(-1, 5), used(6, 7)]
    assert read(SSE, sse(*texts)) == known(6, 7)
    spoilt: list[tuple[Merge, int]] = [("sum", 16), ("max", 7)]
    for merge, made in spoilt:
        usage = read(SSE, sse(*texts), made=readers(merge=merge))
        assert usage == Usage({"output_tokens": made}, UsageStatus.INVALID, False)
    largest = used(limits.COUNT_MAX, 1)
    over = read(SSE, sse(largest, used(1, 1)), made=readers(merge="sum"))
    assert over == Usage({"output_tokens": 2}, UsageStatus.INVALID, False)


@pytest.mark.parametrize("count", [int(UsageStatus.MISSING), int(UsageStatus.INVALID)])
def test_a_count_that_looks_like_a_status_is_added_as_a_count(count: int) -> None:
    usage = read(SSE, sse(used(count, count), used(1, 1)), made=readers(merge="sum"))
    assert usage == known(count + 1, count + 1)


def stream(*events: tuple[bytes, bytes], end: bytes = b"\n\n") -> bytes:
    return b"".join(b"event: " + name + b"\ndata: " + data + end for name, data in events)


@pytest.mark.parametrize(
    ("kind", "chunks", "marks"),
    [
        (SSE, [stream((b"message_stop", b'{"type":"message_stop"}'))], [True]),
        (SSE, [b'data: {"type":"message_stop"}\n', b"\n"], [True, True]),
        (SSE, [b'data: {"type":"message_stop"}', b"\n\n"], [True, True]),
        (SSE, [b"event: message_stop\n", b"data: {}\n", b"\n"], [False, True, True]),
        (SSE, [b"event:message_stop\ndata: bye", b"\n", b"\n"], [False, False, True]),
        (SSE, [b"event: message_stop\n", b"\n"], [False, True]),
        (SSE, [b'data: {"type":\n', b'data: "message_stop"}\n', b"\n"], [False, True, True]),
        (SSE, [b'data: {"type":"response.failed","n":{}', b"}"], [False, True]),
        (SSE, [b'data: {"text":"message_stop {}"}\n\n', b""], [False, False]),
        (SSE, [b'data: {"type":["message_stop"]}\n\n'], [False]),
        (SSE, [b'data: {"type":"message_stopped"}\n\n', b"event: message_stops\n\n"], [False] * 2),
        (SSE, [b"event: message_stop\nevent: ping\ndata: {}\n\n"], [False]),
        (SSE, [b'data: {"done":true}\n\n'], [False]),
        (LINES, [b'{"done":false}\n', b'{"done":true}\n', b""], [False, True, True]),
        (LINES, [b'{"done":true}', b"\n"], [True, True]),
        (LINES, [b'{"a":{"done":true}', b',"done":true', b"}"], [False, False, True]),
        (LINES, [b'{"a":{"done":true}}\n', b'{"done":1}\n'], [False] * 2),
        (LINES, [b'{"text":"\\"done\\":true"}\n'], [False]),
        (LINES, [b'[{"done":true}]\n', b'"done"\n'], [False, False]),
    ],
)  # fmt: skip
def test_the_end_of_each_format_is_seen_with_the_bytes_that_complete_it(
    kind: bytes, chunks: list[bytes], marks: list[bool]
) -> None:
    reader = reader_of(kind)
    assert [reader.feed(chunk) for chunk in chunks] == marks


@pytest.mark.parametrize("kind", [b"completed", b"incomplete", b"failed"])
def test_the_usage_of_the_last_event_is_read_when_its_end_is_seen(kind: bytes) -> None:
    """The event that ends a stream carries its usage, and nothing after it may be waited for."""
    usage = b'{"input_tokens":880,"output_tokens":130}'
    data = b'{"type":"response.%s","response":{"usage":%s}}' % (kind, usage)
    whole = stream(
        (b"response.created", b'{"type":"response.created"}'), (b"response." + kind, data)
    )
    spec: dict[str, int | str] = {
        name: f".response.usage.{name}" for name in ("input_tokens", "output_tokens")
    }
    made = readers(spec)
    for at in range(len(whole) + 1):
        reader = reader_of(SSE, made)
        if reader.feed(whole[:at]):
            assert at >= len(whole) - 2
        else:
            assert reader.feed(whole[at:])
        assert reader.finish() == known(880, 130)


def test_a_byte_at_a_time_looking_for_the_end_stays_linear() -> None:
    """Reading the line under way at each brace would take hours here."""
    for kind, begin in (
        (SSE, b'data: {"type":"message_stop","a":"'),
        (LINES, b'{"done":true,"a":"'),
    ):
        reader = reader_of(kind)
        reader.feed(begin)
        for _ in range(200_000):
            assert reader.feed(b"}") is False


ANTHROPIC: dict[str, int | str] = {
    "uncached": "(.message.usage // .usage).input_tokens",
    "cached": "(.message.usage // .usage).cache_read_input_tokens // 0",
    "output": "(.message.usage // .usage).output_tokens",
}


@pytest.mark.parametrize(
    ("start", "delta", "counts"),
    [
        ((25, 0, 1), (None, None, 15), (25, 0, 15)),  # null says nothing
        ((25, 0, 1), (25, 0, 15), (25, 0, 15)),  # totals, not increments
        ((8834, 0, 0), (18, 8816, 426), (18, 8816, 426)),  # the true split comes last
        ((25, 7, 1), (None, 0, 15), (25, 7, 15)),  # with a default, its value says nothing
    ],
)
def test_counts_that_are_split_over_two_events_come_together_by_field(
    start: tuple[int, ...], delta: tuple[int | None, ...], counts: tuple[int, ...]
) -> None:
    names = ("input_tokens", "cache_read_input_tokens", "output_tokens")
    first = {"type": "message_start", "message": {"usage": dict(zip(names, start, strict=True))}}
    last = {"type": "message_delta", "usage": dict(zip(names, delta, strict=True))}
    whole = sse(json.dumps(first).encode(), b'{"type":"ping"}', json.dumps(last).encode())
    usage = read(SSE, whole, made=readers(ANTHROPIC))
    assert tuple(usage.counts.values()) == counts
    assert usage.status is UsageStatus.KNOWN


def large(size: int, last: bytes = b'"usage":{"prompt_tokens":16,"completion_tokens":0}') -> bytes:
    row = b'{"embedding":[' + b"0.123456," * 1000 + b"0.5]},"
    rows = row * (size // len(row) + 1)
    return b'{"object":"list","data":[' + rows[:-1] + b'],"model":"m",' + last + b"}"


@pytest.mark.parametrize("step", [1000, 64 * limits.KIB, 50 * limits.MIB])
def test_a_text_above_the_bound_gives_the_usage_at_its_end_if_the_rule_reads_that(
    step: int,
) -> None:
    body = large(500 * limits.KIB)
    chunks = [body[at : at + step] for at in range(0, len(body), step)]
    for tail, usage in ((True, known(16, 0)), (False, MISSING)):
        made = readers(body_max=200 * limits.KIB, tail=tail)
        assert read(JSON, *chunks, made=made) == usage
    assert read(JSON, *chunks) == known(16, 0)


def test_a_text_above_the_bound_that_is_cut_off_is_missing() -> None:
    made = readers(body_max=limits.MIB, tail=True)
    reader = reader_of(JSON, made)
    reader.feed(large(2 * limits.MIB))
    assert not reader.waits
    assert reader.finish(complete=False) == MISSING


def test_a_text_that_is_cut_off_says_nothing_unless_it_is_whole() -> None:
    reader = reader_of(JSON)
    reader.feed(used(3, 4)[:-1])
    assert reader.finish(complete=False) == MISSING
    reader.feed(b"}")
    assert reader.finish(complete=False) == known(3, 4)


def chunks_of(kind: bytes, count: int) -> Iterable[bytes]:
    text = used(1, 2)
    filler = b'{"text":"' + b"word " * 200 + b'"}'
    for _ in range(count):
        yield {
            SSE: sse(filler, text),
            LINES: filler + b"\n" + text + b"\n",
            JSON: filler + b",\n" + text + b",",
        }[kind]


@pytest.mark.parametrize("kind", [SSE, LINES, JSON])
def test_a_stream_of_any_length_takes_constant_memory(kind: bytes) -> None:
    reader = reader_of(kind)
    reader.feed(b"[" if kind == JSON else b"")
    tracemalloc.start()
    try:
        for chunk in chunks_of(kind, 5_000):
            reader.feed(chunk)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert reader.finish() == known(1, 2)
    assert peak < 64 * limits.KIB


def test_sixteen_large_texts_at_once_take_bounded_memory() -> None:
    """34 MB each, in parts that the app may forget: what is kept is the bound, then the tail."""
    made = readers(body_max=limits.MIB, tail=True)
    body = large(34 * limits.MIB)
    step = 64 * limits.KIB
    waiting = [reader_of(JSON, made) for _ in range(16)]
    tracemalloc.start()
    try:
        for at in range(0, len(body), step):
            part = body[at : at + step]
            for reader in waiting:
                reader.feed(bytes(bytearray(part)))
        kept, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert [reader.finish() for reader in waiting] == [known(16, 0)] * 16
    assert peak < 16 * 2 * limits.MIB
    assert kept < 16 * 4 * limits.TAIL


def test_what_waits_and_never_begins_is_bounded() -> None:
    reader = reader_of(JSON, readers(body_max=limits.MIB))
    for _ in range(40):
        reader.feed(b" " * 65_536)
    assert not reader.waits
    assert reader.finish() == MISSING
