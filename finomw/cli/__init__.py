"""The command line: one file for each verb or group of verbs, and this entry to all of them.

The entry is small so that what it promises holds from the first moment: on another system than
Linux one clear line, and no traceback when somebody presses Ctrl-C, not even while the rest is
being imported. ``app.py`` has the list of verbs and decides how errors are told.
"""

from __future__ import annotations

import sys
from typing import Final

from finomw.errors import UnsupportedSystem
from finomw.system import require_linux

_INTERRUPTED: Final = 130
"""What a shell expects of a command that SIGINT ended: 128 and the signal's number."""


def main() -> int:
    """Run ``finomw`` with the process's arguments; return its exit status."""
    try:
        require_linux()
        from finomw.cli.app import run  # only now: its imports need Linux

        return run(sys.argv[1:])
    except UnsupportedSystem as error:
        sys.stderr.write(f"error: {error}\n")
        return 2
    except KeyboardInterrupt:
        return _INTERRUPTED
