"""What an ended call is charged: the rule of every ending, in one place.

``failed`` is an answer of status 400 and above, or an error object; ``empty`` one that by HTTP
has no body (HEAD, 204, 205, 304). For a rule whose prices are not flat::

    known      delivered, or cut off   its price (marked partial where it was cut off)
    known      failed                  its price; nothing where no meter counted anything
    unknown    failed                  nothing, unless ``charge_errors``: then as delivered
    unknown    empty, or none began    nothing
    unknown    delivered, or cut off   the hold (``estimate: hold``) or nothing (``none``)

A flat rule charges its price, unless the answer failed without ``charge_errors`` or none began.
An answer counts as begun once a part of it has left, or the client has.
"""

from __future__ import annotations

from typing import NamedTuple

from finomw.asgi.rules import Rule
from finomw.metering.usage import Usage
from finomw.types import UsageStatus


class Answer(NamedTuple):
    """How far an answer came. ``status`` is ``None`` where none began."""

    status: int | None
    empty: bool
    complete: bool


class Charge(NamedTuple):
    """What to settle: the counts' price, or the whole hold where the counts are unknown."""

    whole_hold: bool
    usage: UsageStatus


def decide(rule: Rule, usage: Usage, answer: Answer) -> Charge | str:
    """Return what to charge, or the reason why the hold is released."""
    if answer.status is None:
        return "no answer began"
    failed = answer.status >= 400 or usage.error
    known = usage.status is UsageStatus.KNOWN
    used = known and any(usage.counts.get(meter) for meter in rule.measured)
    if failed and not used and not rule.charges_errors:
        return f"the answer failed with status {answer.status}"
    if known:
        return Charge(False, UsageStatus.KNOWN if answer.complete else UsageStatus.PARTIAL)
    if answer.empty:
        return "the answer has no body"
    if not rule.charges_unknown:
        return f"usage {usage.status.name.lower()}"
    partial = usage.status is UsageStatus.MISSING and not answer.complete
    return Charge(True, UsageStatus.PARTIAL if partial else usage.status)
