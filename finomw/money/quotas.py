"""What a plan gives before money is asked for: quotas of units, or of money, for each period.

Only what a quota is; how much of it is left belongs to a customer's row, and what it pays for to
the funding walk.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import msgspec

from finomw.config.model import PlanQuota
from finomw.config.values import COST
from finomw.config.wording import join
from finomw.errors import InvalidValue, InvariantBroken, Problem
from finomw.money.micros import amount
from finomw.money.periods import Per

_NONE: Final[Mapping[str, str]] = {}


class Quota(msgspec.Struct, frozen=True):
    """A quota of a plan: ``units`` of its meters together, or micros where it is ``money``.

    A quota of money has no meters: it pays the price of any. With ``roll_over`` what is left at
    the end of a period is added to the next.
    """

    name: str
    meters: tuple[str, ...]
    units: int
    money: bool
    per: Per
    roll_over: bool


def compile_quotas(
    path: str,
    quotas: Mapping[str, PlanQuota],
    problems: list[Problem],
    parents: Mapping[str, str] = _NONE,
) -> tuple[Quota, ...]:
    """Return the quotas in their order, without those whose amount is wrong: see ``problems``.

    ``parents`` are the meters that are parts of others, and of which: a quota covers the parts of
    its meters as well.
    """
    compiled = []
    for name, quota in quotas.items():
        money = quota.meters == (COST,)
        units = quota.units
        if money and quota.usd is not None:
            try:
                units = amount(quota.usd)
            except InvalidValue as error:
                problems.append(Problem(join(join(path, name), "usd"), str(error)))
                continue
        if units is None:
            raise InvariantBroken(f"{join(path, name)}: no amount, and not found by the checks")
        meters = () if money else _with_parts(quota.meters, parents)
        per = Per[quota.per.upper()]
        compiled.append(Quota(name, meters, units, money, per, quota.roll_over))
    return tuple(compiled)


def _with_parts(meters: tuple[str, ...], parents: Mapping[str, str]) -> tuple[str, ...]:
    """Return meters, each followed by its parts and their parts."""
    found: list[str] = []
    for meter in meters:
        parts = tuple(part for part, parent in parents.items() if parent == meter)
        found += (meter, *_with_parts(parts, parents))
    return tuple(found)
