"""The one look at the operating system.

finomw rests on what Linux promises of ``mmap``, ``fdatasync`` and ``flock``; elsewhere it would
start and lose money quietly, so it says so and does not start.
"""

from __future__ import annotations

import sys

from finomw.errors import UnsupportedSystem


def require_linux() -> None:
    """Raise `UnsupportedSystem` unless this is Linux."""
    if sys.platform != "linux":
        raise UnsupportedSystem(f"finomw runs on Linux only, not on {sys.platform}")
