"""The demo's server process: the example app, measured, behind uvicorn.

``python -m finomw.demo.serve FD FOLDER`` serves on a listening socket that the parent opened: there
is no race for a free port, and a call that comes before the server is ready waits instead of
failing. The folder has the ``fino.yaml``; it is entered only now, after the imports, so that a
path to this package may be relative to where the parent is.
"""

from __future__ import annotations

import contextlib
import os
import socket
import sys

import uvicorn

from finomw.demo.app import app
from finomw.demo.timing import Timings

STOPPING_SECONDS = 5
"""How long calls under way may go on when the server is told to stop."""


def main() -> None:
    """Serve until told to stop."""
    descriptor, folder = sys.argv[1:]
    os.chdir(folder)
    Timings().add_to(app)
    config = uvicorn.Config(app, log_level="warning", timeout_graceful_shutdown=STOPPING_SECONDS)
    with contextlib.suppress(KeyboardInterrupt):  # uvicorn raises it again when all is ended
        uvicorn.Server(config).run(sockets=[socket.socket(fileno=int(descriptor))])


if __name__ == "__main__":
    main()
