"""Many processes and threads on one directory: every sum exact, nobody over the limit."""

from __future__ import annotations

import os
import signal
import threading
from pathlib import Path

import nodes
import pytest
from nodes import ALICE
from processes import Child, Pipe

from finomw.engine import customers, grants
from finomw.engine.engine import Engine, close_engine, open_engine
from finomw.engine.sweep import sweep
from finomw.engine.verify import verify
from finomw.errors import EngineClosed
from finomw.types import Refusal


def hold_settle_many(pipe: Pipe, path: Path, calls: int) -> None:
    pipe.send("ready")
    pipe.recv()
    engine = nodes.open_node(path)
    for number in range(calls):
        nodes.settle(engine, nodes.held(engine, 2 + number % 3, buffer=10**6).hold, number % 4)
    assert engine.flush() >= engine.store.tail().end - nodes.SEGMENT
    pipe.send(engine.worker)
    engine.close()


def test_processes_that_open_in_the_same_instant_agree_on_everything(path: Path) -> None:
    setup = nodes.open_node(path)
    customers.add_customer(setup, ALICE, nodes.PLAN)
    grants.grant(setup, ALICE, 10**6, "test", "first")
    setup.close()
    children = [Child(hold_settle_many, path, 50) for _ in range(8)]
    for child in children:
        assert child.receive() == "ready"
    for child in children:
        child.send("go")
    workers = [child.receive() for child in children]
    for child in children:
        child.finish()
    assert sorted(workers) == list(range(2, 10))
    engine = nodes.open_node(path)
    spent = 8 * sum(number % 4 for number in range(50))
    account = customers.get_account(engine, ALICE)
    assert (account.balance, account.held, account.spent_total) == (10**6 - spent, 0, spent)
    assert account.blocked_at is None
    checked = verify(engine)
    assert checked.faults == ()
    assert checked.records == 1 + 2 + 8 * (1 + 2 * 50)
    engine.close()


def hold_all(pipe: Pipe, path: Path, amount: int, tries: int) -> None:
    engine = nodes.open_node(path)
    assert engine.worker
    pipe.send("ready")
    pipe.recv()
    pipe.send([nodes.hold(engine, amount) for _ in range(tries)])
    pipe.recv()


def test_four_processes_hold_exactly_what_the_balance_covers(path: Path, engine: Engine) -> None:
    children = [Child(hold_all, path, 10, 40) for _ in range(4)]
    for child in children:
        child.receive()
    for child in children:
        child.send("go")
    done = [result for child in children for result in child.receive()]
    assert len([result for result in done if result is not Refusal.HELD]) == 100
    assert len(set(map(str, done))) == 101
    account = customers.get_account(engine, ALICE)
    assert (account.balance, account.held) == (0, 1000)
    for child in children:
        child.kill()
    assert sweep(engine) == 100
    assert customers.get_account(engine, ALICE).balance == 1000
    assert verify(engine).faults == ()


@pytest.mark.parametrize(("balance", "amount", "passes"), [(1000, 10, 100), (500, 75, 6)])
def test_one_process_holds_exactly_what_the_balance_covers(
    path: Path, balance: int, amount: int, passes: int
) -> None:
    engine = nodes.open_node(path)
    customers.add_customer(engine, ALICE, nodes.PLAN)
    grants.grant(engine, ALICE, balance, "test", "first")
    done = [nodes.hold(engine, amount) for _ in range(passes + 14)]
    assert [isinstance(result, Refusal) for result in done] == [False] * passes + [True] * 14
    assert set(done[passes:]) == {Refusal.HELD}
    for result in done[:passes]:
        assert not isinstance(result, Refusal)
        nodes.settle(engine, result.hold, amount)
    assert nodes.hold(engine, amount) is Refusal.EXHAUSTED
    assert customers.get_account(engine, ALICE).balance == balance - passes * amount
    engine.close()


def test_twenty_threads_that_hold_75_of_500_get_six(path: Path) -> None:
    engine = nodes.open_node(path)
    customers.add_customer(engine, ALICE, nodes.PLAN)
    grants.grant(engine, ALICE, 500, "test", "first")
    barrier, done = threading.Barrier(20), []

    def call() -> None:
        barrier.wait()
        done.append(nodes.hold(engine, 75))

    threads = [threading.Thread(target=call) for _ in range(20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(done) == 20
    assert len([result for result in done if not isinstance(result, Refusal)]) == 6
    account = customers.get_account(engine, ALICE)
    assert (account.balance, account.held) == (50, 450)
    assert verify(engine).faults == ()
    engine.close()


def churn(pipe: Pipe, path: Path) -> None:
    """Hold and settle until killed, telling what is durable."""
    engine = nodes.open_node(path)
    settled = 0
    while True:
        for _ in range(20):
            held = nodes.held(engine, 2, buffer=10**6)
            nodes.settle(engine, held.hold, 1)
            settled += 1
        engine.flush()
        pipe.send(settled)


@pytest.mark.parametrize("rebuilds", [False, True])
def test_workers_killed_at_work_lose_nothing_that_was_durable(path: Path, rebuilds: bool) -> None:
    setup = nodes.open_node(path)
    customers.add_customer(setup, ALICE, nodes.PLAN)
    grants.grant(setup, ALICE, 10**6, "test", "first")
    setup.close()
    acknowledged = 0
    for count in (3, 5, 8):
        children = [Child(churn, path) for _ in range(2)]
        last = [0, 0]
        for _ in range(count):
            last = [child.receive() for child in children]
        for child in children:
            child.kill()
        acknowledged += sum(last)
        if rebuilds:
            (path / "control").unlink()
        engine = nodes.open_node(path)
        assert sweep(engine) <= 2
        account = customers.get_account(engine, ALICE)
        assert account.spent_total >= acknowledged
        acknowledged = account.spent_total
        assert account.balance == 10**6 - acknowledged
        assert account.held == 0
        assert verify(engine).faults == ()
        engine.close()


def test_a_forked_child_opens_its_own_and_the_parent_s_goes_on(path: Path) -> None:
    engine = open_engine(path)
    customers.add_customer(engine, ALICE, nodes.PLAN)
    grants.grant(engine, ALICE, 1000, "test", "first")
    child = Child(run_forked, path)
    worker = child.receive()
    child.finish()
    assert worker == 3
    nodes.settle(engine, nodes.held(engine, 5).hold, 5)
    assert customers.get_account(engine, ALICE).balance == 1000 - 10
    assert verify(engine).faults == ()
    close_engine(engine)


def refusals(engine: Engine) -> list[str]:
    found = []
    for use in (
        lambda: nodes.hold(engine, 1),
        lambda: customers.get_account(engine, ALICE),
        engine.flush,
        engine.tail,
        engine.durable,
        engine.health,
        lambda: engine.store,
        engine.prepare_next_segment,
    ):
        try:
            use()
        except EngineClosed:
            found.append("closed")
    return found


def run_forked(pipe: Pipe, path: Path) -> None:
    """Open, fork, and try both engines in the child, then the old one in the parent."""
    engine = open_engine(path)
    assert engine.worker == 2
    pid = os.fork()
    if pid == 0:
        assert refusals(engine) == ["closed"] * 8
        own = open_engine(path)
        assert own is not engine
        nodes.settle(own, nodes.held(own, 5).hold, 5)
        pipe.send(own.worker)
        close_engine(own)
        engine.close()
        os._exit(0)
    assert os.waitpid(pid, 0)[1] == 0
    assert engine.worker == 2
    close_engine(engine)


def test_an_engine_not_yet_a_worker_does_not_become_one_in_a_forked_child(path: Path) -> None:
    child = Child(fork_before_working, path)
    assert child.receive() == ["closed"] * 8
    child.finish()
    engine = nodes.open_node(path)
    assert engine.worker == 1
    engine.close()


def fork_before_working(pipe: Pipe, path: Path) -> None:
    engine = open_engine(path)
    pid = os.fork()
    if pid == 0:
        pipe.send(refusals(engine))
        os._exit(0)
    assert os.waitpid(pid, 0)[1] == 0
    close_engine(engine)


def test_a_child_that_outlives_its_parent_does_not_keep_it_alive(
    path: Path, engine: Engine
) -> None:
    child = Child(fork_and_die, path)
    worker, grandchild = child.receive()
    child.kill()
    try:
        assert not engine.workers.alive(worker)
        assert sweep(engine) == 1
    finally:
        os.kill(grandchild, signal.SIGKILL)


def fork_and_die(pipe: Pipe, path: Path) -> None:
    engine = nodes.open_node(path)
    nodes.held(engine, 5)
    ready, tell = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.write(tell, b"!")
        signal.pause()
    os.read(ready, 1)
    pipe.send((engine.worker, pid))
    pipe.recv()


def test_a_worker_marks_its_slot_while_it_may_hold_the_write_lock(engine: Engine) -> None:
    assert engine.worker == 1
    [slot] = engine.control.slots()
    engine.clock.advance(5)
    seen: list[int] = []

    def decide(_: object) -> Refusal:
        seen.append(slot._get(5))
        return Refusal.HELD

    assert engine.decide(decide) is Refusal.HELD
    assert seen == [5_000]
    assert slot._get(5) == 0
