"""Who is stopped while it may hold the write lock is ended; who is slow is not."""

from __future__ import annotations

import logging
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import nodes
import pytest
from nodes import ALICE
from processes import PATIENCE_SECONDS, Child, Pipe

from finomw.engine import customers, grants
from finomw.engine.engine import Engine, close_engine, open_engine
from finomw.engine.sweep import sweep
from finomw.engine.verify import verify
from finomw.engine.watchdog import SAMPLES, Processes, Watchdog
from finomw.journal.control import Control, Slot
from finomw.journal.files import Files
from finomw.journal.workers import ProcessStatus, process_status, start_time
from finomw.store.env import Txn
from finomw.testing.clock import ManualClock
from finomw.types import Refusal, WorkerId

QUARTER = 250_000
"""Microseconds between two samples."""
OLD, OTHER = 1001, 1002
"""Processes that are not there."""


class Made(Processes):
    """Processes as a test says they are, and whom the watchdog ended."""

    def __init__(self) -> None:
        self.states: dict[int, ProcessStatus] = {}
        self.asked: list[int] = []
        self.ended: list[int] = []
        self.allowed = True

    def status(self, pid: int) -> ProcessStatus | None:
        self.asked.append(pid)
        return self.states.get(pid)

    def end(self, pid: int, started: int) -> bool:
        if not self.allowed:
            raise PermissionError
        self.ended.append(pid)
        self.states[pid] = ProcessStatus("Z", started)
        return True


class Site:
    """A control file with two workers, and a watchdog in a third process."""

    def __init__(self, path: Path) -> None:
        self.control = Control(Files(), path)
        self.clock = ManualClock()
        self.processes = Made()
        self.changes = 0
        self.waits = 7
        self.watchdog = Watchdog(
            self.control, lambda: self.changes, lambda: self.waits, self.clock, self.processes
        )
        self.old, self.other = self.worker(OLD), self.worker(OTHER)

    def worker(self, pid: int) -> Slot:
        slot = self.control.add_slot()
        slot.claim(WorkerId(slot.index + 1), pid, 50 + pid, 0)
        self.says(pid, "S")
        return slot

    def says(self, pid: int, state: str, late: int = 0) -> None:
        self.processes.states[pid] = ProcessStatus(state, 50 + pid + late)

    def look(self, times: int = 1) -> list[int]:
        """Take samples; return who was ended by now."""
        for _ in range(times):
            self.clock.advance(QUARTER)
            self.watchdog.look()
        return self.processes.ended

    def stop(self, slot: Slot, state: str = "T") -> None:
        """Let a worker be stopped with its mark set."""
        slot.mark_write(slot.pid)
        self.says(slot.pid, state)


ENOUGH = 7
"""Samples after which a stopped process is ended: one that finds the mark, then over a second."""


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return Site(tmp_path / "control")


@pytest.mark.parametrize("state", ["T", "t"])
def test_who_is_stopped_for_over_a_second_while_others_wait_is_ended(
    site: Site, state: str, caplog: pytest.LogCaptureFixture
) -> None:
    site.stop(site.old, state)
    assert site.look(ENOUGH - 1) == []
    with caplog.at_level(logging.ERROR, "finomw"):
        assert site.look() == [OLD]
        assert site.look(20) == [OLD]
    assert [record.message for record in caplog.records] == [
        f"process {OLD} was stopped while it may hold the write lock and others waited, so it was "
        "ended"
    ]


@pytest.mark.parametrize("state", ["R", "S", "D", "Z", "X", "I"])
def test_who_is_slow_or_waits_for_the_disk_or_is_dead_is_not_ended(site: Site, state: str) -> None:
    site.stop(site.old, state)
    assert site.look(50) == []


def test_who_is_stopped_outside_of_a_write_is_not_even_looked_at(site: Site) -> None:
    site.says(OLD, "T")
    assert site.look(50) == []
    assert site.processes.asked == []


def test_the_first_sample_of_a_mark_asks_for_no_process(site: Site) -> None:
    for at in range(1, 50):
        site.old.mark_write(at)
        assert site.look() == []
    assert site.processes.asked == []


def test_while_nobody_waits_nobody_is_ended(site: Site) -> None:
    site.waits = 0
    site.stop(site.old)
    assert site.look(50) == []
    site.other.mark_write(9)
    assert site.look(2) == [OLD]


def test_one_that_is_stopped_itself_does_not_wait(site: Site) -> None:
    site.waits = 0
    site.stop(site.old)
    site.stop(site.other)
    assert site.look(50) == []


@pytest.mark.parametrize("dead", ["Z", "gone", "reused"])
def test_one_that_has_died_does_not_wait(site: Site, dead: str) -> None:
    site.waits = 0
    site.stop(site.old)
    site.other.mark_write(9)
    if dead == "gone":
        del site.processes.states[OTHER]
    else:
        site.says(OTHER, "Z" if dead == "Z" else "S", late=int(dead == "reused"))
    assert site.look(50) == []


def test_one_that_has_only_now_begun_to_write_does_not_wait(site: Site) -> None:
    site.stop(site.old)
    for at in range(1, 50):
        site.waits = at
        assert site.look() == []


def test_a_commit_by_anybody_begins_anew(site: Site) -> None:
    site.stop(site.old)
    for _ in range(10):
        site.look(ENOUGH - 1)
        site.changes += 1
    assert site.look(ENOUGH - 1) == []
    assert site.look() == [OLD]


def test_any_sign_of_life_begins_anew(site: Site) -> None:
    site.stop(site.old)
    site.look(ENOUGH - 1)
    site.says(OLD, "R")
    site.look()
    site.says(OLD, "T")
    site.look(ENOUGH - 2)
    site.old.mark_write(99)
    assert site.look(ENOUGH - 1) == []
    assert site.look() == [OLD]


def test_samples_that_come_late_are_still_enough_of_them(site: Site) -> None:
    site.stop(site.old)
    for count in range(SAMPLES):
        site.clock.advance(10 * QUARTER)
        assert site.look() == [], count
    assert site.look() == [OLD]


def test_another_process_with_the_same_id_is_left_alone(site: Site) -> None:
    """It came later, or lives in another pid namespace."""
    site.stop(site.old)
    site.says(OLD, "T", late=1)
    assert site.look(50) == []


def test_a_process_that_cannot_be_seen_is_left_alone(site: Site) -> None:
    site.stop(site.old)
    del site.processes.states[OLD]
    assert site.look(50) == []


def test_of_two_that_are_stopped_the_one_that_began_first_is_ended_first(site: Site) -> None:
    site.stop(site.other)
    site.stop(site.old)
    site.other.mark_write(OLD - 1)
    assert site.look(ENOUGH) == [OTHER]
    assert site.look(ENOUGH - 1) == [OTHER]
    assert site.look() == [OTHER, OLD]


def test_where_the_first_may_not_be_ended_it_is_told_once_and_the_next_is_tried(
    site: Site, caplog: pytest.LogCaptureFixture
) -> None:
    site.stop(site.old)
    site.processes.allowed = False
    with caplog.at_level(logging.ERROR, "finomw"):
        assert site.look(50) == []
    [record] = caplog.records
    assert record.message.startswith(f"process {OLD} was stopped")
    assert record.message.endswith("it may not be ended from here: continue or kill it")


def test_own_marks_are_nobody_else_s(site: Site) -> None:
    own = site.worker(os.getpid())
    own.mark_write(5)
    assert site.look(50) == []
    assert site.processes.asked == []


def test_who_opens_the_directory_is_watched_like_a_worker(site: Site) -> None:
    opener = site.control.opener()
    opener.claim(WorkerId(0), OLD, 50 + OLD, 0)
    site.stop(opener)
    assert site.control.slots()[0].write_mark == 0
    assert site.look(ENOUGH) == [OLD]
    assert opener.index not in [slot.index for slot in site.control.slots()]


# Real processes on a real directory.


@pytest.fixture
def start() -> Iterator[Callable[..., Child]]:
    """Return what starts a process; a stopped one would outlive a failed test."""
    children: list[Child] = []

    def make(function: Callable[..., None], *args: object) -> Child:
        children.append(Child(function, *args))
        return children[-1]

    yield make
    for started in children:
        started.end()


@pytest.fixture
def node(path: Path) -> Path:
    engine = nodes.open_node(path)
    customers.add_customer(engine, ALICE, nodes.PLAN)
    grants.grant(engine, ALICE, 1000, "test", "first")
    engine.close()
    return path


def stop(child: Child) -> None:
    """Stop a child, and return when it has stopped."""
    os.kill(child.pid, signal.SIGSTOP)
    until(lambda: (process_status(child.pid) or ProcessStatus("", 0)).stopped)


def until(condition: Callable[[], object]) -> None:
    """Return when something is true; it is an error if that takes too long."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not condition():
        assert time.monotonic() < deadline, "this took too long"
        os.sched_yield()


def looks(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return a list that grows with each sample of the engine's watchdog from now on."""
    seen: list[int] = []
    look = engine._watchdog.look

    def counted() -> None:
        look()
        seen.append(1)

    monkeypatch.setattr(engine._watchdog, "look", counted)
    return seen


def test_only_the_very_process_is_killed_and_only_while_it_is_stopped(
    start: Callable[..., Child],
) -> None:
    child = start(idle)
    child.receive()
    processes, started = Processes(), start_time(child.pid)
    status = process_status(child.pid)
    assert status is not None
    assert (status.started, status.stopped, status.dead) == (started, False, False)
    assert not processes.end(child.pid, started)
    stop(child)
    assert not processes.end(child.pid, started + 1)
    assert processes.end(child.pid, started)
    child.kill()
    assert not processes.end(child.pid, started)
    assert process_status(child.pid) is None
    assert start_time(child.pid) == 0


def idle(pipe: Pipe) -> None:
    pipe.send("ready")
    pipe.recv()


def park(pipe: Pipe, path: Path, where: str) -> None:
    """Become a worker, and do as told inside a write transaction, or outside of any."""
    engine = open_engine(path)
    nodes.held(engine, 40)

    def inside(_: Txn) -> Refusal:
        pipe.send(engine.worker)
        pipe.recv()
        return Refusal.HELD

    if where == "inside":
        engine.decide(inside)
    else:
        inside(None)  # type: ignore[arg-type]
    pipe.send(nodes.hold(engine, 1) is not Refusal.HELD)
    pipe.recv()


def test_a_worker_stopped_inside_a_write_is_ended_and_the_others_go_on(
    node: Path,
    start: Callable[..., Child],
    caplog: pytest.LogCaptureFixture,
    capsys: pytest.CaptureFixture[str],
) -> None:
    engine = open_engine(node)
    nodes.held(engine, 5)
    child = start(park, node, "inside")
    worker = child.receive()
    stop(child)
    began = time.monotonic()
    with caplog.at_level(logging.ERROR, "finomw"):
        nodes.held(engine, 20)
    took = time.monotonic() - began
    child.kill()
    assert f"process {child.pid} was stopped" in caplog.text
    assert caplog.text.count("was stopped") == 1
    assert sweep(engine) == 1
    account = customers.get_account(engine, ALICE)
    assert (account.balance, account.held) == (1000 - 25, 25)
    assert verify(engine).faults == ()
    assert worker not in [slot.worker for slot in engine.control.slots()]
    close_engine(engine)
    with capsys.disabled():
        print(f"\n  a stopped writer delayed the next one by {took:.2f} s")


@pytest.mark.parametrize("writes", [False, True])
def test_a_process_that_only_now_opens_the_directory_gets_out_too(
    node: Path, start: Callable[..., Child], writes: bool
) -> None:
    """So does the command line: opening LMDB's tables takes the write lock."""
    parked = start(park, node, "inside")
    parked.receive()
    stop(parked)
    late = start(open_late, node, writes)
    assert late.receive() == (1000 - 40, 40)
    parked.kill()
    late.finish()
    engine = open_engine(node)
    sweep(engine)
    assert customers.get_account(engine, ALICE).balance == 1000 - 3 * writes
    assert verify(engine).faults == ()
    close_engine(engine)


def open_late(pipe: Pipe, path: Path, writes: bool) -> None:
    engine = open_engine(path)
    account = customers.get_account(engine, ALICE)
    pipe.send((account.balance, account.held))
    if writes:
        nodes.settle(engine, nodes.held(engine, 3).hold, 3)
    close_engine(engine)


def dawdle(pipe: Pipe, path: Path, seconds: int) -> None:
    """Hold the write lock for long, at work."""
    engine = open_engine(path)
    end = time.monotonic() + seconds

    def slow(_: Txn) -> Refusal:
        pipe.send("inside")
        while time.monotonic() < end:
            pass
        return Refusal.HELD

    engine.decide(slow)
    pipe.send(nodes.hold(engine, 1) is not Refusal.HELD)
    pipe.recv()


def test_a_slow_writer_is_waited_for(
    node: Path, start: Callable[..., Child], caplog: pytest.LogCaptureFixture
) -> None:
    engine = open_engine(node)
    nodes.held(engine, 5)
    child = start(dawdle, node, 3)
    child.receive()
    nodes.held(engine, 20)
    assert child.receive() is True
    child.send()
    child.finish()
    assert caplog.text == ""
    close_engine(engine)


@pytest.mark.parametrize(("where", "writes"), [("outside", True), ("inside", False)])
def test_a_stopped_process_that_keeps_nobody_waiting_is_left_alone(
    node: Path,
    start: Callable[..., Child],
    monkeypatch: pytest.MonkeyPatch,
    where: str,
    writes: bool,
) -> None:
    engine = open_engine(node)
    nodes.held(engine, 5)
    seen = looks(engine, monkeypatch)
    child = start(park, node, where)
    child.receive()
    stop(child)

    def enough() -> bool:
        if writes:
            nodes.settle(engine, nodes.held(engine, 1).hold, 0)
        return len(seen) > 2 * ENOUGH

    until(enough)
    os.kill(child.pid, signal.SIGCONT)
    child.send()
    assert child.receive() is True
    child.send()
    child.finish()
    close_engine(engine)


def test_a_worker_marks_its_first_write_too(node: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """When it opens it has no slot yet; the opener's says who writes."""
    engine = open_engine(node)
    opener = engine.control.opener()
    marks: list[tuple[int, bool]] = []
    apply = engine._apply

    def seen(*args: object) -> object:
        marks.append((opener.pid, opener.write_mark > 0))
        return apply(*args)  # type: ignore[arg-type]

    monkeypatch.setattr(engine, "_apply", seen)
    assert engine._waits() == 0
    assert engine.worker
    assert marks == [(os.getpid(), True)]
    assert (opener.write_mark, engine._waits()) == (0, 0)
    close_engine(engine)


def test_a_stopped_engine_has_no_watchdog(node: Path) -> None:
    def watchdogs() -> int:
        return sum(thread.name == "finomw-watchdog" for thread in threading.enumerate())

    before = watchdogs()
    engine = open_engine(node)
    customers.get_account(engine, ALICE)
    assert watchdogs() == before
    nodes.held(engine, 1)
    assert watchdogs() == before + 1
    close_engine(engine)
    assert watchdogs() == before
