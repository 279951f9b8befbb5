"""Points in time, as the file writes them: RFC 3339 with its offset, ``2027-01-01T00:00:00Z``.

A time without an offset would mean another moment on another machine, and prices would change at
another one; so it is refused, like every form that RFC 3339 does not have.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from typing import Final

from finomw.errors import InvalidValue, quoted
from finomw.types import UnixMicroseconds

_FORM: Final = re.compile(
    r"[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}(?:\.[0-9]{1,6})?"
    r"(?:Z|[+-][0-9]{2}:[0-9]{2})"
)
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


def parse_instant(text: str) -> UnixMicroseconds:
    """Read a time with an offset; raises ``InvalidValue``, also for a day that no calendar has."""
    if _FORM.fullmatch(text):
        try:
            return (datetime.fromisoformat(text) - _EPOCH) // timedelta(microseconds=1)
        except ValueError:
            pass  # told below, like a wrong form
    raise InvalidValue(f"expected a time such as 2027-01-01T00:00:00Z, found {quoted(text)}")
