"""Under which terms a call is funded: the plan's quotas, and the order of its money sources."""

from __future__ import annotations

from typing import NamedTuple

from finomw.money.periods import Per
from finomw.money.quotas import Quota
from finomw.types import Fund


class Terms(NamedTuple):
    """A plan's part of a hold. ``usage_per`` is the period that tiered prices count by."""

    quotas: tuple[Quota, ...]
    order: tuple[Fund, ...]
    usage_per: Per


WALLET_ONLY = Terms((), (Fund.WALLET,), Per.MONTH)
"""No quotas, prepaid."""
