"""The YAML file as values: what the options are called, what they take, what they default to.

A ``Config`` exists only after ``load`` and ``checks`` found nothing wrong, with two exceptions
that later rooms judge because only they can: amounts of money (``money/micros.py``) and jq
programs (``metering/``). ``Meta.description`` is what a problem says after ``expected``; a
``Unit`` beside it tells the reader that a text such as ``16MiB`` is a size, or that the value is
money, which is never a floating-point number.
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import Enum
from pathlib import Path
from typing import Annotated, Final, Literal, TypeAlias

import msgspec
from msgspec import Meta

from finomw import limits
from finomw.config.match import Match
from finomw.config.wording import join
from finomw.types import OnCrash, PlanName, RouteName

REST: Final = "*"
"""The value of ``by`` that stands for all the values without prices of their own."""

SIZE_UNITS: Final = {"KiB": limits.KIB, "MiB": limits.MIB, "GiB": limits.GIB}

_NAME: Final = rf"^[A-Za-z0-9_.-]{{1,{limits.NAME_BYTES}}}\Z"
_NAME_TEXT: Final = f"a name of 1 to {limits.NAME_BYTES} letters, digits, _ . -"


class Unit(Enum):
    """What the value of an option counts, where the reader has to know."""

    BYTES = "bytes"
    USD = "usd"


def _size(least: int, most: int, step: int) -> Meta:
    text = f"a size from {_in_units(least)} to {_in_units(most)}, in bytes or such as 16MiB"
    if step > 1:
        text += f", a multiple of {_in_units(step)}"
    return Meta(ge=least, le=most, multiple_of=step, description=text)


def _in_units(size: int) -> str:
    for name, unit in reversed(SIZE_UNITS.items()):
        if size % unit == 0:
            return f"{size // unit}{name}"
    return str(size)


PlanKey: TypeAlias = Annotated[PlanName, Meta(pattern=_NAME, description=_NAME_TEXT)]
RouteKey: TypeAlias = Annotated[RouteName, Meta(pattern=_NAME, description=_NAME_TEXT)]
MeterKey: TypeAlias = Annotated[
    str,
    Meta(
        pattern=rf"^(?!by\Z)[a-z][a-z0-9_]{{0,{limits.NAME_BYTES - 1}}}\Z",
        description="a meter's name in lower-case letters, digits and _, other than by",
    ),
]
Usd: TypeAlias = Annotated[
    str | int, Meta(description='a decimal amount in quotes such as "0.50"'), Unit.USD
]
Quantity: TypeAlias = Annotated[
    Annotated[int, Meta(ge=0, le=limits.COUNT_MAX)] | Annotated[str, Meta(min_length=1)],
    Meta(description=f"a whole number from 0 to {limits.COUNT_MAX} or a jq program"),
]
BodyBound: TypeAlias = Annotated[int, _size(1, limits.BODY_MAX, 1), Unit.BYTES]


class Options(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A mapping of the file with fixed options."""


class Storage(Options, frozen=True, kw_only=True):
    """Sizes that a node directory gets when it is created, in bytes."""

    segment_size: Annotated[
        int, _size(limits.SEGMENT_SIZE_MIN, limits.SEGMENT_SIZE_MAX, limits.PAGE), Unit.BYTES
    ] = limits.SEGMENT_SIZE
    state_size: Annotated[
        int, _size(limits.STATE_SIZE_MIN, limits.STATE_SIZE_MAX, limits.PAGE), Unit.BYTES
    ] = limits.STATE_SIZE


class Price(Options, frozen=True, kw_only=True):
    """The price of one meter; exactly one option is set (``money/pricing.py`` sees to it)."""

    usd: Usd | None = None
    """Dollars for one unit."""
    usd_per_million: Usd | None = None
    """Dollars for a million units."""


Prices: TypeAlias = dict[MeterKey, Price]


class RoutePrice(Options, frozen=True, kw_only=True):
    """A route's prices in one plan.

    In the file the lists stand beside ``by``; without ``by`` the meters of the one list do.
    """

    by: str | None = None
    """What chooses the list: a jq program on the request, or ``path.NAME``."""
    lists: dict[str, Prices]
    """Value of ``by`` to its prices; without ``by``, the one list is that of ``REST``."""

    def at(self, path: str) -> Iterator[tuple[str, str, Prices]]:
        """Each list as value, path in the file and prices; ``path`` is the route's."""
        for value, prices in self.lists.items():
            yield value, path if self.by is None else join(path, value), prices


class Plan(Options, frozen=True, kw_only=True):
    """A price plan: what its customers pay."""

    rounding: Literal["up", "down", "half_up"] = "up"
    prices: dict[RouteKey, RoutePrice] = {}


class Route(Options, frozen=True, kw_only=True):
    """A rule: what happens to the calls that ``match``. Either free or metered."""

    match: Annotated[
        Match,
        Meta(
            description="METHOD PATH such as POST /v1/items/{id} (methods in capitals, several "
            "with commas, or *; each segment of the path literal or a {name})"
        ),
    ]


class FreeRoute(Route, frozen=True, kw_only=True):
    """A rule whose calls cost nothing and are not looked at."""

    free: bool = True
    name: RouteKey | None = None


class MeteredRoute(Route, frozen=True, kw_only=True):
    """A rule whose calls are held, metered and charged."""

    free: bool = False
    name: RouteKey
    """What plans price; rules may share a name, and so its prices."""
    meter: dict[MeterKey, Quantity]
    """How many units a call used: a constant, or a jq program on the answer."""
    hold: dict[MeterKey, Quantity] = {}
    """How many a call may use at most: a constant, or a jq program on the request."""
    estimate: Literal["hold", "none"] = "hold"
    """What a delivered answer costs whose usage is missing or invalid."""
    on_crash: Literal["settle", "release"] | None = None
    charge_errors: bool = False
    max_request: BodyBound = limits.REQUEST_BODY_MAX
    max_body: BodyBound = limits.RESPONSE_BODY_MAX

    @property
    def flat(self) -> bool:
        """Whether the charge is known before the call: every meter is a constant."""
        return all(isinstance(quantity, int) for quantity in self.meter.values())

    @property
    def crash(self) -> OnCrash:
        """``on_crash``, or its default: ``settle`` for flat rules, else ``release``."""
        settle = self.flat if self.on_crash is None else self.on_crash == "settle"
        return OnCrash.SETTLE if settle else OnCrash.RELEASE


class Config(Options, frozen=True, kw_only=True):
    """The whole file."""

    data: Annotated[Path, Meta(description="the path of a directory")] = Path("fino-data")
    """The node directory; ``load`` resolves it against the file's folder."""
    durability: Literal["settled", "held", "relaxed"] = "settled"
    unmatched: Literal["pass", "refuse"] = "pass"
    buffer_usd: Usd = "1.00"
    topup_url: (
        Annotated[
            str,
            Meta(
                pattern=r"^https?://[^\s/?#]+(?:[/?#]\S*)?\Z",
                max_length=2000,
                description="an http or https address",
            ),
        ]
        | None
    ) = None
    storage: Storage = Storage()
    plans: dict[PlanKey, Plan] = {}
    routes: Annotated[tuple[Route, ...], Meta(description="a list of rules")]
