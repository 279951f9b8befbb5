"""JSON lines and the elements of an array: any cut, bounded."""

from __future__ import annotations

import json
import tracemalloc
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from finomw import limits
from finomw.metering.elements import ElementScanner
from finomw.metering.lines import LineScanner
from finomw.metering.streams import Scanner

values = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 9) | st.text('ab"\\[]{},:☃ \n', max_size=8),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(st.text('"\\{]', max_size=3), inner, max_size=4)
    ),
    max_leaves=12,
)


def scan(scanner: Scanner, chunks: list[bytes]) -> list[bytes]:
    return [text for chunk in chunks for text in scanner.feed(chunk)] + scanner.finish()


def cut(body: bytes, cuts: list[int]) -> list[bytes]:
    bounds = [0, *sorted(min(at, len(body)) for at in cuts), len(body)]
    return [body[a:b] for a, b in pairwise(bounds)]


@settings(derandomize=True, max_examples=150, deadline=None)
@given(
    array=st.lists(values, max_size=6),
    indent=st.sampled_from([None, 0, 2]),
    plain=st.booleans(),
    cuts=st.lists(st.integers(0, 300), max_size=6),
)
def test_the_objects_of_an_array_are_found_in_any_cut(
    array: list[Any], indent: int | None, plain: bool, cuts: list[int]
) -> None:
    body = json.dumps(array, indent=indent, ensure_ascii=plain).encode()
    expected = [value for value in array if isinstance(value, dict)]
    one_by_one = [body[at : at + 1] for at in range(len(body))]
    for chunks in ([body], cut(body, cuts), one_by_one):
        scanner = ElementScanner()
        assert [json.loads(text) for text in scan(scanner, chunks)] == expected
        assert scanner.ended


@settings(derandomize=True, max_examples=100, deadline=None)
@given(
    lines=st.lists(values, max_size=6),
    newline=st.sampled_from([b"\n", b"\r\n", b"\n\n \n"]),
    last=st.booleans(),
    cuts=st.lists(st.integers(0, 200), max_size=6),
)
def test_json_lines_are_found_in_any_cut(
    lines: list[Any], newline: bytes, last: bool, cuts: list[int]
) -> None:
    body = newline.join(json.dumps(line).encode() for line in lines) + newline * last
    one_by_one = [body[at : at + 1] for at in range(len(body))]
    for chunks in ([body], cut(body, cuts), one_by_one):
        texts = [text for text in scan(LineScanner(), chunks) if text.strip()]
        assert [json.loads(text) for text in texts] == lines


def test_an_array_ends_with_its_own_bracket() -> None:
    scanner = ElementScanner()
    assert scanner.feed(b' [{"a":"]"},[1],') == [b'{"a":"]"}']
    assert not scanner.ended
    assert scanner.feed(b'{"b":[]}') == [b'{"b":[]}']
    assert not scanner.ended
    assert scanner.feed(b"\n]") == []
    assert scanner.ended
    assert scanner.feed(b'[{"c":1}]') == []


def test_an_element_that_is_cut_off_is_none() -> None:
    assert scan(ElementScanner(), [b'[{"a":1},{"b":', b"2"]) == [b'{"a":1}']


@pytest.mark.parametrize("step", [7777, 2_000_000])
def test_what_is_too_large_is_passed_over(step: int) -> None:
    large = json.dumps({"a": "x" * limits.EVENT_MAX}).encode()
    array = b"[" + large + b',{"b":1},' + large + b',{"c":1}]'
    lines = large + b'\n{"b":1}\n' + large + b'\n{"c":1}'
    scanners: list[tuple[Scanner, bytes]] = [(ElementScanner(), array), (LineScanner(), lines)]
    for scanner, body in scanners:
        chunks = [body[at : at + step] for at in range(0, len(body), step)]
        assert scan(scanner, chunks) == [b'{"b":1}', b'{"c":1}']


@pytest.mark.parametrize("make", [ElementScanner, LineScanner])
@pytest.mark.parametrize("piece", [b"x" * 65_536, b'\\"' * 32_768, b'"abc",{' * 2000])
def test_an_endless_text_takes_bounded_memory(make: type[Any], piece: bytes) -> None:
    scanner = make()
    scanner.feed(b'[{"a":"')
    tracemalloc.start()
    try:
        for _ in range(100):
            assert scanner.feed(piece) == []
        kept, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert kept < 2 * limits.EVENT_MAX
    assert peak < 6 * limits.EVENT_MAX


def test_a_byte_at_a_time_is_read_in_linear_time() -> None:
    """Copying what has come for each byte would take minutes here."""
    body = b'[{"a":"' + b'x\\"' * 100_000 + b'"}]'
    chunks = [body[at : at + 1] for at in range(len(body))]
    assert len(scan(ElementScanner(), chunks)[0]) == len(body) - 2
    assert len(scan(LineScanner(), chunks)[0]) == len(body)
