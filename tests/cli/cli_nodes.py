"""What the command-line tests share: a small node in a folder of its own, and a way to call it."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import NamedTuple, TypeAlias

import pytest

import finomw
from finomw.billing import Billing
from finomw.cli.app import run
from finomw.clock import SystemClock
from finomw.engine import charge
from finomw.engine.engine import Engine, close_engine, open_engine
from finomw.types import Counts, CustomerId, HoldId, KeyHash, OnCrash, RouteName, UsageStatus

SMALL = """\
storage: {segment_size: 64KiB, state_size: 1MiB}
plans:
  default: {prices: {search: {requests: {usd: "0.002"}}}}
  pro: {prices: {search: {requests: {usd: "0.001"}}}}
routes:
  - {name: search, match: GET /search, meter: {requests: 1}}
"""


SHOP = """\
storage: {segment_size: 64KiB, state_size: 1MiB}
plans:
  default:
    quotas:
      free: {meters: [tokens], units: 100, per: month}
      welcome: {meters: [cost], usd: "0.50", per: once}
    prices:
      chat: {by: .model, small-1: {tokens: {usd: "0.01"}}, large-1: {tokens: {usd: "0.1"}}}
      search: {requests: {tiered: [{up_to: 2, usd: 1}, {usd: "0.5"}]}, pages: {usd: "0.25"}}
  postpaid:
    fund: [credit]
    prices:
      chat: {by: .model, small-1: {tokens: {usd: "0.01"}}, large-1: {tokens: {usd: "0.1"}}}
      search: {requests: {usd: 1}, pages: {usd: "0.25"}}
routes:
  - {name: chat, match: POST /chat, meter: {tokens: .n}, hold: {tokens: 200}}
  - {name: search, match: GET /search, meter: {requests: 1, pages: .n}, hold: {pages: 9}}
"""


class Outcome(NamedTuple):
    """How a command ended."""

    status: int
    out: str
    err: str


Call: TypeAlias = Callable[..., Outcome]


class Node(NamedTuple):
    """A node directory and the YAML file that names it."""

    config: Path
    data: Path

    @contextmanager
    def engine(self) -> Iterator[Engine]:
        """Open the directory as a process of the API does."""
        engine = open_engine(self.data)
        try:
            yield engine
        finally:
            close_engine(engine)

    def tail(self) -> int:
        """Return the LSN behind the journal's last record."""
        with self.engine() as engine:
            return engine.tail()

    def books(self) -> list[object]:
        """Return every account and every ledger entry."""
        with self.engine() as engine, engine.store.read() as txn:
            return [*engine.store.accounts.items(txn), *engine.store.ledger.items(txn)]

    def journal(self) -> dict[str, bytes]:
        """Return every byte of the journal, by file."""
        return {path.name: path.read_bytes() for path in (self.data / "journal").iterdir()}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Work in an empty directory."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("FINOMW_CONFIG", raising=False)
    return tmp_path


@pytest.fixture
def call(folder: Path, capsys: pytest.CaptureFixture[str]) -> Call:
    """Run one command line in this process; its output is no terminal."""

    def call_finomw(*arguments: str) -> Outcome:
        status = run(arguments)
        return Outcome(status, *capsys.readouterr())

    return call_finomw


@pytest.fixture
def shell(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Call:
    """Run one command line as a process of its own."""
    monkeypatch.setenv("PYTHONPATH", str(Path(finomw.__file__).parents[1]))

    def call_finomw(*arguments: str) -> Outcome:
        command = [sys.executable, "-m", "finomw", *arguments]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
        return Outcome(done.returncode, done.stdout, done.stderr)

    return call_finomw


@pytest.fixture
def node(folder: Path, call: Call) -> Node:
    """Make a small node: ``finomw init`` for a YAML file that is there."""
    (folder / "fino.yaml").write_text(SMALL)
    assert call("init").status == 0
    return Node(folder / "fino.yaml", folder / "fino-data")


@pytest.fixture
def shop(folder: Path, call: Call) -> Node:
    """Make a node whose plans have quotas, tiers and credit."""
    (folder / "fino.yaml").write_text(SHOP)
    assert call("init").status == 0
    return Node(folder / "fino.yaml", folder / "fino-data")


def work(
    node: Node, customer: str, route: str, counts: Counts, choice: str | None = None
) -> HoldId:
    """Let a customer's job use these counts, under the prices of the node's YAML."""
    with Billing(node.config) as billing:
        held = billing.hold(customer, route, counts, timedelta(hours=1), choice=choice)
        billing.settle(held.hold, counts)
    return held.hold


class Ticker:
    """Seconds since 1970 that move whenever they are read, and when they are told to."""

    def __init__(self, seconds: int) -> None:
        self.seconds = seconds

    def now(self) -> int:
        self.seconds += 1
        return (self.seconds - 1) * 10**6 + 1


@pytest.fixture
def ticking(monkeypatch: pytest.MonkeyPatch) -> Ticker:
    """Time that starts at 2026-01-31T23:59:58.000001Z and moves a second whenever it is read."""
    ticker = Ticker(1_769_903_998)

    class Ticking(SystemClock):
        def now(self) -> int:
            return ticker.now()

    monkeypatch.setattr("finomw.engine.engine.SystemClock", Ticking)
    monkeypatch.setattr("finomw.cli.times.SystemClock", Ticking)
    return ticker


def spend(
    engine: Engine,
    held: int,
    price: int,
    counts: Counts,
    choice: str = "",
    usage: UsageStatus = UsageStatus.KNOWN,
    note: str = "",
) -> None:
    """Let alice make a call: a hold, then its settlement; amounts are micros."""
    charge.settle(engine, hold(engine, held, choice), price, counts, usage, note)


def hold(engine: Engine, amount: int, choice: str = "") -> HoldId:
    """Let alice begin a call."""
    request = charge.HoldRequest(
        CustomerId("alice"),
        KeyHash(bytes(32)),
        RouteName("chat"),
        amount,
        {},
        buffer=1_000_000,
        on_crash=OnCrash.RELEASE,
        price_version="1a2b3c4d5e6f",
        choice=choice,
    )
    held = charge.hold(engine, request)
    assert isinstance(held, charge.Held)
    return held.hold
