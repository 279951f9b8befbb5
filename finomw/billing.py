"""`Billing`: explicit holds, for work that lasts longer than a request.

A job queue sets money aside when a job is accepted, and settles what was used at its end, from
whichever process gets to it. An explicit hold belongs to no worker: it carries an expiry that
`Billing.extend` moves, it is swept only after that, and any process that opens the directory may
settle it. Plans, prices and quotas are the configuration's, as for calls. Every method returns
when its record is on disk.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from types import TracebackType
from typing import NamedTuple

from finomw import limits
from finomw.config.load import resolve
from finomw.config.model import Config
from finomw.engine import charge
from finomw.engine.charge import Ended, HoldRequest, Reservation
from finomw.engine.engine import Engine, close_engine, open_engine
from finomw.engine.extend import Extension, extend
from finomw.errors import (
    ConfigError,
    Conflict,
    HoldRefused,
    InvalidValue,
    InvariantBroken,
    NotFound,
    Problem,
    Unpriced,
)
from finomw.metering.choosing import compile_plans
from finomw.metering.counts import judge
from finomw.money.entries import check_name
from finomw.money.micros import amount
from finomw.money.pricing import PriceList
from finomw.store.holds import NOBODY, HoldRow
from finomw.system import require_linux
from finomw.types import (
    Counts,
    CustomerId,
    HoldId,
    HoldState,
    KeyHash,
    Micros,
    OnCrash,
    PlanName,
    Refusal,
    RouteName,
    UnixMicroseconds,
    UsageStatus,
)

_MICROSECOND = timedelta(microseconds=1)

_opening = threading.Lock()


def _open_anew() -> None:
    """In a forked child: the lock may have been held by a thread that is not there."""
    global _opening
    _opening = threading.Lock()


os.register_at_fork(after_in_child=_open_anew)


class Reserved(NamedTuple):
    """An open hold: ``amount`` micros are set aside until it ends, or expires."""

    hold: HoldId
    amount: Micros
    expires: UnixMicroseconds


class Billing:
    """Explicit holds on one node directory; for any thread, and any number of processes.

    ``config`` is as for `FinoMiddleware`. ``owns(customer, resource)`` says whether a payer owns
    what a hold names; without it, no hold may name a resource. Raises `ConfigError`,
    `DirectoryError`. Close it, or use it as a context manager.
    """

    def __init__(
        self,
        config: str | Path | Config | None = None,
        owns: Callable[[str, str], bool] | None = None,
    ) -> None:
        require_linux()
        settings = resolve(config)
        problems: list[Problem] = []
        self._plans = compile_plans(settings, problems)
        self._buffer = 0
        try:
            self._buffer = amount(settings.buffer_usd, least=0)
        except InvalidValue as error:
            problems.append(Problem("buffer_usd", str(error)))
        if problems:
            raise ConfigError(problems)
        self._owns = owns
        self._data = settings.data
        self._opened = open_engine(settings.data)

    @property
    def _engine(self) -> Engine:
        """The engine of this process: one that was made before a fork is opened again."""
        if self._opened.pid != os.getpid():
            with _opening:
                if self._opened.pid != os.getpid():
                    self._opened = open_engine(self._data)
        return self._opened

    def hold(
        self,
        customer: str,
        route: str,
        ceiling: Counts,
        expires_in: timedelta,
        *,
        choice: str | None = None,
        resource: str = "",
        on_expiry: OnCrash = OnCrash.RELEASE,
    ) -> Reserved:
        """Set aside what the counts in ``ceiling`` may cost at most.

        ``route`` and ``choice`` select the prices; ``on_expiry`` is what a sweep does with a hold
        that nobody ended: release it, or settle it whole. Raises `HoldRefused` with the reason,
        `NotFound` for an unknown customer, `InvalidValue`.
        """
        engine = self._engine
        check_name("customer", customer, limits.CUSTOMER_ID_BYTES)
        check_name("route", route, limits.NAME_BYTES)
        choice = None if choice is None else _text("choice", choice) or None
        _text("resource", resource)
        if not isinstance(on_expiry, OnCrash):
            raise InvalidValue(f"on_expiry: {on_expiry!r} is no OnCrash")
        with engine.store.read() as txn:
            account = engine.store.accounts.need(txn, CustomerId(customer))
        if resource and (self._owns is None or not self._owns(customer, resource)):
            raise HoldRefused("not_owner", f"customer {customer!r} does not own {resource!r}")
        now = engine.clock.now()
        expires = self._expiry(expires_in)
        prices = self._prices(account.plan, route, choice, now)
        request = HoldRequest(
            CustomerId(customer),
            KeyHash(b""),
            RouteName(route),
            # As for calls: who asks for nothing of what has a price holds the least there is.
            1 if prices.costs and not any(ceiling.values()) else prices.worst,
            _checked(ceiling),
            self._buffer,
            on_expiry,
            prices.version,
            choice or "",
            account.plan,
            self._plans[account.plan].terms,
            tuple(sorted(prices.tiered_meters)),
            reservation=Reservation(expires, resource),
        )
        try:
            held = charge.hold(engine, request)
        except Unpriced as error:
            raise HoldRefused("unpriced", str(error)) from error
        engine.flush()
        if isinstance(held, Refusal):
            reason = held.name.lower()
            raise HoldRefused(reason, f"customer {customer!r} cannot hold this: {reason}")
        return Reserved(held.hold, held.amount, expires)

    def extend(
        self, hold: HoldId, expires_in: timedelta, ceiling: Counts | None = None
    ) -> UnixMicroseconds:
        """Let a hold live until that long from now, or as long as it does; return its expiry.

        With ``ceiling``, set aside what that may cost at most, beyond what is; the money for work
        under way may reach into the buffer. Raises `HoldRefused` where there is not enough,
        `NotFound` for a hold that has ended; then nothing has changed.
        """
        row = self._explicit(hold)
        if row.state is not HoldState.OPEN:
            raise NotFound(f"hold {hold} has ended")
        prices = self._prices(row.plan, row.route, row.choice or None, row.since)
        wanted = None if ceiling is None else _checked(ceiling)
        extension = Extension(self._expiry(expires_in), prices.worst, wanted, self._buffer)
        try:
            done = extend(self._engine, hold, extension)
        except Unpriced as error:
            raise HoldRefused("unpriced", str(error)) from error
        self._engine.flush()
        if isinstance(done, Refusal):
            reason = done.name.lower()
            raise HoldRefused(reason, f"hold {hold} cannot be extended: {reason}")
        expires = self._explicit(hold).expires
        if expires is None:
            raise InvariantBroken(f"hold {hold} has lost its expiry")
        return expires

    def settle(self, hold: HoldId, counts: Counts) -> Micros:
        """Charge what was used and give the rest back; return the micros charged.

        Prices are those of the hold's route, choice and time. Settling again with the same counts
        returns the earlier result. Raises `Conflict` for other counts or after a release,
        `NotFound` for what never was an explicit hold, `InvalidValue`; `HoldRefused` or `Unpriced`
        where the configuration no longer has the hold's prices, or never had one of a meter.
        """
        row = self._explicit(hold)
        counts = _checked(counts)
        if row.state is HoldState.OPEN:
            prices = self._prices(row.plan, row.route, row.choice or None, row.since)
            changed = prices.version != row.price_version
            note = f"held at prices {row.price_version}" if changed else ""
            known = UsageStatus.KNOWN
            return self._end(
                hold,
                lambda: charge.settle(self._engine, hold, prices.price, counts, known, note),
                counts,
            )
        return self._again(hold, row, counts)

    def release(self, hold: HoldId, note: str = "") -> None:
        """Give a hold back whole; releasing it again changes nothing. Raises as `settle`."""
        row = self._explicit(hold)
        _text("note", note)
        if row.state is HoldState.OPEN:
            self._end(hold, lambda: charge.release(self._engine, hold, note), None)
        else:
            self._again(hold, row, None)

    def close(self) -> None:
        """Let go of the node directory; open holds stay until they are ended or expire."""
        close_engine(self._opened)

    def __enter__(self) -> Billing:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def _end(self, hold: HoldId, end: Callable[[], Ended], counts: Counts | None) -> Micros:
        """End an open hold; where another process is faster, it is as if asked again."""
        try:
            charged = end().charged
        except NotFound:
            return self._again(hold, self._explicit(hold), counts)
        self._engine.flush()
        return charged

    def _again(self, hold: HoldId, row: HoldRow, counts: Counts | None) -> Micros:
        """Return what an ended hold came to, if it ended as it is now asked to."""
        wanted = HoldState.RELEASED if counts is None else HoldState.SETTLED
        if row.state is not wanted or (counts is not None and row.counts != counts):
            raise Conflict(f"hold {hold} was {row.state.name.lower()} with counts {row.counts}")
        self._engine.flush()
        return row.charged or 0

    def _explicit(self, hold: HoldId) -> HoldRow:
        """Return an explicit hold, open or ended."""
        holds = self._engine.store.holds
        with self._engine.store.read() as txn:
            row = holds.find(txn, hold)
        if row is None or holds.worker_of(hold) != NOBODY:
            raise NotFound(f"hold {hold} is not an explicit one")
        return row

    def _prices(
        self, plan: PlanName, route: str, choice: str | None, at: UnixMicroseconds
    ) -> PriceList:
        compiled = self._plans.get(plan)
        version = None if compiled is None else compiled.plan.at(route, at)
        prices = None if version is None else version.select(choice)
        if prices is None:
            what = route if choice is None else f"{route} for {choice!r}"
            raise HoldRefused("unpriced", f"the plan {plan!r} has no price of {what}")
        return prices

    def _expiry(self, expires_in: timedelta) -> UnixMicroseconds:
        if expires_in <= timedelta(0):
            raise InvalidValue("expires_in: must be longer than nothing")
        expires = self._engine.clock.now() + expires_in // _MICROSECOND
        if expires > limits.INSTANT_MAX:
            raise InvalidValue("expires_in: must end before the year 10000")
        return expires


def _text(field: str, value: str) -> str:
    """Return a text that a record can carry, or an empty one; raises `InvalidValue`."""
    if value != "":
        check_name(field, value, limits.NOTE_BYTES)
    return value


def _checked(counts: Counts) -> Counts:
    """Return counts that are counts, of meters; raises `InvalidValue` naming the meter."""
    if len(counts) > limits.METERS_MAX:
        raise InvalidValue(f"meter: one call has at most {limits.METERS_MAX}, found {len(counts)}")
    for meter, count in counts.items():
        check_name("meter", meter, limits.NAME_BYTES)
        if isinstance(count, float) or isinstance(judge(count), UsageStatus):
            raise InvalidValue(f"{meter}: {count!r} is not a count")
    return dict(counts)
