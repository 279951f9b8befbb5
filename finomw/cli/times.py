"""Times as people write them: RFC 3339, a day, or how far back from now.

A day is the moment at which it begins: in UTC, or in a customer's time zone where the command says
so. A time with a clock needs its offset, because without one it would mean another moment on
another machine.
"""

from __future__ import annotations

import re
from datetime import date, timedelta
from typing import Final

from finomw.clock import SystemClock
from finomw.config.instant import parse_instant
from finomw.errors import InvalidValue, quoted
from finomw.money.periods import day_start
from finomw.types import UnixMicroseconds

SINCE_HELP: Final = "RFC 3339, a day (UTC) such as 2027-01-31, or a span back from now: 30d, 12h."
TIME_HELP: Final = "RFC 3339, or a day (UTC) such as 2027-01-31."

_DAY: Final = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}")
_SPAN: Final = re.compile(r"([0-9]{1,5})([hd])")
_UNITS: Final = {"h": timedelta(hours=1), "d": timedelta(days=1)}
_MICROSECOND: Final = timedelta(microseconds=1)
_FORMS: Final = "a time such as 2027-01-31T00:00:00Z, a day such as 2027-01-31"


def now() -> UnixMicroseconds:
    """Return the time of the machine's clock."""
    return SystemClock().now()


def moment(field: str, text: str, zone: str = "UTC") -> UnixMicroseconds:
    """Return a time, or the beginning of a day in the zone; raises `InvalidValue`."""
    found = _moment(field, text, zone)
    if found is None:
        raise InvalidValue(f"{field}: expected {_FORMS}, found {quoted(text)}")
    return found


def since(field: str, text: str) -> UnixMicroseconds:
    """Return a time as `moment` does, or one a span such as ``30d`` ago; raises `InvalidValue`."""
    span = _SPAN.fullmatch(text)
    if span:
        return now() - int(span[1]) * _UNITS[span[2]] // _MICROSECOND
    found = _moment(field, text, "UTC")
    if found is None:
        raise InvalidValue(
            f"{field}: expected {_FORMS}, or a span such as 30d or 12h, found {quoted(text)}"
        )
    return found


def _moment(field: str, text: str, zone: str) -> UnixMicroseconds | None:
    """Return what a text means, ``None`` where it has neither form."""
    try:
        if not _DAY.fullmatch(text):
            return parse_instant(text)
        day = date.fromisoformat(text)
    except (InvalidValue, ValueError):
        return None  # told with all the forms that there are
    try:
        return day_start(zone, day)
    except InvalidValue as error:
        raise InvalidValue(f"{field}: {error}") from None
