"""Meters that are parts of others: cached input, say, of input.

Providers count differently: with one the whole includes a part, with another the part comes on
top. A rule says which, and what is told here makes counts of which each unit stands in one meter
alone. Each field is judged by itself before; nothing is ever netted off or made negative:

* a part that an answer does not mention is 0, where it tells the whole;
* a part that is ``inside`` is taken out of its whole, and one that is larger is a wrong value;
* of parts that overlap (tokens both cached and audio), the later gets what the earlier left.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple, TypeAlias

from finomw.config.model import PricedRoute
from finomw.types import UsageStatus

Outcomes: TypeAlias = dict[str, int | UsageStatus]


class Split(NamedTuple):
    """A meter that is a part of another, and whether the other's count includes it."""

    meter: str
    of: str
    inside: bool


def splits_of(route: PricedRoute) -> tuple[Split, ...]:
    """Return a rule's splits, each after that of which it is a part."""
    depth: dict[str, int] = {}
    for meter in route.splits:
        above = meter
        while above in route.splits:
            depth[meter] = depth.get(meter, 0) + 1
            above = route.splits[above].of
    return tuple(
        Split(meter, route.splits[meter].of, route.splits[meter].inside)
        for meter in sorted(route.splits, key=lambda meter: depth[meter])
    )


def apart(outcomes: Mapping[str, int | UsageStatus], splits: tuple[Split, ...]) -> Outcomes:
    """Return outcomes in which each unit stands in one meter alone; they may lack some meters."""
    splits = tuple(each for each in splits if each.meter in outcomes and each.of in outcomes)
    told = dict(outcomes)
    for split in splits:
        if told[split.meter] is UsageStatus.MISSING and not isinstance(told[split.of], UsageStatus):
            told[split.meter] = 0
    rest = dict(told)
    for split in splits:
        whole, part = told[split.of], told[split.meter]
        left = rest[split.of]
        if not split.inside or isinstance(part, UsageStatus):
            continue
        if isinstance(whole, UsageStatus) or isinstance(left, UsageStatus):
            continue
        if part > whole:
            rest[split.meter] = UsageStatus.INVALID
        else:
            rest[split.meter] = min(part, left)
            rest[split.of] = left - min(part, left)
    return rest
