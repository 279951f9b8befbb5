"""Times on the command line: RFC 3339, days and spans, and nothing that could be meant two ways."""

from __future__ import annotations

import pytest
from cli_nodes import Ticker

from finomw.cli.times import moment, since
from finomw.clock import rfc3339
from finomw.errors import InvalidValue


@pytest.mark.parametrize(
    ("text", "zone", "at"),
    [
        ("2027-01-31", "UTC", "2027-01-31T00:00:00.000000Z"),
        ("2027-01-31", "Europe/Berlin", "2027-01-30T23:00:00.000000Z"),
        ("2027-07-01", "Europe/Berlin", "2027-06-30T22:00:00.000000Z"),
        ("2027-07-01", "America/New_York", "2027-07-01T04:00:00.000000Z"),
        ("2018-11-04", "America/Sao_Paulo", "2018-11-04T03:00:00.000000Z"),  # no midnight there
        ("2018-11-05", "America/Sao_Paulo", "2018-11-05T02:00:00.000000Z"),
        ("2027-01-31T12:00:00Z", "Europe/Berlin", "2027-01-31T12:00:00.000000Z"),
        ("2027-01-31T12:00:00.5+02:00", "UTC", "2027-01-31T10:00:00.500000Z"),
    ],
)
def test_a_moment_is_a_time_or_the_beginning_of_a_day(text: str, zone: str, at: str) -> None:
    assert rfc3339(moment("--at", text, zone)) == at


@pytest.mark.parametrize(
    ("text", "at"),
    [
        ("0h", "2026-01-31T23:59:58.000001Z"),
        ("12h", "2026-01-31T11:59:58.000001Z"),
        ("1d", "2026-01-30T23:59:58.000001Z"),
        ("31d", "2025-12-31T23:59:58.000001Z"),
        ("2027-01-31", "2027-01-31T00:00:00.000000Z"),
    ],
)
def test_a_span_goes_back_from_now(ticking: Ticker, text: str, at: str) -> None:
    assert rfc3339(since("--since", text)) == at


@pytest.mark.parametrize(
    "text",
    ["", "1", "d", "1m", "1 d", "-1d", "1.5d", "123456d", "2027-1-31", "2027-02-29", "20270131",
     "2027-01", "2027-01-31 ", "2027-01-31T00:00", "2027-01-31T00:00:00", "2027-W01-1",
     "٣d"],
)  # fmt: skip
def test_what_is_no_time_is_refused(text: str) -> None:
    with pytest.raises(InvalidValue, match=r"^--since: expected a time such as "):
        since("--since", text)


def test_a_span_that_is_the_longest_still_has_a_date(ticking: Ticker) -> None:
    assert rfc3339(since("--since", "99999d")).startswith("1752-")
