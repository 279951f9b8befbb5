"""What an ended call is charged: the rule of every ending, in one place.

``failed`` is an answer of status 400 and above, or an error object; ``empty`` one that by HTTP
has no body (HEAD, 204, 205, 304), or had none. For a rule whose prices are not flat::

    known      delivered, or cut off   its price (marked partial where it was cut off)
    known      failed                  its price; nothing where no meter counted anything
    unknown    failed                  nothing, unless ``charge_errors``: then as delivered
    unknown    empty, or none began    nothing
    unknown    delivered, or cut off   by ``estimate``: the hold, nothing, or counts of what passed

A flat rule charges its price, unless the answer failed without ``charge_errors``, none began, or
it was cut off before any of its body had left.
"""

from __future__ import annotations

from typing import NamedTuple

from finomw.asgi.estimation import Passed
from finomw.asgi.rules import PricedRule
from finomw.metering.usage import Usage
from finomw.types import Counts, UsageStatus

WHOLE_HOLD = "estimated: the hold"


class Answer(NamedTuple):
    """How far an answer came. ``status`` is ``None`` where none began.

    ``passed`` is what of its body has left, or is about to with its last message.
    """

    status: int | None
    empty: bool
    complete: bool
    passed: Passed


class Charge(NamedTuple):
    """What to settle: the price of ``counts``, or the whole hold where they are ``None``.

    ``note`` says so where counts are estimated.
    """

    counts: Counts | None
    usage: UsageStatus
    note: str = ""


def decide(rule: PricedRule, usage: Usage, answer: Answer, ceiling: Counts) -> Charge | str:
    """Return what to charge, or the reason why the hold is released."""
    if answer.status is None:
        return "no answer began"
    failed = answer.status >= 400 or usage.error
    known = usage.status is UsageStatus.KNOWN
    used = known and any(usage.counts.get(meter) for meter in rule.measured)
    if failed and not used and not rule.charges_errors:
        return f"the answer failed with status {answer.status}"
    if not (used or answer.passed.size or answer.complete):
        return "nothing was delivered"
    if known and answer.complete:
        return Charge(usage.counts, UsageStatus.KNOWN)
    if not known and (answer.empty or not answer.passed.size):
        return "the answer has no body"
    partial = not answer.complete and usage.status is not UsageStatus.INVALID
    status = UsageStatus.PARTIAL if partial else usage.status
    if isinstance(rule.estimate, str):
        if known:
            return Charge(usage.counts, status)
        if rule.estimate == "none":
            return f"usage {usage.status.name.lower()}"
        return Charge(None, status, WHOLE_HOLD)
    # Where an answer was cut off, what it said last may be less than what has passed since.
    said = {meter: usage.counts.get(meter) for meter in rule.measured}
    guessed = rule.estimate.counts(said, answer.passed, ceiling)
    note = f"estimated: {', '.join(guessed)}" if guessed else ""
    return Charge({**usage.counts, **guessed}, status, note)
