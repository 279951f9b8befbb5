"""Functions in other processes, for tests.

They start clean, speak over a pipe, and nobody waits for them by sleeping.
"""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any

PATIENCE_SECONDS = 60

_context = multiprocessing.get_context("forkserver")
# Forked from a server that has the imports done and no threads: quick, and safe to fork.
_context.set_forkserver_preload(["pytest", "finomw.testing.files", "finomw.engine.grants"])


class Child:
    """A process that runs ``function(pipe, *args)``."""

    def __init__(self, function: Callable[..., None], *args: Any) -> None:
        self._pipe, other = _context.Pipe()
        self._process = _context.Process(target=function, args=(other, *args), daemon=True)
        self._process.start()
        other.close()

    @property
    def pid(self) -> int:
        assert self._process.pid is not None
        return self._process.pid

    def receive(self) -> Any:
        """Return what the function sent next."""
        assert self._pipe.poll(PATIENCE_SECONDS), "the other process says nothing"
        return self._pipe.recv()

    def send(self, value: object = None) -> None:
        self._pipe.send(value)

    def kill(self) -> None:
        """Kill the process as a crash would, and wait until it is gone."""
        self._process.kill()
        self.killed()

    def killed(self) -> None:
        """Wait until the process has been killed."""
        self._process.join(PATIENCE_SECONDS)
        assert self._process.exitcode == -9

    def end(self) -> None:
        """See to it that the process is gone, however it got on."""
        self._process.kill()
        self._process.join(PATIENCE_SECONDS)

    def finish(self) -> None:
        """Wait until the function has returned."""
        self._process.join(PATIENCE_SECONDS)
        assert self._process.exitcode == 0


Pipe = Connection
