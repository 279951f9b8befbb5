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
    if not splits:
        return dict(outcomes)
    told = dict(outcomes)
    rest = dict(outcomes)
    for meter, of, inside in splits:
        part, whole = told.get(meter), told.get(of)
        if part is None or type(whole) is not int:  # a status is no count
            continue
        if part is UsageStatus.MISSING:
            told[meter] = rest[meter] = 0
        elif inside and type(part) is int and part:
            left = rest[of]
            if part > whole:
                rest[meter] = UsageStatus.INVALID
            elif type(left) is int:
                rest[meter] = min(part, left)
                rest[of] = left - min(part, left)
    return rest
