"""A worker ends its own holds that no live call claims, and never one that a call does."""

from __future__ import annotations

import threading
from datetime import timedelta
from pathlib import Path

import nodes
import pytest
from nodes import ALICE
from processes import Child, Pipe

from finomw.engine import charge, customers, ledger
from finomw.engine.engine import Engine
from finomw.engine.sweep import end_unclaimed, sweep
from finomw.engine.verify import verify
from finomw.errors import NotFound, RecordingFailed
from finomw.store import holds
from finomw.types import HoldId, Micros, OnCrash, Refusal, UsageStatus


def test_a_hold_is_claimed_before_there_is_a_row(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    apply = engine._apply
    seen: list[set[HoldId]] = []

    def applied(*args: object) -> object:
        seen.append(set(engine.claims))
        return apply(*args)  # type: ignore[arg-type]

    monkeypatch.setattr(engine, "_apply", applied)
    held = nodes.held(engine, 5)
    assert seen == [{held.hold}]
    assert engine.claims == {held.hold}


def test_a_hold_that_was_refused_or_failed_is_not_claimed(engine: Engine) -> None:
    def wrong(*_: object) -> Micros:
        raise ZeroDivisionError

    request = charge.HoldRequest(
        ALICE, nodes.KEY, nodes.ROUTE, wrong, {"n": 1}, 0, OnCrash.RELEASE, "v1"
    )
    assert nodes.hold(engine, 1001) is Refusal.EXHAUSTED
    with pytest.raises(ZeroDivisionError):
        charge.hold(engine, request)
    engine.control.fail()
    with pytest.raises(RecordingFailed):
        nodes.hold(engine, 5)
    assert engine.claims == set()


def test_a_claim_ends_with_the_hold_and_not_before(engine: Engine) -> None:
    settled, whole, released, open_ = (nodes.held(engine, 5) for _ in range(4))
    charge.start(engine, settled)
    nodes.settle(engine, settled.hold, 5)
    charge.settle_whole(engine, whole.hold, {}, UsageStatus.MISSING)
    charge.release(engine, released.hold)
    assert engine.claims == {open_.hold}
    engine.control.fail()
    for end in (charge.release, lambda *args: nodes.settle(*args, 5)):
        with pytest.raises(RecordingFailed):
            end(engine, open_.hold)
    assert engine.claims == {open_.hold}


def test_a_sweep_ends_what_was_given_up_as_it_ends_a_dead_worker_s(engine: Engine) -> None:
    kept = nodes.held(engine, 100)
    given_up = [
        nodes.held(engine, 10, on_crash=OnCrash.SETTLE, flat=True),
        nodes.held(engine, 20),
        nodes.held(engine, 40),
        nodes.held(engine, 80, on_crash=OnCrash.SETTLE),
    ]
    charge.start(engine, given_up[2])
    assert sweep(engine) == 0
    for held in given_up:
        charge.abandon(engine, held.hold)
    assert sweep(engine) == 4
    assert sweep(engine) == 0
    noted = [row.entry for row in ledger.ledger(engine, ALICE, 100) if row.entry.note]
    assert sorted(entry.amount for entry in noted) == [-80, -40, -10, 20]
    assert {entry.note for entry in noted} == {"no call claimed it"}
    account = customers.get_account(engine, ALICE)
    assert (account.balance, account.held) == (1000 - 130 - 100, 100)
    assert engine.claims == {kept.hold}
    with pytest.raises(NotFound):
        charge.release(engine, given_up[0].hold)
    charge.abandon(engine, given_up[0].hold)
    assert verify(engine).faults == ()


def test_only_the_process_itself_ends_its_own(path: Path, engine: Engine) -> None:
    child = Child(give_up, path)
    assert child.receive() == "gave up"
    nodes.held(engine, 7)
    assert sweep(engine) == 0
    assert customers.get_account(engine, ALICE).held == 12
    child.send()
    assert child.receive() == 1
    assert customers.get_account(engine, ALICE).held == 7
    child.finish()


def give_up(pipe: Pipe, path: Path) -> None:
    engine = nodes.open_node(path)
    charge.abandon(engine, nodes.held(engine, 5).hold)
    pipe.send("gave up")
    pipe.recv()
    pipe.send(end_unclaimed(engine))
    engine.close()


def test_an_explicit_hold_needs_no_claim(engine: Engine) -> None:
    expires = engine.clock.now() + timedelta(hours=1) // timedelta(microseconds=1)
    request = charge.HoldRequest(
        ALICE,
        nodes.KEY,
        nodes.ROUTE,
        5,
        {},
        0,
        OnCrash.RELEASE,
        "v1",
        reservation=charge.Reservation(expires),
    )
    held = charge.hold(engine, request)
    assert isinstance(held, charge.Held)
    assert engine.claims == set()
    assert sweep(engine) == 0
    assert nodes.settle(engine, held.hold, 5).charged == 5


def test_no_sweep_takes_a_hold_from_calls_under_way(engine: Engine) -> None:
    """Threads hold and settle as fast as they can, while another sweeps all the time."""
    stop = threading.Event()
    swept: list[int] = []
    failed: list[BaseException] = []

    def call() -> None:
        try:
            for _ in range(50):
                nodes.settle(engine, nodes.held(engine, 2, buffer=10**6).hold, 1)
        except BaseException as error:
            failed.append(error)
            raise

    def keep_sweeping() -> None:
        while not stop.is_set():
            swept.append(end_unclaimed(engine))

    sweeper = threading.Thread(target=keep_sweeping)
    callers = [threading.Thread(target=call) for _ in range(4)]
    for thread in (sweeper, *callers):
        thread.start()
    for thread in callers:
        thread.join()
    stop.set()
    sweeper.join()
    assert failed == []
    assert swept
    assert set(swept) == {0}
    account = customers.get_account(engine, ALICE)
    assert (account.balance, account.held) == (1000 - 200, 0)
    assert engine.claims == set()


def test_a_sweep_reads_no_row_of_what_is_claimed(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    for _ in range(100):
        nodes.held(engine, 1)

    def read(_: bytes) -> holds.HoldRow:
        raise AssertionError("a row was read")

    monkeypatch.setattr(holds, "_decode", read)
    assert end_unclaimed(engine) == 0
    assert len(engine.claims) == 100
