"""Starting alone: what is believed, what is rebuilt, and what is refused."""

from __future__ import annotations

import logging
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import nodes
import pytest
from msgspec.structs import replace
from nodes import ALICE, SEGMENT

from finomw import limits
from finomw.engine import customers, grants, keys, records
from finomw.engine.analysis import dry_run
from finomw.engine.engine import Engine
from finomw.engine.verify import verify
from finomw.errors import (
    FlushFailed,
    JournalDamaged,
    ReplayDiffers,
)
from finomw.journal import recovery
from finomw.journal.control import Control
from finomw.journal.files import Files
from finomw.journal.format import Tail
from finomw.journal.writer import Writer
from finomw.money.funding import Parts
from finomw.store.env import DATA
from finomw.store.holds import HoldRow
from finomw.testing.files import FaultyFiles
from finomw.types import Fund, HoldState, OnCrash, PlanName


def invalidate(path: Path) -> None:
    (path / "control").unlink()


def busy(engine: Engine) -> dict[str, object]:
    """Leave open holds, a started one, a settled one and a key behind; return all of it."""
    keys.create_key(engine, ALICE, "laptop")
    nodes.held(engine, 100)
    nodes.settle(engine, nodes.held(engine, 50).hold, 20)
    nodes.held(engine, 30, on_crash=OnCrash.SETTLE)
    return nodes.dump(engine)


def loses_nothing(path: Path) -> None:
    """Change nothing at all."""


def loses_control(path: Path) -> None:
    (path / "control").unlink()


def loses_state(path: Path) -> None:
    (path / "state" / DATA).unlink()


def loses_state_directory(path: Path) -> None:
    shutil.rmtree(path / "state")


def gets_garbage(path: Path) -> None:
    (path / "state" / DATA).write_bytes(os.urandom(1 << 20))


def gets_another_state_directory(path: Path) -> None:
    (path / "state").rename(path / "old")
    shutil.copytree(path / "old", path / "state")


def was_rebooted(path: Path) -> None:
    control = Control(Files(), path / "control")
    control.distrust()
    control.close()


def failed(path: Path) -> None:
    control = Control(Files(), path / "control")
    control.fail()
    control.close()


@pytest.mark.parametrize(
    ("happens", "told"),
    [
        (loses_nothing, None),
        (loses_control, "INFO"),
        (loses_state, "INFO"),
        (loses_state_directory, "INFO"),
        (gets_garbage, "WARNING"),
        (gets_another_state_directory, "INFO"),
        (was_rebooted, "INFO"),
        (failed, "WARNING"),
    ],
)
@pytest.mark.parametrize("killed", [True, False])
def test_whatever_happens_to_state_or_control_everything_is_back(
    path: Path,
    engine: Engine,
    caplog: pytest.LogCaptureFixture,
    happens: Callable[[Path], None],
    told: str | None,
    killed: bool,
) -> None:
    before = busy(engine)
    end = engine.tail()
    if killed:
        nodes.drop(engine)
    else:
        engine.close()
    happens(path)
    with caplog.at_level(logging.INFO, "finomw"):
        again = nodes.open_node(path)
    rebuilt = [r.levelname for r in caplog.records if "rebuilt the state from" in r.message]
    assert rebuilt == ([] if told is None else [told])
    unclean = "the last stop was not clean" in caplog.text
    assert unclean is (told is None)
    assert not again.health().clean_start  # open holds were left behind
    assert nodes.dump(again) == before
    assert again.durable() == end
    assert verify(again).faults == ()
    nodes.settle(again, nodes.held(again, 1).hold, 1)
    again.close()


def test_a_state_behind_the_watermark_is_rebuilt(path: Path, engine: Engine) -> None:
    engine.flush()
    nodes.drop(engine)
    old = (path / "state" / DATA).read_bytes()
    later = nodes.open_node(path)
    before = busy(later)
    later.flush()
    nodes.drop(later)
    with (path / "state" / DATA).open("r+b") as file:
        file.write(old)
    again = nodes.open_node(path)
    assert nodes.dump(again) == before
    again.close()


def store_record(monkeypatch: pytest.MonkeyPatch, act: Callable[[], object]) -> None:
    """Have an operation die between its record's store and its commit."""
    store = Writer.store

    def die(self: Writer, record: object) -> None:
        store(self, record)  # type: ignore[arg-type]
        raise KeyboardInterrupt

    monkeypatch.setattr(Writer, "store", die)
    with pytest.raises(KeyboardInterrupt):
        act()
    monkeypatch.undo()


def test_a_ghost_is_gone_after_a_start_that_believes_the_state(
    path: Path, engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = busy(engine)
    store_record(monkeypatch, lambda: nodes.hold(engine, 7))
    assert nodes.dump(engine) == before
    end = engine.tail()
    nodes.drop(engine)
    nodes.open_node(path).close()
    segment = (path / "journal" / f"{0:016x}.seg").read_bytes()
    assert segment[end:] == bytes(SEGMENT - end)


def test_a_ghost_is_replayed_once_where_the_state_is_lost(
    path: Path, engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    busy(engine)
    balance = customers.get_account(engine, ALICE).balance
    store_record(monkeypatch, lambda: nodes.hold(engine, 7))
    nodes.drop(engine)
    invalidate(path)
    again = nodes.open_node(path)
    assert customers.get_account(again, ALICE).balance == balance - 7
    assert verify(again).faults == ()
    again.close()


def test_a_ghost_of_a_living_worker_is_overwritten(
    path: Path, engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    store_record(monkeypatch, lambda: nodes.hold(engine, 900))
    nodes.held(engine, 5)
    before = nodes.dump(engine)
    nodes.drop(engine)
    invalidate(path)
    again = nodes.open_node(path)
    assert nodes.dump(again) == before
    again.close()


def last_record(engine: Engine) -> Tail:
    return engine.store.tail()


def damage(path: Path, lsn: int, data: bytes) -> None:
    name = f"{lsn - lsn % SEGMENT:016x}.seg"
    with (path / "journal" / name).open("r+b") as file:
        file.seek(lsn % SEGMENT)
        file.write(data)


def test_a_torn_tail_is_cut(path: Path, engine: Engine, caplog: pytest.LogCaptureFixture) -> None:
    engine.flush()
    before = nodes.dump(engine)
    torn = engine.tail()
    nodes.held(engine, 5)
    nodes.drop(engine)
    damage(path, torn + 60, b"????")
    was_rebooted(path)
    again = nodes.open_node(path)
    assert nodes.dump(again) == before
    assert f"cut at LSN {torn}" in caplog.text
    again.close()


@pytest.mark.parametrize("knows", ["watermark", "stamp"])
def test_damage_to_what_was_durable_is_refused_every_time_and_the_journal_is_left_alone(
    path: Path, engine: Engine, knows: str
) -> None:
    damaged = engine.tail()
    nodes.held(engine, 5)
    durable = engine.flush()
    if knows == "stamp":
        nodes.held(engine, 6)
    nodes.drop(engine)
    was_rebooted(path)
    if knows == "stamp":
        invalidate(path)
    damage(path, damaged + 40, b"????")
    before = nodes.journal_bytes(path)
    for _ in range(3):
        with pytest.raises(JournalDamaged) as caught:
            nodes.open_node(path)
        assert caught.value.lsn == damaged
        assert caught.value.path == str(path / "journal" / f"{0:016x}.seg")
        assert f"everything up to LSN {durable} was on disk" in str(caught.value)
        assert nodes.journal_bytes(path) == before


def test_damage_that_the_believed_state_knows_of_is_refused_too(path: Path, engine: Engine) -> None:
    nodes.held(engine, 5)
    engine.flush()
    tail = last_record(engine)
    nodes.drop(engine)
    damage(path, tail.lsn + 40, b"????")
    with pytest.raises(JournalDamaged, match=f"LSN {tail.lsn}: no valid record here"):
        nodes.open_node(path)


def test_a_start_after_the_damage_was_mended_goes_on(path: Path, engine: Engine) -> None:
    nodes.held(engine, 5)
    engine.flush()
    before = nodes.dump(engine)
    tail = last_record(engine)
    nodes.drop(engine)
    whole = nodes.journal_bytes(path)
    damage(path, tail.lsn + 40, b"????")
    with pytest.raises(JournalDamaged):
        nodes.open_node(path)
    for name, data in whole.items():
        (path / "journal" / name).write_bytes(data)
    again = nodes.open_node(path)
    assert nodes.dump(again) == before
    again.close()


@pytest.mark.parametrize("missing", [[0], [SEGMENT], [0, SEGMENT, 2 * SEGMENT, 3 * SEGMENT]])
def test_every_segment_must_be_there(path: Path, engine: Engine, missing: list[int]) -> None:
    nodes.fill_to(engine, 2 * SEGMENT + 5_000)
    engine.prepare_next_segment()
    nodes.drop(engine)
    invalidate(path)
    for base in missing:
        (path / "journal" / f"{base:016x}.seg").unlink()
    before = nodes.journal_bytes(path)
    with pytest.raises(JournalDamaged, match=r"is missing|begins at LSN 65536") as caught:
        nodes.open_node(path)
    assert caught.value.lsn == missing[0]
    assert nodes.journal_bytes(path) == before


def test_a_foreign_segment_is_refused(path: Path, engine: Engine, tmp_path: Path) -> None:
    nodes.drop(engine)
    other = nodes.make(tmp_path / "other")
    name = f"{SEGMENT:016x}.seg"
    shutil.copy(other / "journal" / name, path / "journal" / name)
    for _ in range(2):
        with pytest.raises(JournalDamaged, match="another node"):
            nodes.open_node(path)
        (path / "control").unlink(missing_ok=True)


def test_many_records_over_many_segments_are_rebuilt(path: Path, engine: Engine) -> None:
    nodes.fill_to(engine, 4 * SEGMENT)
    assert engine.store.tail().number > 1_000
    before = nodes.dump(engine)
    engine.close()
    loses_state_directory(path)
    again = nodes.open_node(path)
    assert nodes.dump(again) == before
    again.close()


def test_a_difference_in_replay_stops_the_start_and_is_shown(
    path: Path, engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    encode = records.encode
    lsn = engine.tail()
    monkeypatch.setattr(
        records, "encode", lambda command, result: encode(command, result._replace(balance=999_999))
    )
    nodes.held(engine, 5)
    monkeypatch.undo()
    nodes.held(engine, 5)
    nodes.drop(engine)
    invalidate(path)
    before = nodes.journal_bytes(path)
    for _ in range(2):
        with pytest.raises(ReplayDiffers, match=rf"LSN {lsn}: Hold.*gave.*999999"):
            nodes.open_node(path)
    assert nodes.journal_bytes(path) == before


@pytest.mark.parametrize(
    ("body", "why"),
    [
        (b"\xc1", "the record cannot be read"),
        (records.encode(records.RevokeKey(1, nodes.KEY), None), "does not exist"),
    ],
)
def test_a_record_that_cannot_be_carried_out_is_shown(
    path: Path, engine: Engine, monkeypatch: pytest.MonkeyPatch, body: bytes, why: str
) -> None:
    lsn = engine.tail()
    monkeypatch.setattr(records, "encode", lambda command, result: body)
    nodes.held(engine, 5)
    nodes.drop(engine)
    monkeypatch.undo()
    invalidate(path)
    with pytest.raises(ReplayDiffers, match=rf"LSN {lsn}: .*{why}"):
        nodes.open_node(path)


def test_replay_reads_no_clock(path: Path, engine: Engine) -> None:
    before = busy(engine)
    nodes.drop(engine)
    invalidate(path)

    class NoClock:
        def now(self) -> int:
            raise AssertionError("replay asked for the time")

        monotonic = now

    again = Engine(path, NoClock(), Files(), nodes.BelowZero())
    assert nodes.dump(again) == before
    nodes.drop(again)


def test_an_interrupted_rebuild_is_done_again(
    path: Path, engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = busy(engine)
    nodes.drop(engine)
    failed(path)
    with monkeypatch.context() as patch:

        def die(*_: object) -> None:
            raise KeyboardInterrupt

        patch.setattr(recovery, "settle_end", die)
        with pytest.raises(KeyboardInterrupt):
            nodes.open_node(path)
    control = Control(Files(), path / "control")
    assert control.failed
    control.close()
    again = nodes.open_node(path)
    assert nodes.dump(again) == before
    again.close()


def test_pages_that_a_failed_flush_lost_are_stored_again_by_the_restart(path: Path) -> None:
    files = FaultyFiles()
    engine = nodes.open_node(path, files)
    customers.add_customer(engine, ALICE, nodes.PLAN)
    grants.grant(engine, ALICE, 1000, "test", "first")
    for _ in range(40):  # on more pages than those that are written to afterwards
        nodes.held(engine, 10)
    files.fail("flush")
    with pytest.raises(FlushFailed):
        engine.flush()
    nodes.drop(engine)
    restarted = nodes.open_node(path, files)
    nodes.settle(restarted, nodes.held(restarted, 20).hold, 20)
    restarted.flush()
    acknowledged = nodes.dump(restarted)
    nodes.drop(restarted)
    files.power_cut()
    loses_state_directory(path)
    again = nodes.open_node(path)
    assert nodes.dump(again) == acknowledged
    again.close()


def test_pages_that_a_killed_flusher_lost_are_stored_again_by_a_lone_restart(path: Path) -> None:
    files = FaultyFiles()
    engine = nodes.open_node(path, files)
    customers.add_customer(engine, ALICE, nodes.PLAN)
    for _ in range(40):
        nodes.held(engine, 0)
    files.fail("flush")
    with pytest.raises(OSError, match="Input/output"):
        engine.segments.at(0).file.flush()
    nodes.drop(engine)
    restarted = nodes.open_node(path, files)
    nodes.settle(restarted, nodes.held(restarted, 0).hold, 0)
    restarted.flush()
    acknowledged = nodes.dump(restarted)
    nodes.drop(restarted)
    files.power_cut()
    loses_state_directory(path)
    again = nodes.open_node(path)
    assert nodes.dump(again) == acknowledged
    again.close()


@pytest.mark.parametrize("rebuilds", [True, False])
def test_a_start_whose_own_flush_fails_is_refused_and_the_next_rebuilds(
    path: Path, engine: Engine, rebuilds: bool
) -> None:
    before = busy(engine)
    nodes.drop(engine)
    if rebuilds:
        was_rebooted(path)
    files = FaultyFiles()
    files.fail("flush")
    with pytest.raises(FlushFailed, match="cannot be flushed"):
        nodes.open_node(path, files)
    control = Control(Files(), path / "control")
    assert control.failed
    control.close()
    again = nodes.open_node(path, files)
    assert nodes.dump(again) == before
    again.close()


def test_a_state_that_is_too_small_for_its_journal_grows_while_it_is_rebuilt(
    path: Path, engine: Engine
) -> None:
    for number in range(1_500):
        at, note = engine.clock.now(), "x" * 1_000
        engine.execute(records.Grant(at, ALICE, 1, "noted", str(number), note))
    before = nodes.dump(engine)
    engine.close()
    loses_state_directory(path)
    file = path / "node.json"
    smaller = limits.STATE_SIZE_MIN
    file.write_text(file.read_text().replace(str(nodes.STATE), str(smaller)))
    again = nodes.open_node(path)
    assert nodes.dump(again) == before
    assert (path / "state" / DATA).stat().st_size > smaller
    again.close()


def test_rows_survive_the_round_through_the_journal_field_by_field(
    path: Path, engine: Engine
) -> None:
    open_hold = nodes.held(engine, 5, on_crash=OnCrash.SETTLE)
    ended = nodes.held(engine, 5)
    nodes.settle(engine, ended.hold, 4)
    nodes.drop(engine)
    invalidate(path)
    again = nodes.open_node(path)
    with again.store.read() as txn:
        row = again.store.holds.find(txn, open_hold.hold)
        settled = again.store.holds.find(txn, ended.hold)
    now = again.clock.now()
    assert row == HoldRow(
        customer=ALICE,
        key=nodes.KEY,
        route=nodes.ROUTE,
        plan=PlanName(""),
        price_version="v1",
        choice="",
        parts=Parts((), 5, 0, (Fund.WALLET,)),
        ceiling={"requests": 1},
        counted={},
        on_crash=OnCrash.SETTLE,
        cap=False,
        since=now,
    )
    assert settled == replace(
        row,
        on_crash=OnCrash.RELEASE,
        state=HoldState.SETTLED,
        ended=now,
        charged=4,
        counts={"requests": 1},
    )
    again.close()


def test_an_interrupted_rebuild_leaves_the_old_state_and_is_begun_anew(
    path: Path, engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = busy(engine)
    nodes.drop(engine)
    gets_garbage(path)
    garbage = (path / "state" / DATA).read_bytes()

    def die(*_: object) -> None:
        raise KeyboardInterrupt

    for _ in range(2):
        monkeypatch.setattr("finomw.engine.replay._redo", die)
        with pytest.raises(KeyboardInterrupt):
            nodes.open_node(path)
        monkeypatch.undo()
        assert dry_run(path).reason == "the control file is new, or a rebuild was interrupted"
        assert (path / "state" / DATA).read_bytes() == garbage
        assert (path / "state" / "rebuild" / DATA).exists()
    again = nodes.open_node(path)
    assert nodes.dump(again) == before
    again.close()
    assert not (path / "state" / "rebuild").exists()
    assert (path / "state" / f"{DATA}.old").read_bytes() == garbage
