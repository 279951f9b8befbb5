"""Programs that rewrite: to the byte where nothing changes, and never for long on the loop."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Coroutine
from typing import Any, TypeVar

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from finomw import limits
from finomw.errors import InvalidValue
from finomw.metering.allowance import Allowance, NotInline
from finomw.metering.blocks import Blocks, data_of, with_data
from finomw.metering.ensured import ask_for_usage, asking, is_usage_chunk
from finomw.metering.guard import Guard
from finomw.metering.programs import ProgramFailed
from finomw.metering.transforms import Transform

ResultT = TypeVar("ResultT")


def run(main: Coroutine[Any, Any, ResultT]) -> ResultT:
    return asyncio.run(asyncio.wait_for(main, 60))


@pytest.mark.parametrize(
    ("program", "before", "after"),
    [
        (".a = 1", b'{"b": 2}', b'{"b":2,"a":1}'),
        (".a = 1", b' { "a" : 1.0 } \n', b' { "a" : 1.0 } \n'),
        (".", b'{"a":1e5,"a":2}', b'{"a":1e5,"a":2}'),
        ("del(.cost)", b'{"cost":3,"n":12345678901234567890}', b'{"n":12345678901234567890}'),
        ("{text: .c[0].t}", b'{"c":[{"t":"\\u00e4\\u0000"}]}', b'{"text":"\xc3\xa4\\u0000"}'),
        (".a, .b", b'{"a":1,"b":2}', b"1"),
        ("empty", b"{}", None),
        ("null", b"{}", b"null"),
        (".a # a comment", b'{"a":[]}', b"[]"),
    ],
)
def test_a_text_becomes_what_jq_makes_of_it(
    program: str, before: bytes, after: bytes | None
) -> None:
    transform = Transform(program)
    assert transform.run(before) == after
    if after == before:
        assert transform.run(before) is before


@pytest.mark.parametrize(
    ("program", "text"),
    [
        (".a.b = 1", b'{"a":5}'),
        (".", b"{"),
        (".", b"{} {}"),
        (".", b"NaN"),
        (".", b""),
        (".", b'"\xff"'),
        (".", b'\xef\xbb\xbf{"a":1}'),
        ('error("no")', b"{}"),
    ],
)
def test_what_cannot_be_rewritten_fails(program: str, text: bytes) -> None:
    with pytest.raises(ProgramFailed):
        Transform(program).run(text)


def test_what_is_not_a_program_is_told_in_its_own_terms() -> None:
    with pytest.raises(InvalidValue, match="nothing/0 is not defined"):
        Transform("nothing")
    with pytest.raises(InvalidValue, match="syntax error"):
        Transform("1) | (2")


def test_what_may_take_long_is_done_in_the_helper() -> None:
    large = json.dumps({"x": "y" * 2_000_000, "cost": 1}).encode()
    endless = Transform("until(false; .)")
    transform = Transform("del(.cost)")

    async def main() -> None:
        guard = Guard()
        try:
            with pytest.raises(NotInline):
                transform.run(large, Allowance())
            assert await transform.apply(large, guard) == large[:-12].replace(b": ", b":") + b"}"
            assert await Transform(".").apply(large, guard) is large
            assert await Transform("empty").apply(large, guard) is None
            with pytest.raises(ProgramFailed, match="no"):
                await Transform('error("no")').apply(large, guard)
            with pytest.raises(ProgramFailed, match="too long"):
                await endless.apply(b"{}", guard)
            assert await transform.apply(b'{"cost":1}', guard) == b"{}"
        finally:
            guard.close()

    run(main())


def test_a_body_that_becomes_too_large_is_not_rewritten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "REWRITTEN_MAX", 1 * limits.MIB)

    async def main() -> None:
        guard = Guard()
        try:
            with pytest.raises(ProgramFailed):
                await Transform(". * 2000000").apply(b'"y"', guard)
        finally:
            guard.close()

    run(main())


STREAMS = '"stream":true'


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (
            '{"stream":true, "n":1e5}\n',
            '{"stream":true, "n":1e5,"stream_options":{"include_usage":true}}\n',
        ),
        (
            '{"stream_options":{"include_usage":false,"x":1.0}, "stream":true,"n":1e5}',
            '{"stream_options":{"include_usage":true,"x":1.0},"stream":true,"n":1e5}',
        ),
        (
            '{"stream_options":null,"stream":true}',
            '{"stream_options":{"include_usage":true},"stream":true}',
        ),
        (
            '{"stream_options":{},"stream":true}',
            '{"stream_options":{"include_usage":true},"stream":true}',
        ),
        ('{"stream":true,"stream_options":{"include_usage":true}}', None),
        ('{"stream":true,"stream_options":{"include_usage":1}}', None),
        ('{"stream":true,"stream_options":5}', None),
        ('{"stream":false}', None),
        ("{}", None),
        ("[]", None),
        ("no JSON", None),
    ],
)
def test_a_stream_is_asked_for_its_usage(before: str, after: str | None) -> None:
    raw = before.encode()
    asked = asking(raw)
    if after is None:
        assert asked is raw
    else:
        assert asked == after.encode()
        assert json.loads(asked)["stream_options"]["include_usage"] is True


def test_a_large_request_is_asked_in_the_helper() -> None:
    text = '{"stream":true,"stream_options":null,"x":"%s"}' % ("y" * 2_000_000)

    async def main() -> None:
        guard = Guard()
        try:
            asked = await ask_for_usage(text.encode(), guard)
            plain = text.replace("true", "false").encode()
            assert await ask_for_usage(plain, guard) is plain
        finally:
            guard.close()
        assert asked is not None
        assert json.loads(asked)["stream_options"] == {"include_usage": True}

    run(main())


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        ('{"choices":[],"usage":{"prompt_tokens":1}}', True),
        ('{"usage":{}, "choices": [ ] }', True),
        ('{"choices":[],"usage":null}', False),
        ('{"choices":[],"prompt_filter_results":[{}],"model":""}', False),
        ('{"choices":[{"delta":{}}],"usage":{"prompt_tokens":1}}', False),
        ('{"usage":{"prompt_tokens":1}}', False),
        ('{"choices":"\\"usage\\"","usage":"[]"}', False),
        ('[{"choices":[],"usage":{}}]', False),
        ('{"choices":[],"usage":{', False),
    ],
)
def test_only_the_chunk_for_usage_alone_is_known_as_such(data: str, expected: bool) -> None:
    assert is_usage_chunk(data.encode()) is expected


EVENTS = [
    b": comment\n\n",
    b'data: {"a":1}\n\n',
    b'event: x\r\ndata:{"a":\r\ndata: 2}\r\nid: 7\r\n\r\n',
    b"data: one\r\r",
    b"\n\n",
    b"data\n\n",
]


@given(st.lists(st.sampled_from(EVENTS), max_size=8), st.data())
@settings(derandomize=True, deadline=None, max_examples=300)
def test_blocks_are_the_stream_and_end_with_their_events(
    events: list[bytes], data: st.DataObject
) -> None:
    stream = b"".join(events) + data.draw(st.sampled_from([b"", b"data: rest", b"data: r\n"]))
    blocks, given_on = Blocks(), []
    rest = stream
    while rest:
        size = data.draw(st.integers(1, max(1, len(rest))))
        given_on += blocks.feed(rest[:size])
        rest = rest[size:]
    given_on += blocks.finish()
    assert b"".join(block.raw for block in given_on) == stream
    assert all(block.whole for block in given_on)
    wanted = [data_of(event) for event in events if data_of(event)]
    found = [data_of(block.raw) for block in given_on if data_of(block.raw)]
    assert found[: len(wanted)] == wanted


def test_an_event_that_is_too_large_passes_in_pieces() -> None:
    blocks = Blocks()
    large = b"data: " + b"x" * limits.EVENT_MAX
    stream = large + b"yy\n\ndata: 1\n\n"
    given_on = [
        block
        for at in range(0, len(stream), 5_000)
        for block in blocks.feed(stream[at : at + 5_000])
    ]
    assert b"".join(block.raw for block in given_on) == stream
    assert [block.raw for block in given_on if block.whole] == [b"data: 1\n\n"]
    assert blocks.finish() == []


@pytest.mark.parametrize(
    ("block", "data", "written"),
    [
        (b'data: {"a":1}\n\n', b'{"a":1}', b"data: NEW\n\n"),
        (b'data:{"a":1}\r\n\r\n', b'{"a":1}', b"data:NEW\r\n\r\n"),
        (
            b': c\nevent: x\ndata: {"a":\ndata:1}\nid: 7\n\n',
            b'{"a":\n1}',
            b": c\nevent: x\ndata: NEW\nid: 7\n\n",
        ),
        (b"\xef\xbb\xbfdata: {}\n\n", b"{}", b"\xef\xbb\xbfdata: NEW\n\n"),
        (b'data: {"a":1}', b'{"a":1}', b"data: NEW"),
        (b"database: 1\n\n", b"", b"database: 1\n\n"),
        (b"data\n\n", b"", b"data: NEW\n\n"),
    ],
)
def test_the_data_of_an_event_is_replaced_in_its_place(
    block: bytes, data: bytes, written: bytes
) -> None:
    assert data_of(block) == data
    assert with_data(block, b"NEW") == written
