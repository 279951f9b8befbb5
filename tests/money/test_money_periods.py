"""Calendar periods in a time zone."""

from __future__ import annotations

import calendar
from collections.abc import Iterator
from datetime import UTC, date, datetime, timedelta
from zoneinfo import ZoneInfo

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from finomw.errors import InvalidValue
from finomw.money import periods
from finomw.money.periods import (
    Per,
    Period,
    check_zone,
    period_at,
    period_named,
    periods_between,
)
from finomw.types import UnixMicroseconds

ZONES = [
    "UTC",
    "Europe/Berlin",
    "America/New_York",
    "America/Sao_Paulo",  # until 2018 clocks jumped over midnight, and back to 23:00
    "Asia/Beirut",  # clocks jump over midnight
    "America/Havana",  # and back to midnight, so that it is shown twice
    "America/St_Johns",  # until 2011 back over midnight: 00:01 to 23:01 of the day before
    "America/Goose_Bay",
    "Asia/Kolkata",
    "Asia/Kathmandu",
    "Australia/Lord_Howe",  # summer time is half an hour
    "Pacific/Apia",  # 30 December 2011 was skipped
    "Antarctica/Casey",  # jumps of three hours, one of them over midnight
    "Africa/Monrovia",  # until 1972 44 minutes and 30 seconds behind
    "Africa/Casablanca",  # summer time twice a year
]
SECOND = 1_000_000
HOUR = 3600 * SECOND
DAY = 24 * HOUR
CALENDAR = [Per.DAY, Per.WEEK, Per.MONTH, Per.YEAR]
REPEATING = [Per.HOUR, *CALENDAR]

seeded = settings(derandomize=True, deadline=None, max_examples=300)
zones = st.sampled_from(ZONES)
moments = st.integers(366 * DAY, 47_000 * DAY)  # 1971 to 2098


def utc(text: str) -> UnixMicroseconds:
    """Microseconds of a time that is written in UTC."""
    moment = datetime.fromisoformat(text).replace(tzinfo=UTC)
    return (moment - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1)


def end_of(period: Period) -> UnixMicroseconds:
    assert period.end is not None
    return period.end


def shown(at: UnixMicroseconds, zone: str) -> str:
    """Return what a calendar and a clock of the zone show, to the second."""
    assert at % SECOND == 0
    return datetime.fromtimestamp(at // SECOND, ZoneInfo(zone)).strftime("%Y-%m-%d %H:%M:%S")


def starts(per: Per, anchor: str, zone: str, count: int) -> list[str]:
    """Return the first starts of the periods of an anchor in UTC, each as the zone shows it."""
    period = period_at(per, utc(anchor), zone, utc(anchor))
    found = []
    for _ in range(count):
        found.append(shown(period.start, zone))
        period = period_at(per, utc(anchor), zone, end_of(period))
    return found


def local_date(second: int, zone: str) -> date:
    return datetime.fromtimestamp(second, ZoneInfo(zone)).date()


def slow_day_start(day: date, zone: str) -> UnixMicroseconds:
    """Walk minutes, then seconds, to the first that shows the day or a later one."""
    second = int(datetime(day.year, day.month, day.day, tzinfo=UTC).timestamp())
    second -= 15 * 3600  # no zone is further ahead
    while local_date(second + 60, zone) < day:
        second += 60
    while local_date(second, zone) < day:
        second += 1
    return second * SECOND


def slow_first_days(per: Per, anchor: date) -> Iterator[date]:
    """Give every day of the calendar on which a period of the anchor begins, from the anchor on."""
    day = anchor
    while True:
        month_end = calendar.monthrange(day.year, day.month)[1]
        on_its_day = day.day == anchor.day or (day.day == month_end and month_end < anchor.day)
        begins = {
            Per.DAY: True,
            Per.WEEK: day.weekday() == anchor.weekday(),
            Per.MONTH: on_its_day,
            Per.YEAR: on_its_day and day.month == anchor.month,
        }
        if begins[per]:
            yield day
        day += timedelta(days=1)


def test_the_numbers_are_frozen() -> None:
    assert {per.name: per.value for per in Per} == {
        "ONCE": 0, "HOUR": 1, "DAY": 2, "WEEK": 3, "MONTH": 4, "YEAR": 5,
    }  # fmt: skip
    assert msgspec.msgpack.encode(Period(1, None)) == msgspec.msgpack.encode([1, None])


def test_months_are_clipped_and_do_not_drift() -> None:
    assert starts(Per.MONTH, "2027-01-31T12:00", "Europe/Berlin", 14) == [
        f"{day} 00:00:00"
        for day in (
            "2027-01-31", "2027-02-28", "2027-03-31", "2027-04-30", "2027-05-31", "2027-06-30",
            "2027-07-31", "2027-08-31", "2027-09-30", "2027-10-31", "2027-11-30", "2027-12-31",
            "2028-01-31", "2028-02-29",
        )
    ]  # fmt: skip


def test_years_from_a_leap_day_are_clipped_and_do_not_drift() -> None:
    assert starts(Per.YEAR, "2096-02-29T12:00", "Asia/Kolkata", 9) == [
        f"{day} 00:00:00"
        for day in (
            "2096-02-29", "2097-02-28", "2098-02-28", "2099-02-28", "2100-02-28", "2101-02-28",
            "2102-02-28", "2103-02-28", "2104-02-29",
        )
    ]  # fmt: skip


def test_the_day_is_the_anchors_day_in_the_zone() -> None:
    assert starts(Per.MONTH, "2027-01-31T20:00", "Asia/Kolkata", 2) == [
        "2027-02-01 00:00:00",
        "2027-03-01 00:00:00",
    ]
    assert starts(Per.WEEK, "2027-01-01T02:00", "America/New_York", 2) == [
        "2026-12-31 00:00:00",
        "2027-01-07 00:00:00",
    ]


def test_earlier_periods_follow_the_same_calendar() -> None:
    zone, anchor = "Europe/Berlin", utc("2027-01-31T12:00")
    period = period_at(Per.MONTH, anchor, zone, utc("2024-02-29T12:00"))
    assert shown(period.start, zone) == "2024-02-29 00:00:00"
    assert shown(end_of(period), zone) == "2024-03-31 00:00:00"


@pytest.mark.parametrize(
    ("zone", "at", "start", "hours"),
    [
        ("Europe/Berlin", "2027-03-28T12:00", "2027-03-28 00:00:00", 23),
        ("Europe/Berlin", "2027-10-31T12:00", "2027-10-31 00:00:00", 25),
        ("Australia/Lord_Howe", "2027-04-04T00:00", "2027-04-04 00:00:00", 24.5),
        ("America/Sao_Paulo", "2018-11-04T12:00", "2018-11-04 01:00:00", 23),
        ("America/Sao_Paulo", "2018-02-17T12:00", "2018-02-17 00:00:00", 25),
        ("Asia/Beirut", "2022-03-27T12:00", "2022-03-27 01:00:00", 23),
        ("America/Havana", "2022-11-06T12:00", "2022-11-06 00:00:00", 25),
        ("Antarctica/Casey", "2016-10-22T03:00", "2016-10-22 03:00:00", 21),
        ("Africa/Monrovia", "1972-01-07T12:00", "1972-01-07 00:44:30", 24 - 44.5 / 60),
        ("Pacific/Apia", "2011-12-30T09:59:59", "2011-12-29 00:00:00", 24),
        ("Pacific/Apia", "2011-12-30T10:00", "2011-12-31 00:00:00", 24),
    ],
)
def test_a_day_starts_when_the_calendar_first_reaches_it(
    zone: str, at: str, start: str, hours: float
) -> None:
    period = period_at(Per.DAY, utc("2010-06-15T12:00"), zone, utc(at))
    assert shown(period.start, zone) == start
    assert end_of(period) - period.start == hours * HOUR


def test_a_midnight_shown_twice_starts_its_day_the_first_time() -> None:
    """Havana, 6 November 2022: 00:59 was followed by 00:00, an hour that belongs to one day."""
    period = period_at(Per.DAY, utc("2022-11-06T05:30"), "America/Havana", utc("2022-11-06T05:30"))
    assert period == Period(utc("2022-11-06T04:00"), utc("2022-11-07T05:00"))


def test_a_clock_set_back_over_midnight_does_not_bring_the_old_day_back() -> None:
    """St John's, 7 November 2010: 00:01 was followed by 23:01 of the day before."""
    zone, again = "America/St_Johns", utc("2010-11-07T02:45")
    assert shown(again, zone) == "2010-11-06 23:15:00"
    for anchor in ("2010-10-07T12:00", "2010-11-07T02:45", "2010-12-07T12:00"):
        period = period_at(Per.DAY, utc(anchor), zone, again)
        assert period == Period(utc("2010-11-07T02:30"), utc("2010-11-08T03:30"))
    assert period_at(Per.MONTH, utc("2010-10-07T12:00"), zone, again).start == period.start


def test_a_month_anchored_on_a_skipped_day_starts_with_the_next() -> None:
    assert starts(Per.MONTH, "2011-11-30T12:00", "Pacific/Apia", 3) == [
        "2011-11-30 00:00:00",
        "2011-12-31 00:00:00",
        "2012-01-30 00:00:00",
    ]


def test_hours_are_whole_from_the_anchors_hour() -> None:
    anchor = utc("2027-01-01T10:40:30") + 5  # 16:10 in Kolkata, 20:40 in Lord Howe
    period = period_at(Per.HOUR, anchor, "Asia/Kolkata", anchor)
    assert period == Period(utc("2027-01-01T10:30"), utc("2027-01-01T11:30"))
    later = period_at(Per.HOUR, anchor, "Australia/Lord_Howe", utc("2027-07-01T10:40"))
    assert later == Period(utc("2027-07-01T10:00"), utc("2027-07-01T11:00"))
    assert shown(later.start, "Australia/Lord_Howe") == "2027-07-01 20:30:00"


def test_once_is_one_period_from_the_anchor_on() -> None:
    anchor = utc("2027-01-01T10:40")
    for at in (anchor - HOUR, anchor, utc("9998-12-01T00:00")):
        assert period_at(Per.ONCE, anchor, "UTC", at) == Period(anchor, None)
    assert not Period(anchor, None).is_over(utc("9998-12-01T00:00"))


def test_a_period_is_over_at_its_end() -> None:
    assert not Period(5, 8).is_over(4)
    assert not Period(5, 8).is_over(7)
    assert Period(5, 8).is_over(8)


@given(st.sampled_from(REPEATING), zones, moments, moments)
@seeded
def test_periods_divide_time(
    per: Per, zone: str, anchor: UnixMicroseconds, at: UnixMicroseconds
) -> None:
    """Each contains what it was asked for, and begins where the one before it ends."""
    period = period_at(per, anchor, zone, at)
    end = end_of(period)
    assert period.start <= at < end
    assert period_at(per, anchor, zone, period.start) == period
    assert period_at(per, anchor, zone, end - 1) == period
    assert period_at(per, anchor, zone, end).start == end
    assert period_at(per, anchor, zone, anchor).start <= anchor


@given(st.sampled_from([Per.WEEK, Per.MONTH, Per.YEAR]), zones, moments)
@settings(seeded, max_examples=100)
def test_five_years_have_no_gap_and_no_overlap(
    per: Per, zone: str, anchor: UnixMicroseconds
) -> None:
    until = anchor + 5 * 365 * DAY
    end = end_of(period_at(per, anchor, zone, anchor))
    count = 1
    while end < until:
        period = period_at(per, anchor, zone, end + (until - end) % HOUR)
        assert period.start == end
        end = end_of(period)
        count += 1
    assert count in {Per.WEEK: (261, 262), Per.MONTH: (60, 61), Per.YEAR: (5, 6)}[per]


@given(st.sampled_from(CALENDAR), zones, moments, st.integers(0, 12), st.integers(0, DAY))
@settings(seeded, max_examples=100)
def test_starts_are_those_of_a_walk_through_the_calendar(
    per: Per, zone: str, anchor: UnixMicroseconds, periods: int, more: int
) -> None:
    days = {Per.DAY: 1, Per.WEEK: 7, Per.MONTH: 30, Per.YEAR: 365}[per]
    at = anchor + periods * days * DAY + more
    first_days = slow_first_days(per, local_date(anchor // SECOND, zone))
    start = end = slow_day_start(next(first_days), zone)
    while end <= at:
        start, end = end, slow_day_start(next(first_days), zone)
    assert period_at(per, anchor, zone, at) == Period(start, end)


@given(zones, st.integers(1971, 2100), st.integers(1, 12))
@settings(seeded, max_examples=100)
def test_a_named_month_or_year_is_that_of_an_anchor_on_its_first_day(
    zone: str, year: int, month: int
) -> None:
    named_month = period_named(zone, f"{year}-{month:02}")
    assert named_month == period_at(Per.MONTH, named_month.start, zone, named_month.start)
    assert named_month.start == slow_day_start(date(year, month, 1), zone)
    named_year = period_named(zone, str(year))
    assert named_year == period_at(Per.YEAR, named_year.start, zone, named_month.start)


def test_named_periods_are_the_zones() -> None:
    assert period_named("UTC", "1970").start == 0
    assert period_named("Europe/Berlin", "2027-12") == Period(
        utc("2027-11-30T23:00"), utc("2027-12-31T23:00")
    )
    assert period_named("America/New_York", "9998") == Period(
        utc("9998-01-01T05:00"), utc("9999-01-01T05:00")
    )


@pytest.mark.parametrize(
    "name",
    ["", "27", "2027-1", "2027-13", "2027-00", "2027-01-01", "202701", " 2027", "2027\n", "+2027",
     "\u0662\u0660\u0662\u0667", "0000", "1969", "1969-12", "9999", "9999-01"],
)  # fmt: skip
def test_other_names_of_periods_are_refused(name: str) -> None:
    with pytest.raises(InvalidValue, match=r'such as "2027" from 1970 to 9998, found "'):
        period_named("UTC", name)


@pytest.mark.parametrize("per", Per)
@pytest.mark.parametrize("zone", ["UTC", "Pacific/Kiritimati", "Etc/GMT+12"])
def test_the_last_day_of_the_range_has_its_periods(per: Per, zone: str) -> None:
    last = end_of(period_named(zone, "9998")) - 1
    for anchor in (last, period_named(zone, "1970").start, period_named(zone, "9998").start):
        period = period_at(per, anchor, zone, last)
        assert period.start <= last
        assert period.end is None or period.end > last


@pytest.mark.parametrize("per", Per)
@pytest.mark.parametrize("zone", ["UTC", "Pacific/Kiritimati", "Etc/GMT+12"])
def test_moments_out_of_range_are_refused(per: Per, zone: str) -> None:
    first, last = period_named(zone, "1970").start, end_of(period_named(zone, "9998")) - 1
    for outside in (first - 1, last + 1, -(2**63), 2**63, 10**40):
        for anchor, at in ((outside, first), (first, outside)):
            with pytest.raises(InvalidValue, match=f"years 1970 to 9998 in .*found {outside} "):
                period_at(per, anchor, zone, at)


@pytest.mark.parametrize(
    ("name", "nearest"),
    [
        ("Europe/Berlim", "Europe/Berlin"),
        ("europe/berlin", "Europe/Berlin"),
        ("Berlin", "Europe/Berlin"),
        ("Europe//Berlin", "Europe/Berlin"),
        ("right/Europe/Berlin", "Europe/Berlin"),
        ("posix/Europe/Berlin", "Europe/Berlin"),
        ("Sao Paulo", "America/Sao_Paulo"),
        ("Louisville", "America/Kentucky/Louisville, America/Louisville"),
        ("../zoneinfo/Asia/Kolkata", "Asia/Kolkata"),
    ],
)
def test_an_unknown_zone_is_refused_with_the_nearest(name: str, nearest: str) -> None:
    with pytest.raises(InvalidValue) as raised:
        check_zone(name)
    assert str(raised.value) == (
        f'expected a time zone such as "Europe/Berlin", found "{name}"; nearest: {nearest}'
    )


@pytest.mark.parametrize(
    "name",
    ["", ".", "Europe", "Europe/", "/etc/localtime", "localtime", "posixrules", "Factory",
     "tzdata.zi", "UTC\0", " UTC", "\ud800", "x" * 10_000],
)  # fmt: skip
def test_what_is_no_zone_of_a_place_is_refused(name: str) -> None:
    one_line = r"^expected a time zone such as .{1,200}$"
    with pytest.raises(InvalidValue, match=one_line):
        check_zone(name)
    with pytest.raises(InvalidValue, match=one_line):
        period_named(name, "2027")
    for per in Per:
        with pytest.raises(InvalidValue, match=one_line):
            period_at(per, 0, name, 0)


def test_what_is_no_zone_of_a_place_is_not_suggested() -> None:
    with pytest.raises(InvalidValue, match=r'found "factory"$'):
        check_zone("factory")


@pytest.mark.parametrize("zone", ZONES)
def test_zones_are_known(zone: str) -> None:
    check_zone(zone)


def test_a_machine_without_time_zone_data_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(periods, "available_timezones", set)
    with pytest.raises(InvalidValue, match="no time zone data here: install tzdata"):
        check_zone("Europe/Nowhere")


@given(zone=zones, anchor=moments, at=moments, count=st.integers(0, 30), skip=st.integers(0, 99))
@seeded
@pytest.mark.parametrize("per", REPEATING)
def test_the_periods_between_two_are_those_that_lie_between(
    per: Per, zone: str, anchor: int, at: int, count: int, skip: int
) -> None:
    first = period_at(per, anchor, zone, at)
    later = first
    for _ in range(count + 1):
        later = period_at(per, anchor, zone, end_of(later))
    assert periods_between(per, anchor, zone, end_of(first), later.start) == count
    # One that was cut short before counts as one, too.
    earlier = max(first.start, end_of(first) - skip * SECOND)
    cut = count + (earlier < end_of(first))
    assert periods_between(per, anchor, zone, earlier, later.start) == cut


def test_there_are_none_between_periods_that_overlap() -> None:
    for per in (Per.ONCE, *REPEATING):
        assert periods_between(per, utc("2027-01-31"), "UTC", utc("2027-03-01"), 0) == 0
    assert periods_between(Per.ONCE, 0, "UTC", 5, 10) == 1
