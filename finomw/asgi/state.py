"""What the app sees of its own call, and what it may say: ``request.state.fino``.

The app can look up who pays and how much the call may use at most, and add counts that only it
knows. Counts are taken in from any thread, because sync endpoints run in a pool of them, until the
call is charged; what comes later would be charged to nobody, and is an error.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from starlette.types import Scope

from finomw import limits
from finomw.asgi.ceiling import exceeds
from finomw.errors import CallEnded, InvalidValue, quoted
from finomw.metering.counts import judge
from finomw.metering.usage import Usage
from finomw.types import Counts, CustomerId, UsageStatus

STATE_KEY: Final = "fino"


class CallHold:
    """What is held for a call. ``ceiling`` has the most that it may use, by meter."""

    __slots__ = ("_splits", "ceiling")

    def __init__(self, ceiling: Mapping[str, int], splits: Mapping[str, str]) -> None:
        self.ceiling: Mapping[str, int] = MappingProxyType(dict(ceiling))
        self._splits = splits

    def exceeded(self, counts: Mapping[str, int]) -> bool:
        """Say whether a call that used these counts has used more than is held for it.

        A meter that is a part of another is held with it, and so counted with it. Raises
        `InvalidValue` for a meter that the call's rule has not.
        """
        for meter in counts:
            if meter not in self.ceiling and meter not in self._splits:
                raise InvalidValue(f"meter: the rule has no {quoted(meter)}")
        return exceeds(dict(counts), dict(self.ceiling), self._splits)

    def parts_of(self, counts: Counts) -> list[str]:
        """Return the meters that are parts of those with counts, and have none themselves."""
        parts = []
        for meter in self._splits:
            above: str | None = meter
            while above is not None and above not in counts:
                above = self._splits.get(above)
            if above is not None and above != meter:
                parts.append(meter)
        return parts


class Call:
    """A call under way, as the app sees it in ``request.state.fino``.

    ``customer`` is who pays; ``hold`` what is held for this call.
    """

    __slots__ = ("_counts", "_ended", "_lock", "_meters", "customer", "hold")

    def __init__(self, customer: CustomerId, hold: CallHold, meters: Mapping[str, bool]) -> None:
        self.customer = customer
        self.hold = hold
        self._meters = meters
        """The rule's, and whether something can be added to each: not to a fixed count."""
        self._counts: Counts = {}
        self._ended = False
        self._lock = threading.Lock()

    def meter(self, name: str, count: int) -> None:
        """Add ``count`` units, 0 or more, to what the call used of a meter.

        All that is added, and what the rule reads itself of the same meter, is one sum.

        Raises
        ------
        InvalidValue
            The rule has no such meter, or a fixed count of it; or this is no count, or too much.
        CallEnded
            The call has been charged: an answer is with its last part, or its end marker.
        """
        if not self._meters.get(name):
            what = "the rule has a fixed count of" if name in self._meters else "the rule has no"
            raise InvalidValue(f"meter: {what} {quoted(str(name))}")
        judged = judge(count)
        if isinstance(judged, UsageStatus):
            wanted = f"a whole number from 0 to {limits.COUNT_MAX}"
            raise InvalidValue(f"count: expected {wanted}, found {quoted(repr(count))}")
        with self._lock:
            if self._ended:
                raise CallEnded(f"{name}: the call has been charged already")
            total = self._counts.get(name, 0) + judged
            if total > limits.COUNT_MAX:
                raise InvalidValue(f"count: {name} would come to more than {limits.COUNT_MAX}")
            self._counts[name] = total

    def counted(self, usage: Usage, *, last: bool = False) -> Usage:
        """Return what was read with what the app added; after the ``last`` it can add no more.

        A meter of which nothing was read has what the app said. One that only the app counts is
        missing until it does; a part that nobody mentions is 0 where its whole is told.
        """
        with self._lock:
            self._ended = self._ended or last
            added = dict(self._counts)
        counts = dict(usage.counts)
        status = usage.status
        for meter, count in added.items():
            total = judge(counts.pop(meter, 0) + count)
            if isinstance(total, UsageStatus):
                status = total
            else:
                counts[meter] = total
        if status is not UsageStatus.INVALID:
            if added:
                counts.update(dict.fromkeys(self.hold.parts_of(counts), 0))
            complete = counts.keys() >= self._meters.keys()
            status = UsageStatus.KNOWN if complete else UsageStatus.MISSING
        return Usage(counts, status, usage.error)


def show(scope: Scope, call: Call) -> None:
    """Put a call into the scope's state, a copy of it: servers may share theirs among calls.

    The scope itself stays the same object: what the app's router writes there is for layers
    outside of this one too.
    """
    scope["state"] = {**scope.get("state", {}), STATE_KEY: call}
