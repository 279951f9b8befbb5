"""Usage out of whole answers and out of streams."""

from __future__ import annotations

import json
from collections.abc import Iterable

import pytest

from finomw.errors import InvalidValue
from finomw.metering.meter import Meter
from finomw.metering.usage import Usage
from finomw.types import UsageStatus

CHAT = {"input_tokens": ".usage.prompt_tokens", "output_tokens": ".usage.completion_tokens"}


def known(given: int, made: int) -> Usage:
    """Make the usage that both counts are known of."""
    counts = {"input_tokens": given, "output_tokens": made}
    return Usage(counts, UsageStatus.KNOWN, False)


MISSING = Usage({}, UsageStatus.MISSING, False)


def chunk(content: str | None, usage: object = ..., *, ascii_only: bool = True) -> bytes:
    """Make the JSON of one streamed chunk; without ``usage`` there is no such member."""
    choices = [] if content is None else [{"index": 0, "delta": {"content": content}}]
    body: dict[str, object] = {"object": "chat.completion.chunk", "choices": choices}
    if usage is not ...:
        body["usage"] = usage
    return json.dumps(body, ensure_ascii=ascii_only).encode()


def tokens(given: int, made: int) -> dict[str, object]:
    """Make a usage object as upstreams write it."""
    details = {"reasoning_tokens": 7}
    return {
        "prompt_tokens": given,
        "completion_tokens": made,
        "total_tokens": given + made,
        "completion_tokens_details": details,
    }


def stream_of(*events: bytes, end: bytes = b"\n\n") -> bytes:
    """Frame events the common way."""
    return b"".join(b"data: " + event + end for event in events)


def read(meter: Meter, chunks: Iterable[bytes]) -> tuple[Usage, bool]:
    """Read a whole stream; tell its usage and whether the marker was seen."""
    reader = meter.stream()
    marks = [reader.feed(chunk) for chunk in chunks]
    assert marks == sorted(marks)  # once held, always held
    return reader.finish(), any(marks)


def read_in_every_cut(meter: Meter, stream: bytes) -> tuple[Usage, bool]:
    """Read it whole, one byte at a time and in each cut into two; all must agree."""
    whole = read(meter, [stream])
    assert read(meter, (stream[at : at + 1] for at in range(len(stream)))) == whole
    for at in range(len(stream) + 1):
        assert read(meter, [stream[:at], stream[at:]]) == whole
    return whole


USUAL = stream_of(
    chunk("", None), chunk("The ", None), chunk(".", None), chunk(None, tokens(37, 5)), b"[DONE]"
)
NO_USAGE = stream_of(chunk("The "), chunk("lamp"), chunk("."), b"[DONE]")
FILTERED_FIRST = stream_of(
    b'{"id":"","model":"","choices":[],"prompt_filter_results":[{}],"usage":null}',
    chunk("Blue", None),
    b'{"choices":[{"index":0,"finish_reason":null,"content_filter_offsets":{}}],"usage":null}',
    chunk(None, tokens(64, 3)),
    b"[DONE]",
)
RUNNING_TOTALS = stream_of(*[chunk("t", tokens(1000, made)) for made in range(7)], b"[DONE]")
SPLIT_POINTS = stream_of(
    chunk("snow ☃ and fish 🐟", ascii_only=False),
    chunk(None, tokens(12, 6)),
    b"[DONE]",
    end=b"\r\n\r\n",
)
NO_BLANK_LINE = stream_of(chunk("end"), chunk(None, tokens(70, 9)))[:-1]
NO_NEWLINE = NO_BLANK_LINE[:-1]
CUT_OFF = stream_of(chunk("end"), chunk(None, tokens(70, 9)))[:-6]
TORTURE = (
    b"\xef\xbb\xbf: welcome\r\n\r\nretry: 3000\r\n\r\nid: 1\r\n"
    b"data:" + chunk("A") + b"\r\n\r\n: keep-alive\n\n"
    b"data: " + chunk('data: {"usage":{"prompt_tokens":9999,"completion_tokens":9999}}') + b"\n\n"
    b"data: : keepalive\n\ndata\n\n"
    b"event: message\rdata: " + chunk("C", None) + b"\r\rfoo: ignored\n"
    b"data: {\ndata:  \"choices\": [],\ndata:  \"usage\": {\ndata:   \"prompt_tokens\": 33,\n"
    b"data:   \"completion_tokens\": 11\ndata:  }\ndata: }\n\n"
    b": x-tokens=44\ndata: [DONE]\n\n"
)  # fmt: skip


@pytest.mark.parametrize(
    ("stream", "usage", "marked"),
    [
        pytest.param(USUAL, known(37, 5), True, id="usual"),
        pytest.param(NO_USAGE, MISSING, True, id="no usage"),
        pytest.param(FILTERED_FIRST, known(64, 3), True, id="filtered first"),
        pytest.param(RUNNING_TOTALS, known(1000, 6), True, id="running totals"),
        pytest.param(SPLIT_POINTS, known(12, 6), True, id="split points"),
        pytest.param(NO_BLANK_LINE, known(70, 9), False, id="no blank line"),
        pytest.param(NO_NEWLINE, known(70, 9), False, id="no newline"),
        pytest.param(CUT_OFF, MISSING, False, id="cut off"),
        pytest.param(TORTURE, known(33, 11), True, id="torture"),
        pytest.param(b"", MISSING, False, id="empty"),
        pytest.param(b"<html>bad gateway</html>", MISSING, False, id="html"),
    ],
)
def test_a_stream_gives_the_same_usage_in_every_cut(
    stream: bytes, usage: Usage, marked: bool
) -> None:
    assert read_in_every_cut(Meter(CHAT), stream) == (usage, marked)


def test_the_chunk_with_the_marker_and_all_later_ones_are_held() -> None:
    reader = Meter(CHAT).stream()
    assert reader.feed(stream_of(chunk("a"), chunk(None, tokens(3, 4)))) is False
    assert reader.feed(b"data: [DO") is False
    assert reader.feed(b"NE]") is True
    assert reader.feed(b"\n\n") is True
    assert reader.feed(b"") is True
    assert reader.finish() == known(3, 4)


def test_an_aborted_stream_gives_the_last_totals() -> None:
    reader = Meter(CHAT).stream()
    reader.feed(RUNNING_TOTALS[: len(RUNNING_TOTALS) // 2])
    so_far = reader.usage()
    assert so_far.status is UsageStatus.KNOWN
    assert so_far.counts["input_tokens"] == 1000
    assert 0 < so_far.counts["output_tokens"] < 6
    assert reader.finish() == so_far
    assert reader.finish() == so_far


def test_counts_may_come_in_different_events() -> None:
    meter = Meter(
        {
            "input_tokens": "(.message.usage // .usage).input_tokens",
            "output_tokens": "(.message.usage // .usage).output_tokens",
        }
    )
    stream = stream_of(
        b'{"type":"message_start","message":{"usage":{"input_tokens":25,"output_tokens":1}}}',
        b'{"type":"ping"}',
        b'{"type":"message_delta","usage":{"input_tokens":null,"output_tokens":15}}',
        b'{"type":"message_stop"}',
    )
    assert read_in_every_cut(meter, stream) == (known(25, 15), False)


@pytest.mark.parametrize(
    "later", [b"null", b"5", b'"ping"', b"[1]", b"{}", b"{", b'{"usage":null}']
)
def test_an_event_that_says_nothing_erases_nothing(later: bytes) -> None:
    stream = stream_of(chunk(None, tokens(3, 4)), later)
    assert read(Meter(CHAT), [stream]) == (known(3, 4), False)
    assert read(Meter(CHAT), [stream_of(later)]) == (MISSING, False)


def test_a_default_is_no_count_of_an_event() -> None:
    meter = Meter({"input_tokens": ".usage.in // 0", "output_tokens": ".usage.out // 0"})
    said = b'{"usage":{"in":3,"out":4}}'
    assert read(meter, [stream_of(b"{}", said, b"{}")]) == (known(3, 4), False)
    assert read(meter, [stream_of(b"{}", b'{"usage":{"in":3}}', b"{}")]) == (known(3, 0), False)
    assert read(meter, [stream_of(b"{}", b"{}")]) == (MISSING, False)


def test_null_erases_nothing_also_where_a_program_gives_a_count_on_null() -> None:
    meter = Meter({"n": "if . == null then 0 else .n end"})
    usage, _ = read(meter, [stream_of(b'{"n":3}', b'{"n":null}', b"{}")])
    assert usage == Usage({"n": 3}, UsageStatus.KNOWN, False)


def test_an_explicit_zero_is_a_count() -> None:
    assert read(Meter(CHAT), [stream_of(chunk(None, tokens(0, 0)))]) == (known(0, 0), False)


def test_a_program_that_fails_on_null_says_nothing_where_it_fails() -> None:
    meter = Meter({"n": ".usage.all - .usage.cached"})
    said = b'{"usage":{"all":9,"cached":2}}'
    usage, _ = read(meter, [stream_of(b"{}", said, b"{}")])
    assert usage == Usage({"n": 7}, UsageStatus.KNOWN, False)
    assert read(meter, [stream_of(b"{}")])[0] == MISSING


@pytest.mark.parametrize(
    "usage", [{"prompt_tokens": -3}, {"prompt_tokens": "3"}, {"prompt_tokens": 1.5}, 5, [1]]
)
def test_a_wrong_value_in_an_event_is_invalid_until_a_right_one_follows(usage: object) -> None:
    meter = Meter({"input_tokens": ".usage.prompt_tokens"})
    right = Usage({"input_tokens": 3}, UsageStatus.KNOWN, False)
    wrong = Usage({}, UsageStatus.INVALID, False)
    first, last = chunk(None, tokens(3, 4)), chunk(None, usage)
    assert read(meter, [stream_of(first, last)]) == (wrong, False)
    assert read(meter, [stream_of(last, chunk("x", None))]) == (wrong, False)
    assert read(meter, [stream_of(last, first)]) == (right, False)


@pytest.mark.parametrize("count", [int(UsageStatus.MISSING), int(UsageStatus.INVALID)])
def test_a_count_is_never_taken_for_the_status_of_its_number(count: int) -> None:
    body = chunk(None, tokens(count, count))
    assert Meter(CHAT).read_json(body) == known(count, count)
    assert read(Meter(CHAT), [stream_of(body)]) == (known(count, count), False)


def test_an_error_event_is_remembered() -> None:
    stream = stream_of(chunk("a"), b'{"error":{"message":"overloaded"}}', b"[DONE]")
    usage, marked = read_in_every_cut(Meter(CHAT), stream)
    assert (usage, marked) == (Usage({}, UsageStatus.MISSING, True), True)


@pytest.mark.parametrize(
    ("body", "usage"),
    [
        (chunk("x", tokens(1810, 240)), known(1810, 240)),
        (b'{"usage":{"prompt_tokens":120.0,"completion_tokens":3e1}}', known(120, 30)),
        (b'{"usage":{"prompt_tokens":1,"prompt_tokens":2,"completion_tokens":0}}', known(2, 0)),
        (b"", MISSING),
        (b" \r\n", MISSING),
        (b"null", MISSING),
        (b"{}", MISSING),
        (b"[1]", MISSING),
        (b"\xef\xbb\xbf" + chunk("x", tokens(1, 2)), known(1, 2)),
        (b'{"usage":null}', MISSING),
        (b'{"usage":{"prompt_tokens":null,"completion_tokens":null}}', MISSING),
        (b'{"error":"no"}', Usage({}, UsageStatus.MISSING, True)),
        (
            b'{"usage":{"prompt_tokens":17}}',
            Usage({"input_tokens": 17}, UsageStatus.MISSING, False),
        ),
        (
            b'{"usage":{"prompt_tokens":14417.92,"completion_tokens":10}}',
            Usage({"output_tokens": 10}, UsageStatus.INVALID, False),
        ),
        (
            b'{"usage":{"prompt_tokens":-5,"completion_tokens":null}}',
            Usage({}, UsageStatus.INVALID, False),
        ),
    ],
)
def test_a_whole_answer_gives_its_usage(body: bytes, usage: Usage) -> None:
    assert Meter(CHAT).read_json(body) == usage


@pytest.mark.parametrize(
    "body",
    [
        b'{"usage":{"prompt_tokens":NaN,"completion_tokens":1}}',
        b'{"usage":{"prompt_tokens":1e400,"completion_tokens":1}}',
        b'{"usage":{"prompt_tokens":"120","completion_tokens":"30"}}',
        b'{"usage":{"prompt_tokens":true,"completion_tokens":false}}',
        b'{"usage":{"prompt_tokens":[1,2],"completion_tokens":{}}}',
        b'{"usage":{"prompt_tokens":1,"completion_tokens":1',
        b'{"usage":5}',
        b'[{"usage":5}]',
        b"<html></html>",
        b"[" * 100_000,
    ],
)
@pytest.mark.parametrize("default", ["", " // 0"])
def test_a_wrong_answer_is_invalid_whatever_the_default(body: bytes, default: str) -> None:
    meter = Meter({"requests": 1} | {name: source + default for name, source in CHAT.items()})
    assert meter.read_json(body).status is UsageStatus.INVALID
    assert meter.read_json(body).counts.get("requests") == 1


def test_a_default_holds_in_a_whole_answer() -> None:
    meter = Meter({"input_tokens": ".usage.in", "output_tokens": ".usage.out // 0"})
    assert meter.read_json(b'{"usage":{"in":17}}') == known(17, 0)


def test_a_flat_meter_knows_its_counts_and_still_tells_errors() -> None:
    meter = Meter({"requests": 1, "pages": 2})
    assert (meter.flat, meter.names) == (True, ("requests", "pages"))
    counts = {"requests": 1, "pages": 2}
    for body in (b"", b"{}", b"<html>"):
        assert meter.read_json(body) == Usage(counts, UsageStatus.KNOWN, False)
    assert meter.read_json(b'{"error":"no"}') == Usage(counts, UsageStatus.KNOWN, True)
    usage, marked = read(meter, [stream_of(b'{"error":{"code":1}}', b"[DONE]")])
    assert (usage, marked) == (Usage(counts, UsageStatus.KNOWN, True), True)


def test_a_meter_with_a_program_is_not_flat() -> None:
    meter = Meter({"requests": 1, "results": ".results | length"})
    assert (meter.flat, meter.names) == (False, ("requests", "results"))
    assert meter.read_json(b'{"results":[1,2]}').counts == {"requests": 1, "results": 2}


def test_readers_of_one_meter_share_nothing() -> None:
    meter = Meter(CHAT | {"requests": 1})
    one, other = meter.stream(), meter.stream()
    one.feed(USUAL)
    one.usage().counts["requests"] = 9
    assert other.usage() == Usage({"requests": 1}, UsageStatus.MISSING, False)
    assert one.finish().counts == {"requests": 1, "input_tokens": 37, "output_tokens": 5}


def test_a_spec_that_cannot_be_compiled_names_the_meter() -> None:
    with pytest.raises(InvalidValue, match=r"^tokens: jq: error: "):
        Meter({"tokens": ".usage."})
