"""What finomw asks of the machine it runs on.

The journal's promises rest on Linux: locks that belong to an open file, preallocated files whose
flush has no metadata to write, process start times out of ``/proc``. Elsewhere some of it is
missing and some of it only seems to work, so nothing is tried. Call `require_linux` before
anything of the journal or the engine is imported: their modules need what only Linux has.
"""

from __future__ import annotations

import sys

from finomw.errors import UnsupportedSystem


def require_linux() -> None:
    """Raise `UnsupportedSystem` unless this is Linux."""
    system = str(sys.platform)  # a plain text, or mypy would decide this where it runs
    if system != "linux":
        raise UnsupportedSystem(f"finomw runs on Linux only; this system is {system}")
