"""Owners' commands: carried out, and on disk before they are answered.

An owner who is told that a grant was given may tell the customer: so it has to be true after a
power cut, also when the grant turned out to have been given before.
"""

from __future__ import annotations

from finomw.engine import records
from finomw.engine.apply import Earlier
from finomw.engine.engine import Engine, Executed
from finomw.errors import InvariantBroken


def durably(engine: Engine, command: records.AnyCommand) -> Executed | Earlier:
    """Execute a command and flush; also a repetition is answered only when it is on disk.

    Raises what the command's rule raises, and `RecordingFailed`.
    """
    done = engine.execute(command)
    if not isinstance(done, Executed | Earlier):
        raise InvariantBroken(f"an owner's command came back as {done}")
    engine.flush()
    return done
