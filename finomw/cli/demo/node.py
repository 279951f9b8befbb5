"""The demo's node: a directory that is removed in the end, and the server process on it.

The command's process opens the node directory too, as the owner's tools do, and makes the
customer, the key and the grants while the server runs. However the demo ends, the server is
stopped before the directory goes.
"""

from __future__ import annotations

import os
import secrets
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import finomw.demo
from finomw import limits
from finomw.config.load import load
from finomw.engine import customers, directory
from finomw.engine.engine import Engine, close_engine, open_engine
from finomw.engine.grants import grant
from finomw.engine.keys import create_key
from finomw.errors import InvalidValue
from finomw.journal.files import Files
from finomw.money.account import Account
from finomw.types import CustomerId, Micros, PlanName

CUSTOMER: Final = CustomerId("acme")
HOST: Final = "127.0.0.1"

_STOPPING_SECONDS: Final = 10
_FLUSHES: Final = 25
_FLUSH_PAUSE_SECONDS: Final = 0.02
_REAL_DISK: Final = Path("/var/tmp")
"""Preferred to /tmp, which is often memory, where a flush costs nothing."""


class Server:
    """The server process, from its start until `stop`; ``url`` is where it listens.

    Raises `InvalidValue` for a port that cannot be had.
    """

    def __init__(self, folder: Path, port: int) -> None:
        try:
            listening = socket.create_server((HOST, port))
        except OSError as error:
            raise InvalidValue(f"--port: {port} cannot be had: {error.strerror}") from error
        with listening:
            self.url = f"http://{HOST}:{listening.getsockname()[1]}"
            self._process = subprocess.Popen(
                [sys.executable, "-m", "finomw.demo.serve", str(listening.fileno()), folder],
                pass_fds=[listening.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
            )

    def wait(self) -> None:
        """Return when the process has ended by itself."""
        self._process.wait()

    def stop(self) -> None:
        """Let calls under way end and the process with them; kill it if it does not."""
        self._process.terminate()
        try:
            self._process.wait(_STOPPING_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


class Node:
    """A node directory with one customer, opened here and served by another process."""

    def __init__(self, config: Path, engine: Engine, server: Server) -> None:
        self.config = config
        self.engine = engine
        self.server = server
        customers.add_customer(engine, CUSTOMER, PlanName("default"), "Acme Ltd")
        self.token = create_key(engine, CUSTOMER, "demo").token

    @property
    def account(self) -> Account:
        """The customer's account as it is now."""
        return customers.get_account(self.engine, CUSTOMER)

    def grant(self, amount: Micros) -> None:
        """Give the customer credit, as a payment would."""
        grant(self.engine, CUSTOMER, amount, "demo", secrets.token_hex(8))

    def flush_ns(self) -> int:
        """Return what one flush of this disk takes, at the pace of the calls: the median."""
        files, path = Files(), self.config.with_name("flush")
        files.allocate(path, _FLUSHES * limits.PAGE, b"")
        mapped = files.map(path, _FLUSHES * limits.PAGE)
        took = []
        for page in range(_FLUSHES):
            time.sleep(_FLUSH_PAUSE_SECONDS)
            mapped.store(page * limits.PAGE, b"a record")
            began = self.engine.clock.monotonic()
            mapped.flush()
            took.append(self.engine.clock.monotonic() - began)
        mapped.close()
        return statistics.median_low(took)


@contextmanager
def running(port: int = 0) -> Iterator[Node]:
    """Make a node and serve it on a port of the loopback interface, 0 for a free one."""
    parent = None if "TMPDIR" in os.environ or not _REAL_DISK.is_dir() else _REAL_DISK
    with tempfile.TemporaryDirectory(prefix="finomw-demo-", dir=parent) as name:
        config = Path(name, "fino.yaml")
        shutil.copyfile(Path(finomw.demo.__file__).with_name("fino.yaml"), config)
        settings = load(config)
        directory.create(settings.data, settings.storage.segment_size, settings.storage.state_size)
        server = Server(Path(name), port)
        try:
            engine = open_engine(settings.data)
            try:
                yield Node(config, engine, server)
            finally:
                close_engine(engine)
        finally:
            server.stop()
