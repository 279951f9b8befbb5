"""Real servers over real sockets: uvicorn in a process group of its own, and a node to look into.

Only what was started here is ever ended, by the id of its own process group.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx

from finomw import limits
from finomw.engine import customers, grants, keys, ledger
from finomw.engine.directory import create
from finomw.engine.engine import Engine, close_engine, open_engine
from finomw.engine.verify import verify
from finomw.money.entries import Entry
from finomw.types import CustomerId, EntryKind, PlanName

HERE = Path(__file__).parent
PATIENCE = 60
"""Seconds; a test on a busy machine may need many, one that hangs takes them all."""

FLAT = 2_000
TOKEN = 10
HOLD = 100 * TOKEN

CONFIG = """
data: node
buffer_usd: "0"
plans:
  default:
    prices:
      flat: {requests: {usd: "0.002"}}
      chat: {tokens: {usd: "0.00001"}}
routes:
  - {match: "GET,POST /flat", name: flat, meter: {requests: 1}}
  - {match: "GET /flat_bare", name: flat, meter: {requests: 1}}
  - {match: "GET,POST /chat", name: chat, meter: {tokens: .usage.tokens}, hold: {tokens: 100}}
  - {match: POST /stream, name: chat, meter: {tokens: .usage.tokens}, hold: {tokens: 100}}
  - {match: GET /bare, name: chat, meter: {tokens: .usage.tokens}, hold: {tokens: 100}}
"""


def until(condition: Callable[[], bool]) -> None:
    """Wait until something is true; it is an error if that takes too long."""
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline, "this took too long"
        time.sleep(0.01)


class Node:
    """A node directory as the test's own process sees it, beside the server's workers."""

    def __init__(self, folder: Path, options: str = "") -> None:
        self.path = folder / "node"
        self.config = folder / "fino.yaml"
        self.config.write_text(CONFIG + options)
        create(self.path, 4 * limits.MIB, 16 * limits.MIB)
        self._engine: Engine | None = None

    @property
    def engine(self) -> Engine:
        """The engine of the test's process, opened when it is first needed."""
        if self._engine is None:
            self._engine = open_engine(self.path)
        return self._engine

    def close(self) -> None:
        """Let go of the directory."""
        if self._engine is not None:
            close_engine(self._engine)
            self._engine = None

    def newcomer(self, name: str, amount: int) -> dict[str, str]:
        """Add a customer with this much; return the headers of their calls."""
        customer = CustomerId(name)
        customers.add_customer(self.engine, customer, PlanName("default"))
        grants.grant(self.engine, customer, amount, "test", "first")
        return {"Authorization": f"Bearer {keys.create_key(self.engine, customer).token}"}

    def balance(self, name: str) -> int:
        return customers.get_account(self.engine, CustomerId(name)).balance

    def settlements(self, name: str) -> list[Entry]:
        """Return what a customer was charged for, oldest first."""
        rows = ledger.ledger(self.engine, CustomerId(name), 1_000_000)
        return [row.entry for row in reversed(rows) if row.entry.kind is EntryKind.SETTLEMENT]

    def open_holds(self) -> int:
        with self.engine.store.read() as txn:
            return len(list(self.engine.store.holds.items(txn)))

    def prove(self) -> None:
        """Prove that all that is stored adds up, and that nothing is held."""
        found = verify(self.engine)
        assert found.faults == ()
        assert found.open_holds == 0


class Serving:
    """A running server: uvicorn, with more options, or what another command starts.

    ``{port}`` in a command's words stands for the port.
    """

    def __init__(
        self,
        node: Node,
        workers: int,
        *options: str,
        app: str = "e2e_app:app",
        command: Sequence[str] = (),
        **environment: str,
    ) -> None:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port: int = probe.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"
        uvicorn = ["uvicorn", app, "--port", "{port}", "--log-level", "warning", *options]
        if workers > 1:
            uvicorn += ["--workers", str(workers)]
        words = [word.format(port=self.port) for word in command or uvicorn]
        environment |= {
            "FINOMW_CONFIG": str(node.config),
            "PYTHONPATH": f"{HERE.parent.parent}{os.pathsep}{HERE}",
        }
        self.log = node.config.with_name("server.log")
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", *words],
                env={**os.environ, **environment},
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def wait_ready(self) -> None:
        """Wait until a worker answers."""
        until(self._answers)

    def _answers(self) -> bool:
        assert self.process.poll() is None, self.log.read_text()
        try:
            return httpx.get(f"{self.url}/health", timeout=PATIENCE).status_code == 200
        except httpx.TransportError:
            return False

    def kill(self) -> None:
        """Kill the server and all its workers at once, as ``kill -9`` does."""
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait(PATIENCE)

    def terminate(self) -> None:
        """Ask the server to stop, and wait until it has."""
        self.process.terminate()
        self.process.wait(PATIENCE)

    def client(self) -> httpx.AsyncClient:
        """Return a client with a connection for each call."""
        limit = httpx.Limits(max_connections=None, max_keepalive_connections=0)
        return httpx.AsyncClient(base_url=self.url, limits=limit, timeout=PATIENCE)


@contextmanager
def serving(node: Node, workers: int, *options: str, **more: Any) -> Iterator[Serving]:
    """Run a server, as `Serving` says, for as long as the block lasts."""
    server = Serving(node, workers, *options, **more)
    try:
        server.wait_ready()
        yield server
    finally:
        server.kill()
