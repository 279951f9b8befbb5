"""A fork waits until no other thread uses LMDB, so that the child can close what it inherited."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from finomw import limits
from finomw.store import gate
from finomw.store.env import Environment

pytestmark = pytest.mark.filterwarnings(
    "ignore:This process .* is multi-threaded:DeprecationWarning"
)


@pytest.fixture
def env(tmp_path: Path) -> Iterator[Environment]:
    env = Environment(tmp_path, limits.MIB)
    env.table("t")
    yield env
    env.close()


def fork(env: Environment) -> bool:
    """Fork a child that closes the environment and opens its own; say whether it could."""
    child = os.fork()
    if not child:
        env.close()
        own = Environment(env.directory, limits.MIB)
        with own.read() as txn:
            txn.id()
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


@pytest.mark.parametrize("kind", ["read", "write"])
def test_a_fork_waits_for_a_transaction_of_another_thread(env: Environment, kind: str) -> None:
    entered, leave = threading.Event(), threading.Event()

    def hold() -> None:
        with env.read() if kind == "read" else env.write():
            entered.set()
            leave.wait(60)

    done: list[bool] = []
    holder = threading.Thread(target=hold)
    forker = threading.Thread(target=lambda: done.append(fork(env)))
    holder.start()
    assert entered.wait(60)
    forker.start()
    while not env._gate._shut:
        pass
    assert done == []
    # Who comes now waits for the fork, and the fork for who was there before.
    late = threading.Thread(target=lambda: done.append(bool(env.forget_dead_readers())))
    late.start()
    leave.set()
    for thread in (holder, forker, late):
        thread.join(60)
    assert sorted(done) == [False, True]
    assert env._gate._inside == {}


def test_a_thread_may_fork_while_it_reads_itself(env: Environment) -> None:
    with env.read() as txn:
        assert fork(env)
        with env.read() as other:
            assert other.id() == txn.id()
    assert env._gate._inside == {}


def test_a_fork_does_not_wait_for_ever(env: Environment, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gate, "DRAIN_SECONDS", 0)
    entered, leave = threading.Event(), threading.Event()

    def hold() -> None:
        env._gate.leave(enter_and_wait())

    def enter_and_wait() -> int:
        thread = env._gate.enter()
        entered.set()
        leave.wait(60)
        return thread

    holder = threading.Thread(target=hold)
    holder.start()
    assert entered.wait(60)
    assert fork(env)
    leave.set()
    holder.join(60)
    assert env._gate._inside == {}


def test_threads_that_fork_at_the_same_time_all_come_through(env: Environment) -> None:
    done: list[bool] = []

    def work() -> None:
        for _ in range(5):
            with env.read():
                pass
            done.append(fork(env))

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert done == [True] * 20
