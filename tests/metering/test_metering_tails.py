"""The last members of a large object: exact, or nothing."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from finomw import limits
from finomw.metering.meter import Meter
from finomw.metering.tails import last_members
from finomw.metering.usage import Usage
from finomw.types import UsageStatus

USAGE = b'"usage":{"prompt_tokens":16,"total_tokens":16}'
texts = st.text('ab"\\{}[]:, ☃', max_size=10)
values = st.recursive(
    st.none() | st.integers(-9, 9) | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=10,
)


@settings(derandomize=True, max_examples=150, deadline=None)
@given(
    members=st.lists(st.tuples(st.sampled_from(["usage", "a", '"', "\\"]) | texts, values)),
    plain=st.booleans(),
    spaced=st.booleans(),
    cut=st.integers(0, 400),
)
def test_what_is_found_in_a_tail_is_what_the_object_has(
    members: list[tuple[str, Any]], plain: bool, spaced: bool, cut: int
) -> None:
    """Whatever is in the strings, wherever the tail begins, names repeated or not."""
    space = " \n" if spaced else ""
    body = "{" + f",{space}".join(
        f"{json.dumps(name, ensure_ascii=plain)}{space}:{space}"
        f"{json.dumps(value, ensure_ascii=plain)}"
        for name, value in members
    )
    raw = (body + space + "}" + space).encode()
    whole = dict(members)
    found = last_members(raw)
    assert {name: json.loads(value) for name, value in found.items()} == whole
    tail = last_members(raw[min(cut, len(raw) - 1) :])
    assert {
        name: json.loads(value) for name, value in tail.items()
    }.items() <= whole.items() or all(
        whole[name] == json.loads(value) for name, value in tail.items()
    )


@pytest.mark.parametrize(
    "tail",
    [
        b"",
        b"}",
        b"]",
        b'"usage":{"n":1}',
        b'"usage":{"n":1}]',
        b'x\\"usage":{"n":1}}',
        b'usage":{"n":1}}',
        b'"usage":{"n":1}}',  # the backslash before the first quote may have been cut off
        b'["usage":{"n":1}]}',
        b'{"a":{"usage":{"n":1}}}}',
        b'"a":"\\"usage\\":{\\"n\\":1}"}',
        b'{"usage":{"n":1}} x',
    ],
)
def test_what_is_not_surely_a_member_is_none(tail: bytes) -> None:
    assert "usage" not in last_members(tail)


def test_a_decoy_in_a_string_or_at_a_depth_is_passed_over() -> None:
    decoy = json.dumps('","usage":{"prompt_tokens":9999}}').encode()
    head = b"x" * 100 + b'"],"text":' + decoy + b',"deep":{' + USAGE.replace(b"16", b"777")
    members = last_members(head + b"}," + USAGE + b',"note":' + decoy + b"}\n")
    assert list(members) == ["note", "usage", "deep", "text"]
    assert members["usage"] == USAGE.partition(b":")[2]


def test_of_members_with_the_same_name_the_last_counts() -> None:
    members = last_members(b'{"usage":{"n":1},"\\u0075sage":{"n":2},"a":1}')
    assert members == {"a": b"1", "usage": b'{"n":2}'}


def test_a_string_without_its_begin_is_read_in_linear_time() -> None:
    for tail in (b"x" * 10**6 + b'"}', b'\\"' * 10**6 + b'"}', b"{" * 10**6 + b"}"):
        assert last_members(tail) == {}


METER = Meter(
    {
        "input_tokens": ".usage.prompt_tokens",
        "output_tokens": ".usage.completion_tokens // 0",
        "requests": 1,
    }
)


def test_a_tail_gives_the_counts_of_the_members_in_it() -> None:
    known = Usage({"input_tokens": 16, "output_tokens": 0, "requests": 1}, UsageStatus.KNOWN, False)
    assert METER.read_tail(b'0.5]}],"model":"m",' + USAGE + b"}") == known


def test_what_may_lie_before_the_tail_is_missing_and_never_its_default() -> None:
    meter = Meter({"n": ".usage.n", "rows": ".data | length", "first": ".id // 0", "all": "length"})
    usage = meter.read_tail(b'1]}],"usage":{"n":3}}')
    assert usage == Usage({"n": 3}, UsageStatus.MISSING, False)
    assert METER.read_tail(b'"x"}').status is UsageStatus.MISSING
    wrong = METER.read_tail(b'0],"usage":{"prompt_tokens":-1}}')
    assert wrong.status is UsageStatus.INVALID


def test_a_tail_that_is_no_json_is_missing() -> None:
    assert METER.read_tail(b'0],"usage":{"prompt_tokens":x}}').status is UsageStatus.MISSING
    assert METER.read_tail(b"\xff" * limits.TAIL + b"}").status is UsageStatus.MISSING
