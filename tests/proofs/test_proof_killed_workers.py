"""300 killed workers leave nothing behind: no hold, slot, lock, reader or page, and no wrong sum.

They are killed in batches, at work, at rest, while they read, and while one has the write lock and
a survivor waits for it. How long the worst of the survivor's writes took is printed.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "engine"))

# isort: split

import nodes
from processes import Child, Pipe

from finomw import limits
from finomw.engine import charge, customers, grants
from finomw.engine.engine import Engine, close_engine, open_engine
from finomw.engine.sweep import sweep
from finomw.engine.verify import verify
from finomw.types import OnCrash, Refusal

pytestmark = [pytest.mark.no_cover, pytest.mark.timeout(600)]

BATCHES = 30
MONEY = 10**9
AFTER = 10
"""Writes of the survivor after the last kill of a batch."""


def rest(pipe: Pipe, path: Path) -> None:
    """Hold in every way, and wait to be killed."""
    engine = open_engine(path)
    nodes.held(engine, 10, on_crash=OnCrash.SETTLE, flat=True)
    nodes.held(engine, 20)
    charge.start(engine, nodes.held(engine, 40))
    pipe.send("rests")
    pipe.recv()


def work(pipe: Pipe, path: Path) -> None:
    """Hold, settle and flush until killed, a few hundred times a second."""
    engine = open_engine(path)
    nodes.settle(engine, nodes.held(engine, 3).hold, 2)
    pipe.send("works")
    while not pipe.poll(0.004):
        nodes.settle(engine, nodes.held(engine, 3).hold, 2)
        engine.flush()


def read(pipe: Pipe, path: Path) -> None:
    """Keep a snapshot until killed."""
    engine = open_engine(path)
    nodes.held(engine, 5)
    with engine.store.read():
        pipe.send("reads")
        pipe.recv()


def write(pipe: Pipe, path: Path) -> None:
    """Have the write lock until killed."""
    engine = open_engine(path)
    nodes.held(engine, 5)

    def decide(_: object) -> Refusal:
        pipe.send("writes")
        pipe.recv()
        return Refusal.HELD

    engine.decide(decide)


BATCH = (rest, rest, rest, work, work, work, work, read, read, write)
"""The last one starts when all others are where they are killed; from then on nobody can write."""


class Write(NamedTuple):
    """When a write of the survivor began and ended, in monotonic nanoseconds."""

    began: int
    ended: int


class Survivor:
    """Writes all the time while others are killed."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._writes: list[Write] = []
        self._over = threading.Event()

    def _run(self) -> None:
        left = AFTER
        while left:
            # Not faster than this: each write beside a reader's snapshot takes new pages.
            left -= self._over.wait(0.001)
            began = time.monotonic_ns()
            nodes.settle(self._engine, nodes.held(self._engine, 1).hold, 1)
            self._writes.append(Write(began, time.monotonic_ns()))

    def through(self, children: list[Child]) -> int:
        """Write while processes are killed; return the longest delay, in nanoseconds."""
        self._writes.clear()
        self._over.clear()
        thread = threading.Thread(target=self._run)
        thread.start()
        kills = []
        for child in children:
            kills.append(time.monotonic_ns())
            child.kill()
        self._over.set()
        thread.join()
        return max(self._delay(at) for at in kills)

    def _delay(self, kill: int) -> int:
        """Return how long after a kill the write that it may have delayed had ended."""
        write = next(write for write in self._writes if write.ended > kill)
        return write.ended - max(write.began, kill)


@pytest.fixture
def place(tmp_path: Path) -> Path:
    path = nodes.make(tmp_path / "node", 64 * limits.MIB)
    engine = nodes.open_node(path)
    customers.add_customer(engine, nodes.ALICE, nodes.PLAN)
    grants.grant(engine, nodes.ALICE, MONEY, "test", "first")
    engine.close()
    return path


def test_300_killed_workers_leave_nothing_behind(
    place: Path, figures: Callable[[str], None]
) -> None:
    engine = open_engine(place)
    nodes.held(engine, 7)
    lmdb = engine.store.close.__self__._env  # type: ignore[attr-defined]
    survivor, worst, killed = Survivor(engine), 0, 0
    for _ in range(BATCHES):
        children = [Child(role, place) for role in BATCH[:-1]]
        for child in children:
            child.receive()
        children.append(Child(BATCH[-1], place))
        children[-1].receive()
        children.reverse()
        worst = max(worst, survivor.through(children))
        killed += len(children)
        assert sweep(engine) >= 3 * 3 + 2 + 1
        assert sweep(engine) == 0
    account = customers.get_account(engine, nodes.ALICE)
    assert (account.balance, account.held) == (MONEY - account.spent_total - 7, 7)
    checked = verify(engine)
    assert (checked.faults, checked.open_holds) == ((), 1)
    assert [slot.worker for slot in engine.control.slots() if slot.worker] == [engine.worker]
    assert [path.name for path in (place / "workers").iterdir()] == [f"{engine.worker}.lock"]
    readers = [line.split()[0] for line in lmdb.readers().splitlines()[1:]]
    assert set(readers) <= {str(os.getpid())}
    with engine.store.read() as txn:
        calls = sum(1 for _ in engine.store.holds.ended(txn))
    # No snapshot keeps pages: all that were freed are used again before a new one is taken.
    used = lmdb.info()["last_pgno"]
    for _ in range(calls // 10):
        nodes.settle(engine, nodes.held(engine, 1).hold, 1)
    assert lmdb.info()["last_pgno"] == used
    close_engine(engine)
    figures(
        f"killed workers: {killed}, among {calls:,} calls; worst delay of a survivor's write "
        f"{worst / 1e6:.1f} ms"
    )
