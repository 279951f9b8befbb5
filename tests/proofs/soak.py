"""Soak: workers under a steady load, one killed every two seconds, rolling restarts, checkpoints.

Each worker keeps house as in a server. Every interval prints a line, compares what clients saw with
the ledger, and fails where something grows that must not: memory, the journal behind its
checkpoints, the state beyond what its calls add to it, checkpoints, lock files, slots, open holds,
and the time that one call in a thousand waits.
"""

from __future__ import annotations

import os
import signal
import time
from array import array
from collections import Counter
from itertools import count
from pathlib import Path
from typing import Any, NamedTuple

from proving import Folder, ProofFailed, folder, main, options

# isort: split

import workload
from kills import Life
from witness import check
from workload import Load, Place, Seen, open_node

from finomw import limits
from finomw.config.model import Storage
from finomw.node.housekeeper import Housekeeper

KILL_SECONDS = 2
ROLL_SECONDS = 30
STATE = 4 * limits.MIB
SEGMENT = limits.SEGMENT_SIZE_MIN
STORAGE = Storage(keep=0, checkpoint_every=limits.CHECKPOINT_EVERY_MIN)
MEMORY_MAX = 96 * limits.MIB
"""What a worker's own memory may come to; the interpreter with its modules is most of it."""
JOURNAL_MAX = 4 * STORAGE.checkpoint_every + 8 * SEGMENT
"""Two checkpoints back, the one that is due and the one under way."""
CALL_BYTES = 2_000
"""What a call may add to the state: its entries and its hold's row, in pages half full."""
SNAPSHOT_BYTES = 64 * limits.MIB
"""What the state may have grown for snapshots: while one is read, none of its pages is used again.
Checkpoints are such snapshots, and the comparisons of this proof, which walk the whole ledger."""


class Bound(NamedTuple):
    """A figure of an interval, and the most that it may be."""

    name: str
    value: int
    most: int


class Probe(NamedTuple):
    """What a process finds that looks in from outside."""

    used: int
    open_holds: int
    slots: int
    calls: int


def serve(place: Place, times: Path, rate: float) -> None:
    """Be a worker that keeps house, at this many calls a second, until killed or told to end."""
    told: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, _: told.append(number))
    engine = open_node(place)
    housekeeper = Housekeeper(engine, STORAGE)
    housekeeper.round()
    housekeeper.start()
    load = Load(engine, Seen(place))
    fd = os.open(times, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    due = time.monotonic()
    for number in count(1):
        began = time.perf_counter_ns()
        load.call(number)
        took = time.perf_counter_ns() - began
        # A whole word at once: who is killed leaves no half of one.
        os.write(fd, array("I", [min(took // 1_000, 2**32 - 1)]).tobytes())
        load.owner(number)
        if told:
            break
        due = max(due + 1 / rate, time.monotonic() - 1)
        time.sleep(max(0.0, due - time.monotonic()))
    housekeeper.stop()
    engine.close()


def look(place: Place, alive: list[int]) -> Probe:
    """Compare what clients saw with the ledger, and measure."""
    engine = open_node(place)
    check(engine, place.seen, alive)
    with engine.store.read() as txn:
        holds = list(engine.store.holds.items(txn))
    used = [slot for slot in engine.control.slots() if slot.worker]
    calls = sum(1 for line in place.seen.open() if line.startswith(("paid", "free")))
    probe = Probe(engine.store.room().used, len(holds), len(used), calls)
    engine.close()
    return probe


class Soak(Life):
    """A node that is soaked."""

    def __init__(self, case: Folder, workers: int, rate: float) -> None:
        super().__init__(case)
        self.workers = workers
        self.rate = rate
        self.times = case.path / "times"
        self.read = 0
        self.killed = 0
        self.restarts = 0

    def make(self) -> None:
        """Make the node."""
        self.place = Place(self.case.path / "node", self.case.path / "seen")
        self.child(workload.make, self.place, STATE).result()

    def fill_up(self) -> None:
        """Have as many workers as there should be."""
        for _ in range(self.workers - len(self.children)):
            self.children.append(self.child(serve, self.place, self.times, self.rate))

    def kill_one(self) -> None:
        """Kill a worker, and have another."""
        self.kill([self.case.random.choice(self.children)])
        self.killed += 1
        self.fill_up()

    def roll(self) -> None:
        """Restart all workers, one after the other, as a deployment does."""
        for child in list(self.children):
            os.kill(child.pid, signal.SIGTERM)
            if child.wait() != 0:
                raise ProofFailed(f"a worker told to end did not: {self.log.read_text()}")
            self.children.remove(child)
            self.restarts += 1
            self.fill_up()

    def waits(self) -> list[int]:
        """Return how many microseconds each call took since this was last asked, in order."""
        data = self.times.read_bytes()[self.read :] if self.times.exists() else b""
        data = data[: len(data) // 4 * 4]
        self.read += len(data)
        return sorted(array("I", data))

    def memory(self) -> int:
        """Return the most memory of its own that a worker has, in bytes."""
        most = 0
        for child in self.children:
            status = Path(f"/proc/{child.pid}/status").read_text().split()
            most = max(most, int(status[status.index("RssAnon:") + 1]) * limits.KIB)
        return most

    def interval(self, wait_max: int) -> list[Bound]:
        """Measure everything, and compare; raises `ProofFailed`."""
        for child in self.children:
            child_status = os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            if child_status is not None:
                child.check_runs()
        waits, memory = self.waits(), self.memory()
        probe: Probe = self.child(look, self.place, [c.pid for c in self.children]).result()
        if not waits:
            raise ProofFailed("no call was made")
        journal = sum(file.stat().st_size for file in (self.place.node / "journal").iterdir())
        few = 3 * self.workers
        figures = [
            Bound("calls", len(waits), 2**32),
            Bound("p50 us", waits[len(waits) // 2], wait_max),
            Bound("p99.9 us", waits[len(waits) * 999 // 1000], wait_max),
            Bound("memory", memory, MEMORY_MAX),
            Bound("journal", journal, JOURNAL_MAX),
            Bound("state", probe.used, STATE + SNAPSHOT_BYTES + CALL_BYTES * probe.calls),
            Bound("checkpoints", len(list((self.place.node / "checkpoints").iterdir())), 3),
            Bound("locks", len(list((self.place.node / "workers").iterdir())), few),
            Bound("slots", probe.slots, few),
            Bound("holds", probe.open_holds, few),
        ]
        over = [figure for figure in figures if figure.value > figure.most]
        if over:
            raise ProofFailed(f"out of bounds: {over}")
        return figures


def soak(case: Folder, chosen: Any) -> Counter[str]:
    """Run for the time that was asked for; print a line each interval."""
    life = Soak(case, chosen.workers, chosen.rate)
    life.fill_up()
    life.progress(1)
    began = last = time.monotonic()
    end = began + chosen.minutes * 60
    rolls = max(1, int(chosen.minutes * 60 / ROLL_SECONDS))
    totals: Counter[str] = Counter()
    while (now := time.monotonic()) < end:
        if now - began >= (life.killed + 1) * KILL_SECONDS:
            life.kill_one()
        due = (life.restarts // chosen.workers + 0.5) * (end - began) / rolls
        if now - began >= due:
            life.roll()
        if now - last >= chosen.interval or end - now < 0.1:
            figures = life.interval(chosen.wait_max * 1_000)
            if not totals:
                print("  seconds", *(f"{figure.name:>11}" for figure in figures))
            print(f"{now - began:9.0f}", *(f"{f.value:11}" for f in figures), flush=True)
            totals["calls"] += figures[0].value
            for figure in figures[1:]:
                totals[f"{figure.name} max"] = max(totals[f"{figure.name} max"], figure.value)
            last = time.monotonic()
        time.sleep(0.02)
    life.kill(life.children)
    life.check()
    totals["kills"] = life.killed
    totals["restarts"] = life.restarts
    return totals


def proof() -> dict[str, object]:
    """Soak, for ten minutes unless told otherwise."""
    chosen = options(__doc__, 1, _add_options)
    with folder("soak", str(chosen.seed)) as case:
        return {**soak(case, chosen), "seed": chosen.seed}


def _add_options(parser: Any) -> None:
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--rate", type=float, default=50, help="calls a second of each worker")
    parser.add_argument("--interval", type=float, default=30, help="seconds between two lines")
    parser.add_argument("--wait-max", type=int, default=1_000, help="p99.9 in milliseconds")


if __name__ == "__main__":
    main(proof)
