"""Calendar periods in a customer's time zone: which one a moment lies in, and when it ends.

The periods of an anchor divide all time: each begins where the one before it ends. Days, weeks,
months and years begin when the zone's calendar first reaches their first day. That is local
midnight; where clocks jump over it, the moment of the jump; where they show it twice, the first
time. Months and years count from the anchor's day and are clipped for themselves alone, so that
they never drift: 31 January, 28 February, 31 March. Hours are 3600 seconds, whatever clocks do.

Time zones are laws, and their data changes under a running node. So an answer is to be stored
whole, and a stored period stands until its own end, whatever newer data would make of it.
"""

from __future__ import annotations

import calendar
import functools
import re
from datetime import UTC, date, datetime, time, timedelta
from enum import IntEnum
from typing import Final
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError, available_timezones

import msgspec

from finomw.config.wording import nearest
from finomw.errors import InvalidValue, quoted
from finomw.types import UnixMicroseconds

YEAR_MIN: Final = 1970
YEAR_MAX: Final = 9998
"""Years a moment that is asked about may lie in. Its period may reach into the year before or
after them, and those can still be written."""

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND: Final = timedelta(microseconds=1)
_HOUR: Final = timedelta(hours=1) // _MICROSECOND
_MONTHS_A_YEAR: Final = 12
_NAMED: Final = re.compile(r"([0-9]{4})(?:-(0[1-9]|1[0-2]))?")
_NOT_PLACES: Final = frozenset({"localtime", "posixrules", "Factory"})
"""Files among the zones that mean another zone on another machine, or none."""
_OTHER_CLOCKS: Final = ("right/", "posix/")
"""Folders of the same zones again; those in ``right`` count leap seconds, as no Unix time does."""


class Per(IntEnum):
    """How long a period is."""

    ONCE = 0
    HOUR = 1
    DAY = 2
    WEEK = 3
    MONTH = 4
    YEAR = 5


_STEPS: Final = {
    Per.DAY: (0, 1),
    Per.WEEK: (0, 7),
    Per.MONTH: (1, 0),
    Per.YEAR: (_MONTHS_A_YEAR, 0),
}
"""From one period's first day to the next one's: months, days."""


class Period(msgspec.Struct, frozen=True, array_like=True):
    """From ``start`` up to, but not including, ``end``; ``None`` is no end at all."""

    start: UnixMicroseconds
    end: UnixMicroseconds | None

    def is_over(self, at: UnixMicroseconds) -> bool:
        """Say whether the period ended at ``at`` or before."""
        return self.end is not None and self.end <= at


def period_at(per: Per, anchor: UnixMicroseconds, zone: str, at: UnixMicroseconds) -> Period:
    """Return the period that contains ``at``, before or after the anchor.

    The anchor's own period begins with the anchor's day, in the zone, at or before the anchor
    itself. Hours begin with the anchor's hour: the anchor less the minutes and seconds that its
    local clock shows. ``ONCE`` is one period, from the anchor on for ever; it is the answer for an
    earlier moment too, because a clock that is set back must not begin another.

    Raises
    ------
    InvalidValue
        An unknown zone; a moment whose local year is not from ``YEAR_MIN`` to ``YEAR_MAX``.
    """
    place = _zone(zone)
    first, local = _local(anchor, place), _local(at, place)
    if per == Per.ONCE:
        return Period(anchor, None)
    if per == Per.HOUR:
        shown = timedelta(
            minutes=first.minute, seconds=first.second, microseconds=first.microsecond
        )
        start = at - (at - anchor + shown // _MICROSECOND) % _HOUR
        return Period(start, start + _HOUR)
    return _containing(per, first.date(), local.date(), place, at)


def period_named(zone: str, name: str) -> Period:
    """Return the calendar month ``2027-01`` or the calendar year ``2027`` in the zone.

    Raises
    ------
    InvalidValue
        An unknown zone; any other name; a year not from ``YEAR_MIN`` to ``YEAR_MAX``.
    """
    place = _zone(zone)
    found = _NAMED.fullmatch(name)
    if not found or not YEAR_MIN <= int(found[1]) <= YEAR_MAX:
        raise InvalidValue(
            f'expected a month such as "2027-01" or a year such as "2027" '
            f"from {YEAR_MIN} to {YEAR_MAX}, found {quoted(name)}"
        )
    first = date(int(found[1]), int(found[2] or 1), 1)
    following = _later(first, Per.MONTH if found[2] else Per.YEAR, 1)
    return Period(_day_start(first, place), _day_start(following, place))


def day_start(zone: str, day: date) -> UnixMicroseconds:
    """Return the first moment of a day in the zone.

    Raises
    ------
    InvalidValue
        An unknown zone; a year not from ``YEAR_MIN`` to ``YEAR_MAX``.
    """
    place = _zone(zone)
    if not YEAR_MIN <= day.year <= YEAR_MAX:
        raise InvalidValue(f"expected a day in the years {YEAR_MIN} to {YEAR_MAX}, found {day}")
    return _day_start(day, place)


def periods_between(
    per: Per,
    anchor: UnixMicroseconds,
    zone: str,
    end: UnixMicroseconds,
    start: UnixMicroseconds,
) -> int:
    """Return how many whole periods lie between one's end and a later one's start.

    Raises as `period_at`.
    """
    if per is Per.HOUR:
        return -(-max(0, start - end) // _HOUR)  # one that was begun before counts too
    count = 0
    while end < start:
        following = period_at(per, anchor, zone, end).end
        end = start if following is None else following
        count += 1
    return count


def check_zone(name: str) -> None:
    """Raise `InvalidValue` unless ``name`` is a time zone known here, such as Europe/Berlin."""
    _zone(name)


@functools.cache
def _zone(name: str) -> ZoneInfo:
    if name not in _NOT_PLACES and not name.startswith(_OTHER_CLOCKS):
        try:
            return ZoneInfo(name)
        except (ZoneInfoNotFoundError, ValueError, OSError):
            pass  # not there, no file's name, or not a zone's file: all one to who wrote it
    known = available_timezones() - _NOT_PLACES
    hint = _suggestion(name, known) if known else "; no time zone data here: install tzdata"
    raise InvalidValue(f'expected a time zone such as "Europe/Berlin", found {quoted(name)}{hint}')


def _suggestion(name: str, known: set[str]) -> str:
    """Return the zones of the same city, or else the one whose whole name is nearest."""
    city = name.rsplit("/")[-1].casefold()
    same = sorted(zone for zone in known if zone.rsplit("/")[-1].casefold() == city)
    return f"; nearest: {', '.join(same)}" if same else nearest(name, known)


def _containing(per: Per, first: date, day: date, place: ZoneInfo, at: UnixMicroseconds) -> Period:
    """Return the period of whole days that contains ``at``, whose local date is ``day``.

    The dates only say where to look: starts decide, because a clock set back over midnight shows
    a day that has already ended, and a day that was skipped starts and ends at once.
    """
    months, days = _STEPS[per]
    if months:
        number = ((day.year - first.year) * _MONTHS_A_YEAR + day.month - first.month) // months
    else:
        number = (day - first).days // days
    start = _day_start(_later(first, per, number), place)
    while start > at:
        number -= 1
        start = _day_start(_later(first, per, number), place)
    end = _day_start(_later(first, per, number + 1), place)
    while end <= at:
        number += 1
        start, end = end, _day_start(_later(first, per, number + 1), place)
    return Period(start, end)


def _later(first: date, per: Per, number: int) -> date:
    """Return the first day of the period that is ``number`` after the one that starts ``first``."""
    months, days = (step * number for step in _STEPS[per])
    year, month = divmod(first.year * _MONTHS_A_YEAR + first.month - 1 + months, _MONTHS_A_YEAR)
    last = calendar.monthrange(year, month + 1)[1]
    return date(year, month + 1, min(first.day, last)) + timedelta(days=days)


def _day_start(day: date, place: ZoneInfo) -> UnixMicroseconds:
    """Return the first moment at which the place's calendar shows ``day`` or a later day."""
    # A midnight that is shown twice is read as the first; one that is jumped over is read with
    # the clock before the jump, which gives the jump: since 1970 those began at midnight.
    midnight = datetime.combine(day, time.min, place)
    return (midnight.astimezone(UTC) - _EPOCH) // _MICROSECOND


def _local(at: UnixMicroseconds, place: ZoneInfo) -> datetime:
    """Return what the place's calendar and clock show at ``at``, in a year that is in range."""
    local: datetime | None
    try:
        local = (_EPOCH + at * _MICROSECOND).astimezone(place)
    except OverflowError:
        local = None
    if local is None or not YEAR_MIN <= local.year <= YEAR_MAX:
        raise InvalidValue(
            f"expected a time in the years {YEAR_MIN} to {YEAR_MAX} in {place.key}, "
            f"found {at} microseconds since 1970"
        )
    return local
