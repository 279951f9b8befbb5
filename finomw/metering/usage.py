"""What one answer used, as far as it could be read.

A ``Usage`` never guesses: a meter is in ``counts`` only if the answer said it and what it said
is a count. What a call without known counts costs is not decided here.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from finomw.types import Counts, UsageStatus


class Usage(msgspec.Struct, frozen=True):
    """The counts of one answer.

    ``status`` is the worst of the meters: ``INVALID`` if one of them got a value that is no
    count, else ``MISSING`` if one of them got none, else ``KNOWN``. ``counts`` holds the meters
    that are known, whatever the status. ``error`` tells that the answer is an error object, which
    upstreams also send with status 200.
    """

    counts: Counts
    status: UsageStatus
    error: bool


def usage_of(outcomes: Mapping[str, int | UsageStatus], *, error: bool) -> Usage:
    """Sum up the outcomes of all meters, each as ``counts.judge`` gave it."""
    counts: Counts = {}
    status = UsageStatus.KNOWN
    for name, outcome in outcomes.items():
        if not isinstance(outcome, UsageStatus):
            counts[name] = outcome
        elif status is not UsageStatus.INVALID:
            status = outcome
    return Usage(counts, status, error)


def is_error(value: object) -> bool:
    """Tell whether a decoded answer, or event of one, is an error object.

    It is if its member ``error`` is an object or a string, and not an empty one: as in OpenAI's
    ``{"error": {...}}`` and Anthropic's ``{"type": "error", "error": {...}}``.
    """
    if not isinstance(value, dict):
        return False
    error = value.get("error")
    return isinstance(error, dict | str) and len(error) > 0
