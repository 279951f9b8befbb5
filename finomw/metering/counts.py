"""What is a count, and what is not.

Counts come from outside: from an upstream's answer, or from a request that the customer wrote.
One function judges them all. Whole numbers are accepted however they are spelled (``120``,
``120.0``, ``1.2e2``); everything else is refused as it stands: never truncated, rounded,
converted, or netted off against another field.
"""

from __future__ import annotations

from finomw import limits
from finomw.types import UsageStatus


def judge(value: object) -> int | UsageStatus:
    """Tell the count that ``value`` is, or why it is none.

    Returns an integer from 0 to ``limits.COUNT_MAX``, ``UsageStatus.MISSING`` for None, or
    ``UsageStatus.INVALID`` for anything else. A status is itself an integer: ask
    ``isinstance(result, UsageStatus)`` before the result is used as a count.
    """
    if value is None:
        return UsageStatus.MISSING
    if type(value) is float and value.is_integer():
        value = int(value)
    if type(value) is int and 0 <= value <= limits.COUNT_MAX:  # "type is": True is no count
        return value
    return UsageStatus.INVALID
