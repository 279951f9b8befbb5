"""Whether a call used more than is held for it, and what of that stays within.

A meter that is a part of another has no ceiling of its own: it is held with that one, and so
counted with it.
"""

from __future__ import annotations

from collections.abc import Mapping

from finomw.types import Counts


def exceeds(counts: Counts, ceiling: Counts, splits: Mapping[str, str]) -> bool:
    """Say whether counts are above the ceiling; ``splits`` tells what is a part of what."""
    totals: Counts = {}
    for meter, count in counts.items():
        whole = _held_with(meter, ceiling, splits)
        totals[whole] = totals.get(whole, 0) + count
    return any(total > ceiling.get(meter, 0) for meter, total in totals.items())


def clipped(counts: Counts, ceiling: Counts, splits: Mapping[str, str]) -> Counts:
    """Return as much of the counts as the ceiling covers, parts of a meter before its rest."""
    left = dict(ceiling)
    within = dict(counts)
    for meter in sorted(counts, key=lambda meter: meter in ceiling):
        whole = _held_with(meter, ceiling, splits)
        within[meter] = min(counts[meter], left.get(whole, 0))
        left[whole] = left.get(whole, 0) - within[meter]
    return within


def _held_with(meter: str, ceiling: Counts, splits: Mapping[str, str]) -> str:
    while meter not in ceiling and meter in splits:
        meter = splits[meter]
    return meter
