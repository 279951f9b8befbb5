"""The story of a call's money, step by step, and that a step is whole or did not happen."""

from __future__ import annotations

from pathlib import Path

import nodes
import pytest
from nodes import ALICE, SEGMENT

from finomw import limits
from finomw.engine import charge, customers, grants, ledger, records
from finomw.engine.engine import Engine
from finomw.engine.policy import BelowZero
from finomw.engine.verify import verify
from finomw.errors import InvalidValue, InvariantBroken, NotFound, RecordingFailed
from finomw.journal.writer import Writer
from finomw.money.account import After
from finomw.money.entries import CALL_SOURCE, CallDetail, Entry
from finomw.store.meta import Meta
from finomw.testing.files import FaultyFiles
from finomw.types import (
    CustomerId,
    EntryKind,
    Fund,
    HoldId,
    Refusal,
    UsageStatus,
)


def entries(engine: Engine) -> list[Entry]:
    return [row.entry for row in ledger.ledger(engine, ALICE, 100)][::-1]


def test_a_settled_call_leaves_three_entries_that_name_it(engine: Engine) -> None:
    held = nodes.held(engine, 100)
    ended = nodes.settle(engine, held.hold, 30)
    at = engine.clock.now()

    def entry(kind: EntryKind, amount: int, call: CallDetail | None = None) -> Entry:
        source_id = f"{held.hold}/1/{kind.name.lower()}/wallet"
        return Entry(kind, Fund.WALLET, amount, CALL_SOURCE, source_id, at, call=call)

    detail = CallDetail(nodes.ROUTE, {"requests": 1}, UsageStatus.KNOWN, "v1", "", 0)
    assert entries(engine)[1:] == [
        entry(EntryKind.HOLD, -100),
        entry(EntryKind.HOLD_RELEASE, 100),
        entry(EntryKind.SETTLEMENT, -30, detail),
    ]
    assert ended == charge.Ended(30, After(970, 0, None, 0, 30), engine.tail())
    assert held.end < ended.end


def test_a_released_call_costs_nothing(engine: Engine) -> None:
    held = nodes.held(engine, 100)
    assert charge.release(engine, held.hold, "app raised").account == After(1000, 0, None)
    assert entries(engine)[-1].note == "app raised"


def test_a_call_of_nothing_leaves_only_its_settlement(engine: Engine) -> None:
    nodes.settle(engine, nodes.held(engine, 0).hold, 0)
    assert [e.kind for e in entries(engine)] == [EntryKind.GRANT, EntryKind.SETTLEMENT]
    assert charge.release(engine, nodes.held(engine, 0).hold).account == After(1000, 0, None)
    assert len(entries(engine)) == 2


def test_a_price_above_the_hold_is_charged_whole_and_marked(engine: Engine) -> None:
    held, other = nodes.held(engine, 100), nodes.held(engine, 800)
    ended = nodes.settle(engine, held.hold, 1_100)
    assert ended.account == After(-900, 800, engine.clock.now(), 0, 1_100)
    call = entries(engine)[-1].call
    assert call is not None
    assert call.overrun == 1_000
    assert nodes.hold(engine, 0) is Refusal.BLOCKED
    assert nodes.settle(engine, other.hold, 5).account.balance == -105
    grants.grant(engine, ALICE, 105, "test", "exactly zero")
    assert nodes.hold(engine, 1) is Refusal.BLOCKED
    grants.grant(engine, ALICE, 1, "test", "above zero")
    assert nodes.held(engine, 1).amount == 1


def test_money_that_is_held_counts_when_a_grant_clears_the_mark(engine: Engine) -> None:
    held, _ = nodes.held(engine, 100), nodes.held(engine, 800)
    nodes.settle(engine, held.hold, 1_100)
    granted = grants.grant(engine, ALICE, 101, "test", "enough with what is held")
    assert granted.account.balance == -799
    assert customers.get_account(engine, ALICE).blocked_at is None
    assert nodes.hold(engine, 1) is Refusal.HELD


def test_a_hold_on_the_buffer_does_not_block(engine: Engine) -> None:
    held = nodes.held(engine, 1_500, buffer=500)
    assert customers.get_account(engine, ALICE).balance == -500
    assert nodes.hold(engine, 1, buffer=500) is Refusal.HELD
    assert nodes.settle(engine, held.hold, 1_000).account == After(0, 0, None, 0, 1_000)
    assert nodes.hold(engine, 1, buffer=500) is Refusal.EXHAUSTED
    assert nodes.held(engine, 0).amount == 0


def test_an_own_buffer_replaces_the_configured_one(engine: Engine) -> None:
    bob = CustomerId("bob")
    customers.add_customer(engine, bob, nodes.PLAN, buffer=0)
    grants.grant(engine, bob, 10, "test", "1")
    assert nodes.hold(engine, 11, bob, buffer=1_000) is Refusal.EXHAUSTED


def test_a_refusal_changes_nothing(engine: Engine) -> None:
    nodes.held(engine, 600)
    before = nodes.dump(engine)
    assert nodes.hold(engine, 500) is Refusal.HELD
    assert nodes.hold(engine, 1_001) is Refusal.EXHAUSTED
    assert nodes.hold(engine, 1, CustomerId("nobody")) is Refusal.UNKNOWN_CUSTOMER
    assert nodes.dump(engine) == before


def test_a_hold_ends_once(engine: Engine) -> None:
    held = nodes.held(engine, 10)
    nodes.settle(engine, held.hold, 5)
    before = nodes.dump(engine)
    with pytest.raises(NotFound, match=f"hold {held.hold} is not open"):
        nodes.settle(engine, held.hold, 5)
    with pytest.raises(NotFound):
        charge.release(engine, held.hold)
    with pytest.raises(NotFound):
        charge.start(engine, held)
    with pytest.raises(InvalidValue, match="not one of this node"):
        charge.release(engine, HoldId("other-1-1"))
    assert nodes.dump(engine) == before


def test_a_start_is_recorded_with_the_hold(engine: Engine) -> None:
    held = nodes.held(engine, 10)
    assert charge.start(engine, held) == engine.tail() > held.end
    with engine.store.read() as txn:
        assert engine.store.holds.need(txn, held.hold)[1].started


@pytest.mark.parametrize("amount", [-1, limits.AMOUNT_MAX + 1])
def test_an_amount_out_of_bounds_is_refused_before_anything(engine: Engine, amount: int) -> None:
    held = nodes.held(engine, 10)
    before = nodes.dump(engine)
    with pytest.raises(InvalidValue, match=r"^hold: "):
        nodes.hold(engine, amount)
    with pytest.raises(InvalidValue, match=r"^price: "):
        nodes.settle(engine, held.hold, amount)
    assert nodes.dump(engine) == before


def test_a_sum_out_of_bounds_is_refused_and_nothing_is_written(engine: Engine) -> None:
    for number in range(limits.MICROS_MAX // limits.AMOUNT_MAX - 1):
        with engine.store.write() as txn:
            command = records.Grant(1, ALICE, limits.AMOUNT_MAX, "bulk", str(number), "")
            engine._apply(txn, command, 10_000 + number)
    before = nodes.dump(engine)
    with pytest.raises(InvalidValue, match=r"^balance: "):
        grants.grant(engine, ALICE, limits.AMOUNT_MAX, "test", "too much")
    assert nodes.dump(engine) == before


class Broken(Exception):
    """Something unexpected."""


@pytest.mark.parametrize("place", ["apply", "tail", "store"])
def test_an_exception_inside_the_transaction_leaves_no_record_and_no_change(
    path: Path, engine: Engine, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    held = nodes.held(engine, 10)
    engine.flush()
    before, journal = nodes.dump(engine), nodes.journal_bytes(path)

    def fail(*_: object) -> None:
        raise Broken

    target, name = {
        "apply": (BelowZero, "blocks"),
        "tail": (Meta, "set_tail"),
        "store": (Writer, "store"),
    }[place]
    monkeypatch.setattr(target, name, fail)
    with pytest.raises(Broken):
        nodes.settle(engine, held.hold, 5)
    monkeypatch.undo()
    assert nodes.dump(engine) == before
    assert nodes.journal_bytes(path) == journal
    assert nodes.settle(engine, held.hold, 5).account.balance == 995


def test_a_record_too_large_for_a_segment_is_refused_and_nothing_is_written(
    engine: Engine,
) -> None:
    held = nodes.held(engine, 10)
    before = nodes.dump(engine)
    with pytest.raises(InvalidValue, match="does not fit"):
        charge.release(engine, held.hold, "x" * limits.RECORD_BODY_MAX)
    assert nodes.dump(engine) == before


def test_what_cannot_come_back_from_a_command_is_an_invariant(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    held = nodes.held(engine, 10)
    monkeypatch.setattr(engine, "execute", lambda _: Refusal.HELD)
    monkeypatch.setattr(engine, "decide", lambda _: Refusal.HELD)
    with pytest.raises(InvariantBroken):
        charge.release(engine, held.hold)
    with pytest.raises(InvariantBroken):
        customers.add_customer(engine, CustomerId("bob"), nodes.PLAN)
    monkeypatch.undo()
    executed = engine.execute(records.Start(1, held.hold))
    monkeypatch.setattr(engine, "decide", lambda _: executed)
    with pytest.raises(InvariantBroken):
        charge.release(engine, held.hold)
    with pytest.raises(InvariantBroken):
        charge.step(engine, held.hold, lambda *_: 1, {}, UsageStatus.PARTIAL)


def test_a_worker_id_that_was_given_out_is_an_invariant(engine: Engine) -> None:
    with pytest.raises(InvariantBroken, match="worker 1 is not a new one"):
        engine.execute(records.OpenWorker(1, 1, 1))  # type: ignore[arg-type]
    with pytest.raises(InvalidValue, match="does not exist, or was revoked before"):
        engine.execute(records.RevokeKey(1, nodes.KEY))


def test_holds_go_on_across_segments_that_nobody_prepared(path: Path, engine: Engine) -> None:
    nodes.fill_to(engine, 3 * SEGMENT + 10_000)
    assert (path / "journal" / f"{3 * SEGMENT:016x}.seg").exists()
    assert nodes.settle(engine, nodes.held(engine, 10).hold, 10).account.balance == 990


def test_no_room_for_the_next_segment_fails_the_command_and_passes_when_there_is(
    path: Path,
) -> None:
    files = FaultyFiles()
    engine = nodes.open_node(path, files)
    customers.add_customer(engine, ALICE, nodes.PLAN)
    files.fail("allocate", for_good=True, error=28)
    with pytest.raises(RecordingFailed, match="no room for the next segment: No space left"):
        nodes.fill_to(engine, 3 * SEGMENT)
    before = nodes.dump(engine)
    assert engine.tail() <= 2 * SEGMENT
    with pytest.raises(RecordingFailed):
        nodes.fill_to(engine, 3 * SEGMENT)
    files.mend()
    nodes.fill_to(engine, 2 * SEGMENT + 5_000)
    assert nodes.dump(engine) != before
    engine.close()


def test_a_full_state_refuses_whole_operations_and_stays_consistent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "STATE_SIZE_MAX", 4 * limits.MIB)
    engine = nodes.open_node(nodes.make(tmp_path / "node", limits.MIB))
    customers.add_customer(engine, ALICE, nodes.PLAN)
    grants.grant(engine, ALICE, 10**9, "test", "first")
    held: list[charge.Held] = []

    def fill() -> None:
        while len(held) < 20_000:
            held.append(nodes.held(engine, 1))

    with pytest.raises(RecordingFailed, match="state is full"):
        fill()
    done = len(held)
    assert done > 20
    account = customers.get_account(engine, ALICE)
    assert (account.balance, account.held) == (10**9 - done, done)
    assert verify(engine).faults == ()
    engine.flush()
    assert verify(engine).open_holds == done
    engine.close()


def test_health_says_how_far_everything_is(engine: Engine) -> None:
    nodes.held(engine, 1)
    health = engine.health()
    assert not health.failed
    assert health.worker == engine.worker == 1
    assert health.durable < health.tail == engine.tail()
    assert engine.flush() == health.tail == engine.durable()
