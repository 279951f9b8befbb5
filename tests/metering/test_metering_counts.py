"""Counts, the usage made of them, and the kinds of bodies."""

from __future__ import annotations

import math

import pytest

from finomw import limits
from finomw.metering.counts import judge
from finomw.metering.media import BodyKind, kind_of
from finomw.metering.usage import Usage, is_error, usage_of
from finomw.types import UsageStatus


@pytest.mark.parametrize(
    ("value", "count"),
    [
        (0, 0),
        (1, 1),
        (limits.COUNT_MAX, limits.COUNT_MAX),
        (120.0, 120),
        (-0.0, 0),
        (2.0**53, 2**53),
    ],
)
def test_a_whole_number_is_a_count_however_it_is_spelled(value: object, count: int) -> None:
    result = judge(value)
    assert (result, type(result)) == (count, int)


@pytest.mark.parametrize(
    "value",
    [
        *(-1, -1.0, limits.COUNT_MAX + 1, 2.0**54, 10**400, 0.5, 14417.92),
        *(math.nan, math.inf, -math.inf, True, False, "", "120", [], [1, 2], {}, {"n": 1}, b"1"),
    ],
)
def test_everything_else_is_invalid(value: object) -> None:
    assert judge(value) is UsageStatus.INVALID


def test_none_is_missing() -> None:
    assert judge(None) is UsageStatus.MISSING


@pytest.mark.parametrize(
    ("outcomes", "counts", "status"),
    [
        ({}, {}, UsageStatus.KNOWN),
        ({"a": 0, "b": 2}, {"a": 0, "b": 2}, UsageStatus.KNOWN),
        ({"a": 3, "b": UsageStatus.MISSING}, {"a": 3}, UsageStatus.MISSING),
        ({"a": UsageStatus.INVALID, "b": UsageStatus.MISSING}, {}, UsageStatus.INVALID),
        (
            {"a": UsageStatus.MISSING, "b": UsageStatus.INVALID, "c": 3},
            {"c": 3},
            UsageStatus.INVALID,
        ),
    ],
)
def test_the_worst_meter_gives_the_status_and_known_counts_stay(
    outcomes: dict[str, int | UsageStatus], counts: dict[str, int], status: UsageStatus
) -> None:
    assert usage_of(outcomes, error=True) == Usage(counts, status, True)


@pytest.mark.parametrize(
    ("value", "error"),
    [
        ({"error": {"message": "overloaded"}}, True),
        ({"type": "error", "error": {"type": "overloaded_error"}}, True),
        ({"error": "no such model"}, True),
        ({"error": {}}, False),
        ({"error": ""}, False),
        ({"error": None}, False),
        ({"error": False}, False),
        ({"error": ["x"]}, False),
        ({"error": 1}, False),
        ({"usage": {"error": {"message": "inside"}}}, False),
        ([{"error": {"message": "in a list"}}], False),
        ("error", False),
        (None, False),
    ],
)
def test_an_error_object_has_something_in_its_member_error(value: object, error: bool) -> None:
    assert is_error(value) is error


@pytest.mark.parametrize(
    ("content_type", "kind"),
    [
        (None, BodyKind.UNTYPED),
        (b"", BodyKind.UNTYPED),
        (b"application/json", BodyKind.JSON),
        (b"Application/JSON ; charset=utf-8", BodyKind.JSON),
        (b"application/problem+json", BodyKind.JSON),
        (b"application/vnd.api+JSON;v=1", BodyKind.JSON),
        (b"text/event-stream", BodyKind.EVENT_STREAM),
        (b"Text/Event-Stream; charset=utf-8", BodyKind.EVENT_STREAM),
        (b"application/x-ndjson", BodyKind.LINES),
        (b"Application/JSONL; charset=utf-8", BodyKind.LINES),
        (b"application/jsonp", BodyKind.OTHER),
        (b"+json", BodyKind.OTHER),
        (b"text/html; note=application/json", BodyKind.OTHER),
        (b"\xff\xfe", BodyKind.OTHER),
    ],
)
def test_the_kind_comes_from_the_media_type_alone(
    content_type: bytes | None, kind: BodyKind
) -> None:
    assert kind_of(content_type) is kind
