"""The YAML file as values: what the options are called, what they take, what they default to.

A ``Config`` exists only after ``load`` and the checks found nothing wrong, with two exceptions
that later rooms judge because only they can: amounts of money (``money/micros.py``) and jq
programs (``metering/``). What one value may be is told in ``values.py``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Literal, TypeAlias, get_args

import msgspec
from msgspec import Meta

from finomw import limits
from finomw.config.match import Match
from finomw.config.values import (
    STREAM_ENDS,
    BodyBound,
    Bound,
    ConnectionQuantity,
    Count,
    Estimation,
    EventName,
    HoldQuantity,
    Instant,
    MessageQuantity,
    MeterKey,
    Pace,
    PeriodName,
    PlanKey,
    PresetName,
    Program,
    Quantity,
    QuotaKey,
    Reference,
    RouteKey,
    Source,
    Unit,
    Units,
    Usd,
    size,
)
from finomw.config.wording import join
from finomw.types import OnCrash


class Options(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A mapping of the file with fixed options."""


class Storage(Options, frozen=True, kw_only=True):
    """Disk space, in bytes; the first two are what a node directory gets when it is created."""

    segment_size: Annotated[
        int, size(limits.SEGMENT_SIZE_MIN, limits.SEGMENT_SIZE_MAX, limits.PAGE), Unit.BYTES
    ] = limits.SEGMENT_SIZE
    state_size: Annotated[
        int, size(limits.STATE_SIZE_MIN, limits.STATE_SIZE_MAX, limits.PAGE), Unit.BYTES
    ] = limits.STATE_SIZE
    keep: Annotated[int, size(0, limits.JOURNAL_KEEP_MAX, 1), Unit.BYTES] = limits.JOURNAL_KEEP
    """How much of the journal stays behind its end, for audit, though no start needs it."""
    checkpoint_every: Annotated[
        int, size(limits.CHECKPOINT_EVERY_MIN, limits.CHECKPOINT_EVERY_MAX, 1), Unit.BYTES
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
