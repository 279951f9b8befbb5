"""The YAML file as values: what the options are called, what they take, what they default to.

A ``Config`` exists only after ``load`` and the checks found nothing wrong, with two exceptions
that later rooms judge because only they can: amounts of money (``money/micros.py``) and jq
programs (``metering/``). ``Meta.description`` is what a problem says after ``expected``; a
``Unit`` beside it tells the reader that a text such as ``16MiB`` is a size, that a text is a
point in time, or that the value is money, which is never a floating-point number.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from enum import Enum
from pathlib import Path
from typing import Annotated, Final, Literal, TypeAlias, get_args

import msgspec
from msgspec import Meta

from finomw import limits
from finomw.config.match import Match
from finomw.config.wording import join
from finomw.types import OnCrash, PlanName, RouteName, UnixMicroseconds

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


def _size(least: int, most: int, step: int) -> Meta:
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
BodyBound: TypeAlias = Annotated[int, _size(1, limits.BODY_MAX, 1), Unit.BYTES]


class Options(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A mapping of the file with fixed options."""


class Storage(Options, frozen=True, kw_only=True):
    """Disk space, in bytes; the first two are what a node directory gets when it is created."""

    segment_size: Annotated[
        int, _size(limits.SEGMENT_SIZE_MIN, limits.SEGMENT_SIZE_MAX, limits.PAGE), Unit.BYTES
    ] = limits.SEGMENT_SIZE
    state_size: Annotated[
        int, _size(limits.STATE_SIZE_MIN, limits.STATE_SIZE_MAX, limits.PAGE), Unit.BYTES
    ] = limits.STATE_SIZE
    keep: Annotated[int, _size(0, limits.JOURNAL_KEEP_MAX, 1), Unit.BYTES] = limits.JOURNAL_KEEP
    """How much of the journal stays behind its end, for audit, though no start needs it."""
    checkpoint_every: Annotated[
        int, _size(limits.CHECKPOINT_EVERY_MIN, limits.CHECKPOINT_EVERY_MAX, 1), Unit.BYTES
    ] = limits.CHECKPOINT_EVERY
    """After how much journal a checkpoint is made; a start replays at most about that much."""


class UnitPrice(Options, frozen=True, kw_only=True):
    """Dollars for each unit, told in one of two ways."""

    usd: Usd | None = None
    """Dollars for one unit."""
    usd_per_million: Usd | None = None
    """Dollars for a million units."""


class Package(Options, frozen=True, kw_only=True):
    """A price for each started block of units of one call."""

    units: Units
    usd: Usd
    """Dollars for one block."""


class Tier(UnitPrice, frozen=True, kw_only=True):
    """The price of a range of usage, from above the tier before."""

    up_to: Units | None = None
    """The last unit of the range; the last tier has none."""


Tiers: TypeAlias = Annotated[tuple[Tier, ...], Meta(description="a list of tiers")]


class Price(UnitPrice, frozen=True, kw_only=True):
    """The price of one meter; exactly one option is set."""

    package: Package | None = None
    tiered: Tiers | None = None
    """Graduated: each unit at the rate of its own tier."""
    volume: Tiers | None = None
    """All units of a call at the rate of the tier that the usage with them reaches."""


class Minimum(Options, frozen=True, kw_only=True):
    """What a call that used anything costs at least."""

    usd: Usd


class Prices(Options, frozen=True, kw_only=True):
    """One list; in the file ``minimum`` stands beside the meters."""

    meters: dict[MeterKey, Price]
    minimum: Minimum | None = None


class RoutePrice(Options, frozen=True, kw_only=True):
    """One version of a route's prices in one plan.

    In the file the lists stand beside ``by``; without ``by`` the meters of the one list do.
    """

    valid_from: Instant | None = None
    """The first moment of this version; ``None`` where it has always been valid."""
    by: str | None = None
    """What chooses the list: a jq program on the request, or ``path.NAME``."""
    lists: dict[str, Prices]
    """Value of ``by`` to its prices; without ``by``, the one list is that of ``REST``."""
    index: int | None = None
    """Where the version stands in the file's list; ``None`` where there is no such list."""

    def path(self, route: str) -> str:
        """Return the version's path in the file; ``route`` is that of all the route's prices."""
        return route if self.index is None else join(route, self.index)

    def at(self, route: str) -> Iterator[tuple[str, str, Prices]]:
        """Each list as value, path in the file and prices; ``route`` as for ``path``."""
        path = self.path(route)
        for value, prices in self.lists.items():
            yield value, path if self.by is None else join(path, value), prices


Versions: TypeAlias = Annotated[
    tuple[RoutePrice, ...], Meta(description="prices, or a list of their versions")
]


class PlanQuota(Options, frozen=True, kw_only=True):
    """What a plan gives for each period: ``units`` of meters, or ``usd`` of ``[cost]``."""

    meters: Annotated[tuple[str, ...], Meta(description="a list of meters, or [cost]")]
    units: Units | None = None
    usd: Usd | None = None
    per: Literal[PeriodName, "once"]
    roll_over: bool = False
    """Whether what is left at the end of a period is added to the next."""


class Plan(Options, frozen=True, kw_only=True):
    """A price plan: what its customers pay."""

    rounding: Literal["up", "down", "half_up"] = "up"
    unpriced: Literal["refuse", "free"] = "refuse"
    """What becomes of a call whose route, or value of ``by``, has no prices."""
    period: PeriodName = "month"
    """The period whose usage tiers count by."""
    fund: Annotated[
        tuple[Source, ...], Meta(description=f"a list of {', '.join(get_args(Source))}")
    ] = get_args(Source)
    """What pays, in this order."""
    quotas: dict[QuotaKey, PlanQuota] = {}
    prices: dict[RouteKey, Versions] = {}


class Split(Options, frozen=True, kw_only=True):
    """What a meter is to another: a part that may have a price of its own."""

    of: Annotated[str, Meta(description="the name of a meter")]
    """The meter as which it is priced where it has no price, and with which it is held."""
    inside: bool = False
    """Whether an answer's count of ``of`` includes it, so that it has to be taken out there."""


class Route(Options, frozen=True, kw_only=True):
    """A rule: what happens to the calls that ``match``. Either free or metered."""

    match: Annotated[
        Match,
        Meta(
            description="METHOD PATH such as POST /v1/items/{id} (methods in capitals, several "
            "with commas, or *; WS for WebSockets; each segment of the path literal or a {name})"
        ),
    ]


class FreeRoute(Route, frozen=True, kw_only=True):
    """A rule whose calls cost nothing and are not looked at."""

    free: bool = True
    name: RouteKey | None = None


class RequestRewriting(Options, frozen=True, kw_only=True):
    """How a request is changed before it is held for and the app gets it."""

    transform: Program | None = None


class ResponseRewriting(Options, frozen=True, kw_only=True):
    """How an answer is changed after it was metered."""

    transform: Program | None = None
    """For JSON answers that wait as a whole."""
    transform_events: Program | None = None
    """For the data of each event of a stream; null takes the event out."""


class MeteredRoute(Route, frozen=True, kw_only=True):
    """A rule whose calls are held, metered and charged."""

    free: bool = False
    name: RouteKey
    """What plans price; rules may share a name, and so its prices."""
    extends: PresetName | None = None
    """The preset that gives what the rule itself does not say."""
    meter: Annotated[
        dict[MeterKey, Quantity],
        Meta(description="a mapping of meters, or the name of a preset"),
    ]
    """How many units a call used: a constant, a jq program on the answer, or ``BY_APP``."""
    splits: dict[MeterKey, Split] = {}
    """Meters that are parts of others; 0 where an answer does not mention them."""
    hold: dict[MeterKey, HoldQuantity] = {}
    """How many a call may use at most, each with its splits: a constant, a jq program on the
    request, or a part of the request's size."""
    ceiling: Bound | None = None
    """``$ceiling`` in the programs of ``hold``."""
    context: Bound | None = None
    """``$context`` there, and the most that ``request_bytes`` comes to."""
    references: Annotated[tuple[Reference, ...], Meta(description="a list of texts")] = ()
    """JSON strings that show that a request refers to more than it holds: then ``request_bytes``
    comes to all of ``context``."""
    error: Program | None = None
    """What else tells that an answer, or a text of a stream, is an error object: a jq program."""
    estimate: Estimation = "hold"
    """What a delivered answer costs whose usage is missing or invalid: its hold, nothing, or the
    price of what passed, up to the hold: bytes of its body, or ``deltas``, which are the texts of
    a stream that say nothing about usage. Meters that are not named are taken as held."""
    settle_every: Pace | None = None
    """How often a stream is settled while it goes on; units are those of all meters together."""
    on_ceiling: Literal["cut", "finish"] = "finish"
    """Whether a stream is ended, with an error of its own format, where its running counts, or
    what ``estimate`` makes of what passed, come to more than is held."""
    on_crash: Literal["settle", "release"] | None = None
    charge_errors: bool = False
    overrun: Literal["charge", "cap"] = "charge"
    """Whether a price above the hold is charged whole, or only up to the hold."""
    max_request: BodyBound = limits.REQUEST_BODY_MAX
    max_body: BodyBound = limits.RESPONSE_BODY_MAX
    too_large: Literal["estimate", "tail"] = "estimate"
    """What a JSON answer above ``max_body`` costs: what one of unknown usage does, or the usage
    that is read at its end."""
    merge: Literal["last", "sum", "max"] = "last"
    """How the counts of several events, lines or elements of one answer come together."""
    ends: Annotated[tuple[EventName, ...], Meta(description="a list of names of events")] = (
        STREAM_ENDS
    )
    """What ends an event stream, besides ``[DONE]``."""
    ensure_usage: bool = False
    """Whether OpenAI-style streams are asked to tell their usage."""
    request: RequestRewriting = RequestRewriting()
    response: ResponseRewriting = ResponseRewriting()

    @property
    def meters(self) -> tuple[str, ...]:
        """The names of all its meters."""
        return tuple(self.meter)

    @property
    def constants(self) -> dict[str, int]:
        """Those whose count is always the same."""
        return _constants(self.meter)

    @property
    def flat(self) -> bool:
        """Whether the charge is known before the call: every meter is a constant."""
        return all(isinstance(quantity, int) for quantity in self.meter.values())

    @property
    def crash(self) -> OnCrash:
        """``on_crash``, or its default: ``settle`` for flat rules, else ``release``."""
        settle = self.flat if self.on_crash is None else self.on_crash == "settle"
        return OnCrash.SETTLE if settle else OnCrash.RELEASE


class SocketRoute(Route, frozen=True, kw_only=True):
    """A rule for WebSockets: ``match: WS /path``. It is held for once, when one connects."""

    free: bool = False
    name: RouteKey
    """What plans price; rules may share a name, and so its prices."""
    meter: dict[MeterKey, ConnectionQuantity] = {}
    """How many units a connection used: a constant, or ``BY_APP``."""
    receive: dict[MeterKey, MessageQuantity] = {}
    """How many each message of the client adds: a constant, ``BYTES``, or a jq program on it."""
    send: dict[MeterKey, MessageQuantity] = {}
    """How many each message to the client adds, likewise."""
    splits: dict[MeterKey, Split] = {}
    """Meters that are parts of others; 0 where a connection does not mention them."""
    hold: dict[MeterKey, Count] = {}
    """How many a connection may use at most."""
    merge: Literal["sum", "last", "max"] = "sum"
    """How the counts that programs read in the messages of one direction come together."""
    estimate: Literal["hold", "none"] = "hold"
    """What a connection costs whose usage is missing or invalid."""
    on_crash: Literal["settle", "release"] | None = None
    overrun: Literal["charge", "cap"] = "charge"
    """Whether a price above the hold is charged whole, or only up to the hold."""
    settle_every: Pace | None = None
    """How often a connection is settled while it goes on, looked at as messages pass."""
    on_ceiling: Literal["cut", "finish"] = "cut"
    """Whether a connection that uses more than is held for it is closed."""

    @property
    def meters(self) -> tuple[str, ...]:
        """The names of all its meters."""
        return tuple(dict.fromkeys((*self.meter, *self.receive, *self.send)))

    @property
    def constants(self) -> dict[str, int]:
        """Those whose count is always the same."""
        return _constants(self.meter)

    @property
    def flat(self) -> bool:
        """Whether the charge is known before the connection: every meter is a constant."""
        return self.constants.keys() >= set(self.meters)

    @property
    def crash(self) -> OnCrash:
        """``on_crash``, or its default: ``settle`` for flat rules, else ``release``."""
        settle = self.flat if self.on_crash is None else self.on_crash == "settle"
        return OnCrash.SETTLE if settle else OnCrash.RELEASE


def _constants(meter: Mapping[str, int | str]) -> dict[str, int]:
    return {name: quantity for name, quantity in meter.items() if isinstance(quantity, int)}


PricedRoute: TypeAlias = MeteredRoute | SocketRoute
"""A rule whose calls, or connections, are held for, metered and charged."""


class Config(Options, frozen=True, kw_only=True):
    """The whole file."""

    data: Annotated[Path, Meta(description="the path of a directory")] = Path("fino-data")
    """The node directory; ``load`` resolves it against the file's folder."""
    durability: Literal["settled", "held", "relaxed"] = "settled"
    on_failure: Literal["refuse", "pass"] = "refuse"
    """What becomes of calls that billing cannot record: 503, or the app's answer, unbilled."""
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
