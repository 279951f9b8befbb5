"""The event scanner: WHATWG framing, any cut, bounded."""

from __future__ import annotations

import re
import tracemalloc
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from finomw import limits
from finomw.metering.events import EventScanner


def scan(*chunks: bytes) -> list[bytes]:
    """Read a whole stream."""
    scanner = EventScanner()
    events = [event for chunk in chunks for event in scanner.feed(chunk)]
    return events + scanner.finish()


def by_the_book(stream: bytes) -> list[bytes]:
    """Read a whole stream by the WHATWG text, word by word, plus an end that completes."""
    events: list[bytes] = []
    buffer = b""
    for line in [*re.split(rb"\r\n|\r|\n", stream.removeprefix(b"\xef\xbb\xbf")), b""]:
        name, _, value = line.partition(b":")
        if line == b"":
            if buffer[:-1]:
                events.append(buffer[:-1])
            buffer = b""
        elif name == b"data":
            buffer += value.removeprefix(b" ") + b"\n"
    return events


pieces = st.lists(
    st.sampled_from(
        [
            *(
                b"data",
                b"data: ",
                b":",
                b" ",
                b"\n",
                b"\r",
                b"\r\n",
                b"\n\n",
                b"[DONE]",
                b"x",
                b"\0",
            ),
            *(b"\xe2\x98", b"\x83", b"\xef\xbb\xbf", b"\xff", b"id: 1\n", b": hi\r", b"event:e\n"),
        ]
    ),
    max_size=30,
)


@settings(derandomize=True, max_examples=500, deadline=None)
@given(pieces=pieces, cuts=st.lists(st.integers(0, 80), max_size=6))
def test_any_stream_in_any_cut_reads_as_by_the_book(pieces: list[bytes], cuts: list[int]) -> None:
    stream = b"".join(pieces)
    bounds = [0, *sorted(min(cut, len(stream)) for cut in cuts), len(stream)]
    chunks = [stream[a:b] for a, b in pairwise(bounds)]
    one_by_one = [stream[at : at + 1] for at in range(len(stream))]
    expected = by_the_book(stream)
    assert scan(stream) == expected
    assert scan(*chunks) == expected
    assert scan(*one_by_one) == expected


@pytest.mark.parametrize(
    ("stream", "events"),
    [
        (b"data: a\n\n", [b"a"]),
        (b"data:a\r\r", [b"a"]),
        (b"data:  a\r\n\r\n", [b" a"]),
        (b"data: a\ndata: b\n\n", [b"a\nb"]),
        (b"data: a\n\ndata: b", [b"a", b"b"]),
        (b"data: a\n\ndata: b\n", [b"a", b"b"]),
        (b"\xef\xbb\xbfdata: a\n\n", [b"a"]),
        (b"\xef\xbbdata: a\n\n", []),
        (b": data: a\n\n", []),
        (b"data\n\ndata:\n\ndata: \n\n", []),
        (b"data\ndata: a\n\n", [b"\na"]),
        (b"database: a\n\nDATA: b\n\n data: c\n\n", []),
        (b"id: 1\nevent: x\nretry: 3\nfoo\ndata: a\n\n", [b"a"]),
        (b"data: \xff\xfe\n\n", [b"\xff\xfe"]),
        (b"data: a:b: c\n\n", [b"a:b: c"]),
        (b"\n\n\n", []),
        (b"", []),
    ],
)
def test_framing(stream: bytes, events: list[bytes]) -> None:
    assert scan(stream) == events


def test_an_event_is_given_by_the_chunk_that_completes_it() -> None:
    scanner = EventScanner()
    assert scanner.feed(b"data: a\r") == []
    assert scanner.feed(b"\n") == []
    assert scanner.feed(b"\r") == [b"a"]
    assert scanner.feed(b"\ndata: b\n\ndata: c\n\nda") == [b"b", b"c"]
    assert scanner.finish() == []
    assert scanner.finish() == []


def test_the_end_may_be_taken_once_only() -> None:
    scanner = EventScanner()
    scanner.feed(b"data: a\ndata: b")
    assert scanner.finish() == [b"a\nb"]
    assert scanner.finish() == []


@pytest.mark.parametrize(
    ("chunks", "ended"),
    [
        ([b"data: x\n\n", b"data: [DONE]\n\n"], [False, True]),
        ([b"data: [DONE]\n", b"\n"], [True, True]),
        ([b"data: [DONE]", b"\n\n"], [True, True]),
        ([b"data: [DONE", b"]"], [False, True]),
        ([b"da", b"ta:[DONE]\r"], [False, True]),
        ([b"data:   [DONE] \n\n"], [True]),
        ([b"data: [DONE]", b"", b"data: x\n\n"], [True, True, True]),
        ([b"data: a\ndata: [DONE]\n\n"], [True]),
        ([b": [DONE]\n\n", b"event: [DONE]\n\n", b"[DONE]\n\n"], [False, False, False]),
        ([b'data: "[DONE]"\n\n', b"data: x [DONE]\n\n", b"data: [done]\n\n"], [False] * 3),
    ],
)
def test_the_end_marker_is_seen_with_its_last_byte(chunks: list[bytes], ended: list[bool]) -> None:
    scanner = EventScanner()
    seen = []
    for chunk in chunks:
        scanner.feed(chunk)
        seen.append(scanner.ended)
    assert seen == ended


@pytest.mark.parametrize("step", [7777, 2_000_000])
def test_an_event_of_the_bound_is_read_and_a_larger_one_passed_over(step: int) -> None:
    largest = b"x" * limits.EVENT_MAX
    half = b"y" * (limits.EVENT_MAX // 2)
    stream = (
        b"data: " + largest + b"\n\n"
        b"data:" + largest + b"z\n\n"
        b"data: a\ndata: " + largest + b"\ndata: b\n\n"
        b"data: " + half + b"\ndata: " + half + b"\ndata: b\n\n"
        b": " + largest + largest + b"\ndata: after\n\n"
    )  # fmt: skip
    scanner = EventScanner()
    events = []
    for at in range(0, len(stream), step):
        events += scanner.feed(stream[at : at + step])
    events += scanner.finish()
    assert [event[:9] for event in events] == [largest[:9], b"after"]
    assert len(events[0]) == limits.EVENT_MAX
    assert scanner.dropped == 3


@pytest.mark.parametrize("piece", [b"x" * 65_536, (b"\ndata: " + b"x" * 57) * 1024])
def test_an_endless_event_takes_bounded_memory(piece: bytes) -> None:
    scanner = EventScanner()
    scanner.feed(b"data: ")
    tracemalloc.start()
    try:
        for _ in range(40):
            assert scanner.feed(piece) == []
        kept, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert kept < 2 * limits.EVENT_MAX
    assert peak < 6 * limits.EVENT_MAX
    assert scanner.dropped == 1


def test_a_long_line_one_byte_at_a_time_is_read_in_linear_time() -> None:
    """Copying the line for each byte would take minutes here."""
    line = b"data: " + b"x" * 1_000_000
    scanner = EventScanner()
    for at in range(len(line)):
        scanner.feed(line[at : at + 1])
    assert scanner.feed(b"\n\n") == [b"x" * 1_000_000]


def test_many_comments_before_the_first_event_are_passed() -> None:
    assert scan(b": keep-alive\n" * 100_000 + b"data: a\n\n") == [b"a"]
    assert scan(*[b": keep-alive\n\n"] * 100_000, b"data: a\n\n") == [b"a"]
