"""Forks, and many openings: of one directory, of two, under any of its names, again and again."""

from __future__ import annotations

import multiprocessing
import os
import sys
import threading
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import nodes
import pytest
from nodes import ALICE
from processes import Child, Pipe

from finomw import Billing
from finomw.config.load import parse
from finomw.engine import customers, grants
from finomw.engine import engine as engine_module
from finomw.engine.engine import Engine, close_engine, open_engine
from finomw.engine.verify import verify

FORKS = 12
CONFIG = """
data: node
plans: {default: {prices: {job: {seconds: {usd: "0.000001"}}}}}
routes: [{match: GET /job, name: job, meter: {seconds: 1}}]
"""


@pytest.fixture
def node(path: Path) -> Path:
    make(path)
    return path


def make(path: Path) -> None:
    engine = nodes.open_node(path)
    customers.add_customer(engine, ALICE, nodes.PLAN)
    grants.grant(engine, ALICE, 10**6, "test", "first")
    engine.close()


def spent(path: Path) -> int:
    """Return what was charged in all, having proved that it adds up and that nothing is held."""
    engine = open_engine(path)
    account = customers.get_account(engine, ALICE)
    assert verify(engine).faults == ()
    assert (account.balance, account.held) == (10**6 - account.spent_total, 0)
    close_engine(engine)
    return account.spent_total


def charge(engine: Engine, amount: int) -> None:
    nodes.settle(engine, nodes.held(engine, amount).hold, amount)


def leave(code: int = 0) -> None:
    """End a forked child as an application may, through everything that its parent had open."""
    sys.exit(code)


def fork_by_os(work: Callable[[], None]) -> None:
    pid = os.fork()
    if not pid:
        work()
        leave()
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


def fork_by_multiprocessing(work: Callable[[], None]) -> None:
    process = multiprocessing.get_context("fork").Process(target=work)
    process.start()
    process.join()
    assert process.exitcode == 0


def serve_and_fork(pipe: Pipe, path: Path, way: Callable[[Callable[[], None]], None]) -> None:
    """Charge in two threads all the time, and fork children that charge through their own."""
    multiprocessing.current_process()._config["daemon"] = False  # type: ignore[attr-defined]
    engine = open_engine(path)
    stop = threading.Event()
    charged = [0, 0]

    def serve(which: int) -> None:
        while not stop.is_set():
            charge(engine, 1)
            charged[which] += 1
            engine.flush()

    def work() -> None:
        own = open_engine(path)
        charge(own, 7)
        close_engine(own)

    threads = [threading.Thread(target=serve, args=(which,)) for which in range(2)]
    try:
        for thread in threads:
            thread.start()
        for _ in range(FORKS):
            way(work)
        stop.set()
        for thread in threads:
            thread.join()
        charge(engine, 3)
    finally:
        # A child that ends by an exception passes here as well.
        close_engine(engine)
    pipe.send(sum(charged))


@pytest.mark.parametrize("way", [fork_by_os, fork_by_multiprocessing])
def test_a_worker_forks_while_it_serves(
    path: Path, way: Callable[[Callable[[], None]], None]
) -> None:
    nodes.make(path.with_name("roomy"), state_size=32 * nodes.limits.MIB)
    path = path.with_name("roomy")
    make(path)
    child = Child(serve_and_fork, path, way)
    charged = child.receive()
    child.finish()
    assert charged > 0
    assert spent(path) == charged + FORKS * 7 + 3
    assert list((path / "workers").iterdir()) == []


def test_a_child_of_a_thread_that_is_opening_can_open(node: Path) -> None:
    child = Child(fork_under_the_lock, node)
    assert child.receive() == "opened"
    child.finish()


def fork_under_the_lock(pipe: Pipe, path: Path) -> None:
    with engine_module._sharing:
        pid = os.fork()
        if not pid:
            close_engine(open_engine(path))
            pipe.send("opened")
            os._exit(0)
        assert os.waitpid(pid, 0)[1] == 0


def test_explicit_holds_made_before_a_fork_are_settled_after_it(node: Path) -> None:
    child = Child(fork_with_billing, node)
    assert child.receive() == 5
    child.finish()
    assert spent(node) == 5


def fork_with_billing(pipe: Pipe, path: Path) -> None:
    with Billing(parse(CONFIG, path.parent)) as billing:
        held = billing.hold("alice", "job", {"seconds": 10}, timedelta(hours=1))
        pid = os.fork()
        if not pid:
            pipe.send(billing.settle(held.hold, {"seconds": 5}))
            leave()
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
        assert billing.settle(held.hold, {"seconds": 5}) == 5


def test_a_directory_is_one_under_all_its_names(
    node: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    link = node.with_name("link")
    link.symlink_to(node)
    monkeypatch.chdir(node.parent)
    names = [node, Path("node"), Path("./link"), link, node / ".." / "node", str(node)]
    engines = [open_engine(name) for name in names]
    assert len(set(engines)) == 1
    for engine in engines:
        charge(engine, 1)
        close_engine(engine)
    assert spent(node) == len(names)


def test_two_directories_in_one_process_are_apart(node: Path) -> None:
    other = nodes.make(node.with_name("other"))
    make(other)
    first, second = open_engine(node), open_engine(other)
    held = nodes.held(first, 5)
    charge(second, 7)
    second.control.fail()
    nodes.settle(first, held.hold, 5)
    assert (first.health().failed, second.health().failed) == (False, True)
    close_engine(second)
    charge(first, 2)
    close_engine(first)
    assert (spent(node), spent(other)) == (7, 7)


def test_a_process_opens_and_closes_as_often_as_it_likes(node: Path) -> None:
    def resources() -> tuple[int, int, int]:
        maps = Path("/proc/self/maps").read_text().count(str(node))
        return len(os.listdir("/proc/self/fd")), maps, threading.active_count()

    before = resources()
    for _ in range(200):
        engine = open_engine(node)
        charge(engine, 1)
        close_engine(engine)
    assert resources() == before
    assert list((node / "workers").iterdir()) == []
    assert spent(node) == 200
