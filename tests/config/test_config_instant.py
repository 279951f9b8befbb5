"""Points in time: RFC 3339 with an offset, and nothing that is only like it."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from finomw.config.instant import parse_instant
from finomw.errors import InvalidValue

SECOND = 10**6


@pytest.mark.parametrize(
    ("text", "instant"),
    [
        ("1970-01-01T00:00:00Z", 0),
        ("1970-01-01T00:00:01.5Z", 3 * SECOND // 2),
        ("1970-01-01T00:00:00.000001Z", 1),
        ("1970-01-01T01:00:00+01:00", 0),
        ("1969-12-31T18:30:00-05:30", 0),
        ("1969-12-31T23:59:59.999999Z", -1),
        ("2027-01-01T00:00:00Z", 1_798_761_600 * SECOND),
        ("2028-02-29T12:00:00Z", 1_835_438_400 * SECOND),
    ],
)
def test_an_instant_is_microseconds_since_the_epoch(text: str, instant: int) -> None:
    assert parse_instant(text) == instant


@pytest.mark.parametrize(
    "text",
    ["", "2027-01-01", "2027-01-01T00:00:00", "2027-01-01T00:00Z", "2027-01-01 00:00:00Z",
     "20270101T000000Z", "2027-W01-1T00:00:00Z", "2027-01-01t00:00:00z", "2027-01-01T00:00:00+01",
     "2027-01-01T00:00:00+0100", "2027-02-29T00:00:00Z", "2027-13-01T00:00:00Z",
     "2027-01-01T23:59:60Z", "2027-01-01T00:00:00.Z", "2027-01-01T00:00:00.1234567Z",
     "2027-01-01T00:00:00+24:00", "2027-01-01T00:00:00Z\n", " 2027-01-01T00:00:00Z",
     "٢٠٢٧-01-01T00:00:00Z", "0000-01-01T00:00:00Z"],
)  # fmt: skip
def test_what_is_no_instant_is_refused(text: str) -> None:
    with pytest.raises(InvalidValue, match="expected a time such as 2027-01-01T00:00:00Z, found "):
        parse_instant(text)


@settings(derandomize=True)
@given(st.datetimes(), st.integers(-23 * 60, 23 * 60))
def test_an_instant_is_the_same_in_every_offset(moment: datetime, minutes: int) -> None:
    """Written in any zone, one moment is one number."""
    local = moment.replace(tzinfo=timezone(timedelta(minutes=minutes)))
    since = local - datetime(1970, 1, 1, tzinfo=UTC)
    exact = (since.days * 86_400 + since.seconds) * SECOND + since.microseconds
    assert parse_instant(local.isoformat()) == exact
