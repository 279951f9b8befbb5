"""The error tree: every exception finomw raises on purpose.

One root, so that ``except FinomwError`` catches all of finomw and nothing else. Errors carry
data (a path, an LSN, a hint), and their text is one line that says what was wrong, where, and
what to do. An expected refusal of a call (no money, unknown customer) is not an exception but a
value: see ``types.Refusal``.
"""

from __future__ import annotations

from typing import Final, NamedTuple

_QUOTED_MAX: Final = 80


def quoted(text: str) -> str:
    """Text from the outside as an error's one line may show it: cut short, nothing unprintable."""
    cut = text if len(text) <= _QUOTED_MAX else text[:_QUOTED_MAX] + "…"
    printable = (char if char.isprintable() else repr(char)[1:-1] for char in cut)
    return f'"{"".join(printable)}"'


class FinomwError(Exception):
    """Root of everything finomw raises on purpose."""


class Problem(NamedTuple):
    """One fault of a configuration: where it is and what was expected there."""

    path: str
    message: str

    def __str__(self) -> str:
        return f"{self.path}: {self.message}" if self.path else self.message


class ConfigError(FinomwError):
    """The configuration cannot be used; carries every problem found, not only the first."""

    def __init__(self, problems: list[Problem]) -> None:
        super().__init__("; ".join(str(problem) for problem in problems))
        self.problems = tuple(problems)


class InvalidValue(FinomwError):
    """A value from the outside is malformed or out of its range; names the field."""


class Unpriced(FinomwError):
    """A call used a meter for which the customer's plan has no price."""

    def __init__(self, meter: str) -> None:
        super().__init__(f"the price plan has no price for the meter {quoted(meter)}")
        self.meter = meter


class HoldRefused(FinomwError):
    """An explicit hold was not made; ``reason`` is a word such as ``exhausted``."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason


class CallEnded(FinomwError):
    """The app added a count to a call that has been charged already."""


class UnsupportedSystem(FinomwError):
    """finomw runs on Linux only."""


class MissingExtra(FinomwError):
    """A part of finomw that is installed by an extra is not there."""


class NotFound(FinomwError):
    """A customer, key or hold that was named does not exist."""


class Conflict(FinomwError):
    """The same name or key was used before, with other content; names the difference."""


class DirectoryError(FinomwError):
    """The node directory is missing, unreadable, of a newer format, or somebody else's."""


class CheckpointBroken(DirectoryError):
    """A checkpoint is not whole, or not this node's; names the file."""


class JournalDamaged(FinomwError):
    """A journal cannot be what was written; names the file and the LSN."""

    def __init__(self, path: str, lsn: int, what: str, hint: str = "") -> None:
        super().__init__(f"{path}: LSN {lsn}: {what}" + (f"; {hint}" if hint else ""))
        self.path = path
        self.lsn = lsn


class ReplayDiffers(FinomwError):
    """Replaying a record computed another result than the record carries; names its LSN."""

    def __init__(self, lsn: int, what: str) -> None:
        super().__init__(
            f"LSN {lsn}: {what}; see `finomw recover --dry-run` for what can be done; nothing was "
            "changed"
        )
        self.lsn = lsn


class RecordingFailed(FinomwError):
    """Billing cannot record: the engine stopped charging, or has no room."""


class FlushFailed(RecordingFailed):
    """A flush to disk failed; final until a restart with recovery."""


class EngineClosed(RecordingFailed):
    """The engine was closed, or belongs to the process this one was forked from."""


class InvariantBroken(FinomwError):
    """A thing that cannot be, was; the operation was abandoned and nothing was written."""
