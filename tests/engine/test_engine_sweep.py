"""What a dead worker left is ended as its holds say; what a living one holds is its own."""

from __future__ import annotations

from pathlib import Path

import nodes
import pytest
from nodes import ALICE
from processes import Child, Pipe

from finomw.engine import charge, customers, ledger, records
from finomw.engine.engine import Engine
from finomw.engine.sweep import sweep
from finomw.engine.verify import verify
from finomw.money.entries import CallDetail
from finomw.types import EntryKind, OnCrash, UsageStatus, WorkerId


def hold_and_wait(pipe: Pipe, path: Path) -> None:
    """Hold in every way there is, tell, and wait to be killed."""
    engine = nodes.open_node(path)
    nodes.held(engine, 10, on_crash=OnCrash.SETTLE, flat=True)
    nodes.held(engine, 20)
    charge.start(engine, nodes.held(engine, 40))
    charge.start(engine, nodes.held(engine, 80, on_crash=OnCrash.SETTLE))
    nodes.settle(engine, nodes.held(engine, 5).hold, 5)
    pipe.send(engine.worker)
    pipe.recv()


def ended(engine: Engine) -> dict[int, tuple[str, CallDetail | None]]:
    """Return what became of the holds that were swept, by the amount of their last entry."""
    return {
        row.entry.amount: (row.entry.note, row.entry.call)
        for row in ledger.ledger(engine, ALICE, 100)
        if row.entry.note
    }


def check_outcome(engine: Engine, worker: int) -> None:
    note = f"worker {worker} died"

    def detail(usage: UsageStatus, **counts: int) -> CallDetail:
        return CallDetail(nodes.ROUTE, counts, usage, "v1", "", 0)

    assert ended(engine) == {
        -10: (note, detail(UsageStatus.KNOWN, requests=1)),
        20: (note, None),
        -40: (note, detail(UsageStatus.PARTIAL)),
        -80: (note, detail(UsageStatus.PARTIAL)),
    }
    account = customers.get_account(engine, ALICE)
    assert (account.balance, account.held, account.spent_total) == (1000 - 135, 0, 135)
    assert verify(engine).faults == ()


def test_a_killed_worker_s_holds_are_ended_as_they_say(path: Path, engine: Engine) -> None:
    own = nodes.held(engine, 100)
    child = Child(hold_and_wait, path)
    worker = child.receive()
    assert sweep(engine) == 0
    assert customers.get_account(engine, ALICE).held == 250
    child.kill()
    assert (path / "workers" / f"{worker}.lock").exists()
    assert sweep(engine) == 4
    assert charge.release(engine, own.hold).account.held == 0
    check_outcome(engine, worker)
    assert not (path / "workers" / f"{worker}.lock").exists()
    assert worker not in [slot.worker for slot in engine.control.slots()]
    assert sweep(engine) == 0


@pytest.mark.parametrize("lost", ["nothing", "control"])
def test_a_restart_ends_what_the_whole_node_left(path: Path, engine: Engine, lost: str) -> None:
    engine.close()
    child = Child(hold_and_wait, path)
    worker = child.receive()
    child.kill()
    if lost == "control":
        (path / "control").unlink()
    again = nodes.open_node(path)
    assert sweep(again) == 4
    check_outcome(again, worker)
    assert [p.name for p in (path / "workers").iterdir()] == [f"{again.worker}.lock"]
    again.close()


def test_a_closed_engine_s_open_holds_are_swept_by_another(path: Path, engine: Engine) -> None:
    nodes.held(engine, 10, on_crash=OnCrash.SETTLE)
    engine.close()
    again = nodes.open_node(path)
    assert sweep(again) == 1
    assert customers.get_account(again, ALICE).balance == 990
    again.close()


def test_a_worker_without_holds_is_forgotten(path: Path, engine: Engine) -> None:
    child = Child(only_open, path)
    worker = child.receive()
    child.kill()
    assert worker in [slot.worker for slot in engine.control.slots()]
    assert sweep(engine) == 0
    assert worker not in [slot.worker for slot in engine.control.slots()]
    assert [p.name for p in (path / "workers").iterdir()] == [f"{engine.worker}.lock"]


def only_open(pipe: Pipe, path: Path) -> None:
    pipe.send(nodes.open_node(path).worker)
    pipe.recv()


def test_two_sweepers_end_a_hold_once(
    path: Path, engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    child = Child(hold_and_wait, path)
    worker = child.receive()
    child.kill()
    with engine.store.read() as txn:
        found = engine.store.holds.of(txn, worker)
    assert sweep(engine) == 4
    monkeypatch.setattr(engine.store.holds, "of", lambda txn, of: found)
    monkeypatch.setattr(engine.store.holds, "workers", lambda txn: [worker])
    assert sweep(engine) == 0
    check_outcome(engine, worker)


def test_a_sweep_that_is_cut_off_is_finished_by_the_next(
    path: Path, engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    child = Child(hold_and_wait, path)
    worker = child.receive()
    child.kill()
    with monkeypatch.context() as patch:

        def die(*_: object) -> None:
            raise KeyboardInterrupt

        patch.setattr(records, "Release", die)
        with pytest.raises(KeyboardInterrupt):
            sweep(engine)
    assert sweep(engine) == 3
    check_outcome(engine, worker)


def test_a_killed_reader_s_snapshot_is_let_go(path: Path, engine: Engine) -> None:
    assert engine.store.forget_dead_readers() == 0
    for swept in (False, True):
        child = Child(read_and_wait, path)
        child.receive()
        child.kill()
        if swept:
            sweep(engine)
        assert engine.store.forget_dead_readers() == (0 if swept else 1)


def read_and_wait(pipe: Pipe, path: Path) -> None:
    engine = nodes.open_node(path)
    with engine.store.read():
        pipe.send("reading")
        pipe.recv()


def test_swept_money_is_entered_like_any_other(path: Path, engine: Engine) -> None:
    nodes.held(engine, 10)
    engine.close()
    again = nodes.open_node(path)
    sweep(again)
    newest = ledger.ledger(again, ALICE, 1)[0].entry
    assert (newest.kind, newest.amount) == (EntryKind.HOLD_RELEASE, 10)
    again.close()


def open_and_stop(pipe: Pipe, path: Path) -> None:
    """Become a worker, but stop between its lock and its slot."""
    engine = nodes.open_node(path)

    def wait(*_: object) -> None:
        pipe.send("no slot yet")
        pipe.recv()

    engine.workers.claim_slot = wait  # type: ignore[method-assign,assignment]
    pipe.send(engine.worker)


def test_the_lock_of_a_worker_that_died_before_it_had_a_slot_is_removed(
    path: Path, engine: Engine
) -> None:
    nodes.held(engine, 5)
    child = Child(open_and_stop, path)
    assert child.receive() == "no slot yet"
    own, unborn = path / "workers" / "1.lock", path / "workers" / "2.lock"
    # While it is opening, its lock is left alone, whether it has been taken yet or not.
    engine.workers.forget_unborn(engine.directory.start_lock)
    assert sorted(own.parent.iterdir()) == [own, unborn]
    child.kill()
    assert sweep(engine) == 0
    assert list(own.parent.iterdir()) == [own]


def test_a_lock_that_is_held_is_never_removed(path: Path, engine: Engine) -> None:
    nodes.held(engine, 5)
    lock = engine.workers.lock(WorkerId(9))
    sweep(engine)
    assert lock.path.exists()
    lock.close()
    sweep(engine)
    assert not lock.path.exists()
