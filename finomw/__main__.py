"""``python -m finomw``: the command line, as the ``finomw`` command runs it.

Everything is in ``finomw.cli``; this only hands its exit status to the shell.
"""

from __future__ import annotations

import sys

from finomw.cli import main

if __name__ == "__main__":
    sys.exit(main())
