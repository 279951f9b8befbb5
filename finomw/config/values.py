"""What stands for one value in the YAML file: names, amounts, sizes, programs and bare words.

``Meta.description`` is what a problem says after ``expected``; a ``Unit`` beside it tells the
reader that a text such as ``16MiB`` is a size, that a text is a point in time, or that the value is
money, which is never a floating-point number. Which options take which is told in ``model.py``.
"""

from __future__ import annotations

from enum import Enum
from typing import Annotated, Final, Literal, TypeAlias

from msgspec import Meta

from finomw import limits
from finomw.types import PlanName, RouteName, UnixMicroseconds

REST: Final = "*"
"""The value of ``by`` that stands for all the values without prices of their own."""

COST: Final = "cost"
"""What a quota of money names in place of meters."""

STREAM_ENDS: Final = (
    "message_stop",
    "response.completed",
    "response.incomplete",
    "response.failed",
)
"""Names of the events with which known APIs end a stream."""

BY_APP: Final = "app"
"""What stands for a program where the app alone counts, by ``request.state.fino.meter``."""

BYTES: Final = "bytes"
"""What stands for a program where the size of a message is counted."""

PeriodName: TypeAlias = Literal["hour", "day", "week", "month", "year"]
Source: TypeAlias = Literal["quota", "wallet", "credit"]

SIZE_UNITS: Final = {"KiB": limits.KIB, "MiB": limits.MIB, "GiB": limits.GIB}

_NAME: Final = rf"^[A-Za-z0-9_.-]{{1,{limits.NAME_BYTES}}}\Z"
_NAME_TEXT: Final = f"a name of 1 to {limits.NAME_BYTES} letters, digits, _ . -"

_NO_METERS: Final = ("by", "minimum", "valid_from", COST)
"""Words that stand where names of meters stand."""


class Unit(Enum):
    """What the value of an option counts, where the reader has to know."""

    BYTES = "bytes"
    USD = "usd"
    INSTANT = "instant"


def size(least: int, most: int, step: int) -> Meta:
    """Return what bounds a size in bytes, and says so."""
    text = f"a size from {_in_units(least)} to {_in_units(most)}, in bytes or such as 16MiB"
    if step > 1:
        text += f", a multiple of {_in_units(step)}"
    return Meta(ge=least, le=most, multiple_of=step, description=text)


def _in_units(size: int) -> str:
    for name, unit in reversed(SIZE_UNITS.items()):
        if size and size % unit == 0:
            return f"{size // unit}{name}"
    return str(size)


PlanKey: TypeAlias = Annotated[PlanName, Meta(pattern=_NAME, description=_NAME_TEXT)]
QuotaKey: TypeAlias = Annotated[str, Meta(pattern=_NAME, description=_NAME_TEXT)]
RouteKey: TypeAlias = Annotated[RouteName, Meta(pattern=_NAME, description=_NAME_TEXT)]
MeterKey: TypeAlias = Annotated[
    str,
    Meta(
        pattern=rf"^(?!(?:{'|'.join(_NO_METERS)})\Z)[a-z][a-z0-9_]{{0,{limits.NAME_BYTES - 1}}}\Z",
        description="a meter's name in lower-case letters, digits and _, other than "
        f"{', '.join(_NO_METERS)}",
    ),
]
Usd: TypeAlias = Annotated[
    str | int, Meta(description='a decimal amount in quotes such as "0.50"'), Unit.USD
]
Quantity: TypeAlias = Annotated[
    Annotated[int, Meta(ge=0, le=limits.COUNT_MAX)] | Annotated[str, Meta(min_length=1)],
    Meta(description=f"a whole number from 0 to {limits.COUNT_MAX} or a jq program"),
]
Count: TypeAlias = Annotated[
    int,
    Meta(ge=0, le=limits.COUNT_MAX, description=f"a whole number from 0 to {limits.COUNT_MAX}"),
]
ConnectionQuantity: TypeAlias = Annotated[
    Annotated[int, Meta(ge=0, le=limits.COUNT_MAX)] | Literal["app"],
    Meta(
        description=f"a whole number from 0 to {limits.COUNT_MAX} or {BY_APP} (what is read from "
        "messages stands in receive or send)"
    ),
]
MessageQuantity: TypeAlias = Annotated[
    Annotated[int, Meta(ge=0, le=limits.COUNT_MAX)] | Annotated[str, Meta(min_length=1)],
    Meta(
        description=f"a whole number from 0 to {limits.COUNT_MAX}, {BYTES}, or a jq program on "
        "each message"
    ),
]
Units: TypeAlias = Annotated[
    int,
    Meta(
        ge=1, le=limits.COUNT_MAX, description=f"a whole number of units, 1 to {limits.COUNT_MAX}"
    ),
]
Instant: TypeAlias = Annotated[
    UnixMicroseconds,
    Meta(description="a time with its offset such as 2027-01-01T00:00:00Z"),
    Unit.INSTANT,
]
HoldQuantity: TypeAlias = Annotated[
    Annotated[int, Meta(ge=0, le=limits.COUNT_MAX)] | Annotated[str, Meta(min_length=1)],
    Meta(
        description=f"a whole number from 0 to {limits.COUNT_MAX}, a jq program on the request, "
        "or request_bytes / N"
    ),
]
Bound: TypeAlias = Annotated[
    Annotated[int, Meta(ge=1, le=limits.COUNT_MAX)] | Annotated[str, Meta(min_length=1)],
    Meta(description=f"a whole number from 1 to {limits.COUNT_MAX} or a jq program on the request"),
]
Program: TypeAlias = Annotated[str, Meta(min_length=1, description="a jq program")]
Estimation: TypeAlias = Annotated[
    Literal["hold", "none"]
    | dict[MeterKey, Annotated[str, Meta(pattern=r"^(deltas|bytes( ?/ ?[1-9][0-9]{0,8})?)\Z")]],
    Meta(description="hold, none, or a mapping of meters to deltas or bytes / N"),
]
Pace: TypeAlias = Annotated[
    str,
    Meta(
        pattern=r"^[1-9][0-9]{0,8}(s| units)\Z",
        description="a number of seconds or units such as 5s or 1000 units",
    ),
]
PresetName: TypeAlias = Annotated[str, Meta(min_length=1, description="the name of a preset")]
Reference: TypeAlias = Annotated[
    str,
    Meta(
        pattern=rf"^[A-Za-z0-9_.-]{{1,{limits.NAME_BYTES}}}\Z",
        description="a text that stands in requests which refer to more than they hold",
    ),
]
EventName: TypeAlias = Annotated[
    str, Meta(min_length=1, max_length=limits.NAME_BYTES, description="the name of an event")
]
BodyBound: TypeAlias = Annotated[int, size(1, limits.BODY_MAX, 1), Unit.BYTES]
