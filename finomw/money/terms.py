"""Under which terms a call is funded: the plan's quotas, and the order of its money sources.

Quotas always come first: what they cover is not priced, so nothing could pay before them. The
configuration refuses another order.
"""

from __future__ import annotations

from typing import NamedTuple

from finomw.money.periods import Per
from finomw.money.plans import PricePlan
from finomw.money.quotas import Quota
from finomw.types import Fund


class Terms(NamedTuple):
    """A plan's part of a hold. ``usage_per`` is the period that tiered prices count by."""

    quotas: tuple[Quota, ...]
    order: tuple[Fund, ...]
    usage_per: Per


WALLET_ONLY = Terms((), (Fund.WALLET,), Per.MONTH)
"""No quotas, prepaid."""

_FUNDS = {"wallet": Fund.WALLET, "credit": Fund.CREDIT}


def terms_of(plan: PricePlan) -> Terms:
    """Return the terms of a compiled plan."""
    quotas = plan.quotas if "quota" in plan.fund else ()
    order = tuple(_FUNDS[source] for source in plan.fund if source in _FUNDS)
    return Terms(quotas, order, plan.period)
