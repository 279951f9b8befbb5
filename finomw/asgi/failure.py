"""What becomes of calls that billing cannot record: refused, or passed unbilled and counted.

``on_failure: refuse`` gives them 503; with ``pass`` the API goes on and gives its work away, until
billing records again. Either way it is logged when it begins and when its cause changes, not for
each call.
"""

from __future__ import annotations

import logging
from typing import Literal

from finomw.engine.engine import Engine

logger = logging.getLogger("finomw")


class Failures:
    """The configured policy, and what came of it in this process."""

    def __init__(self, policy: Literal["refuse", "pass"]) -> None:
        self.passes = policy == "pass"
        self.unbilled = 0
        """Calls that passed before an engine could be opened; the engine counts the others."""
        self._noted: set[str] = set()

    def note(self, what: str, error: Exception) -> None:
        """Log what is done, and why, unless that was said since billing last worked."""
        text = f"{what}: {error}"
        if text not in self._noted:
            self._noted.add(text)
            logger.error("%s", text)

    def count_unbilled(self, engine: Engine | None, error: Exception) -> None:
        """Count a call that passes unbilled."""
        self.note("calls pass unbilled", error)
        if engine is None:
            self.unbilled += 1
        else:
            engine.count_unbilled()

    def over(self) -> None:
        """Note that a call was recorded; say so after trouble."""
        if self._noted:
            self._noted.clear()
            logger.warning("billing records calls again")
