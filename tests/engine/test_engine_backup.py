"""Backups: taken while others work, proved, restored as a new incarnation; whole or not at all."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import nodes
import pytest
from nodes import ALICE, SEGMENT
from processes import Child, Pipe

from finomw import limits
from finomw.engine import charge, customers, grants
from finomw.engine.analysis import dry_run
from finomw.engine.backup import back_up, restore
from finomw.engine.directory import find
from finomw.engine.engine import Engine, open_engine
from finomw.engine.verify import verify
from finomw.errors import DirectoryError, FinomwError, JournalDamaged, RecordingFailed
from finomw.journal.recovery import Outcome
from finomw.testing.clock import ManualClock
from finomw.testing.fatal import Fatal
from finomw.testing.files import FaultyFiles
from finomw.types import HoldId


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return nodes.make(tmp_path / "node", limits.STATE_SIZE_MIN)


def without_tail(state: dict[str, object]) -> dict[str, object]:
    return {name: rows for name, rows in state.items() if name not in ("tail", "workers")}


def explicit(engine: Engine) -> HoldId:
    """Make a hold that belongs to no worker."""
    expires = engine.clock.now() + timedelta(hours=1) // timedelta(microseconds=1)
    request = charge.HoldRequest(
        ALICE, nodes.KEY, nodes.ROUTE, 1, {"requests": 1}, 0, nodes.OnCrash.RELEASE, "v1"
    )
    held = charge.hold(engine, request._replace(reservation=charge.Reservation(expires, "job")))
    assert isinstance(held, charge.Held)
    return held.hold


@pytest.mark.parametrize("segments", [0, 2])
def test_what_was_backed_up_comes_back(
    tmp_path: Path, path: Path, engine: Engine, segments: int
) -> None:
    nodes.fill_to(engine, segments * SEGMENT)
    nodes.held(engine, 5)
    before, tail = nodes.dump(engine), engine.store.tail()
    done = back_up(engine, tmp_path / "backups" / "one")
    assert done[:2] == (tail.end, tail.number)
    nodes.held(engine, 6)
    engine.close()
    names = sorted(
        str(file.relative_to(tmp_path / "backups"))
        for file in (tmp_path / "backups").rglob("*")
        if file.is_file()
    )
    assert names == [
        "one/backup.json",
        f"one/checkpoints/{tail.end:016x}.mdb",
        f"one/journal/{tail.end // SEGMENT * SEGMENT:016x}.seg",
    ]
    restored = restore(tmp_path / "backups" / "one", tmp_path / "again", ManualClock())
    assert restored[:2] == done[:2]
    again = nodes.open_node(tmp_path / "again")
    assert nodes.dump(again) == before
    assert verify(again).faults == ()
    nodes.fill_to(again, tail.end + 2 * SEGMENT)
    rebuilt = nodes.rebuilt(again, tmp_path / "again")
    assert verify(rebuilt).faults == ()
    rebuilt.close()
    assert sorted(file.name for file in (tmp_path / "backups" / "one").iterdir()) == [
        "backup.json",
        "checkpoints",
        "journal",
    ]


def test_a_backup_of_a_node_without_a_record_comes_back(tmp_path: Path, path: Path) -> None:
    node = nodes.open_node(path)
    back_up(node, tmp_path / "backup")
    node.close()
    restore(tmp_path / "backup", tmp_path / "again", ManualClock())
    again = nodes.open_node(tmp_path / "again")
    assert verify(again).faults == ()
    customers.add_customer(again, ALICE, nodes.PLAN)
    nodes.rebuilt(again, tmp_path / "again").close()


def works(pipe: Pipe, path: Path) -> None:
    engine = nodes.open_node(path)
    for number in range(1, 10**6):
        nodes.settle(engine, nodes.held(engine, 2).hold, 1)
        engine.flush()
        pipe.send(number)


def test_a_backup_beside_two_writers_has_all_they_were_told_before(
    tmp_path: Path, path: Path, engine: Engine
) -> None:
    grants.grant(engine, ALICE, 10**9, "test", "rich")
    children = [Child(works, path) for _ in range(2)]
    try:
        for number in range(5):
            acknowledged = 0
            for child in children:
                for _ in range(10):
                    last = child.receive()
                while child._pipe.poll():
                    last = child.receive()
                acknowledged += last
            back_up(engine, tmp_path / f"backup{number}")
            restore(tmp_path / f"backup{number}", tmp_path / f"again{number}", ManualClock())
            again = nodes.open_node(tmp_path / f"again{number}")
            assert verify(again).faults == ()
            account = customers.get_account(again, ALICE)
            assert account.spent_total >= acknowledged
            assert account.balance + account.held + account.spent_total == 10**9 + 1000
            again.close()
    finally:
        for child in children:
            child.end()
    engine.close()


def test_a_target_that_is_taken_is_left_as_it_is(
    tmp_path: Path, path: Path, engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("mine")
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file").write_text("mine")
    before = sorted(tmp_path.iterdir())
    for name in ("file", "full"):
        with pytest.raises(DirectoryError, match="is there already and not empty"):
            back_up(engine, tmp_path / name)
    with pytest.raises(DirectoryError, match="cannot be made: Not a directory"):
        back_up(engine, tmp_path / "file" / "below")
    assert sorted(tmp_path.iterdir()) == before
    (tmp_path / "empty").mkdir()
    monkeypatch.chdir(tmp_path / "empty")
    back_up(engine, Path("."))
    assert (tmp_path / "empty" / "backup.json").exists()
    with pytest.raises(DirectoryError, match="is there already and not empty"):
        restore(tmp_path / "empty", tmp_path / "full", ManualClock())


@pytest.mark.parametrize("kind", ["write", "rename", "allocate", "sync", "flush"])
def test_a_backup_that_fails_leaves_nothing_under_its_name_or_beside(
    tmp_path: Path, path: Path, kind: str
) -> None:
    files = FaultyFiles()
    engine = nodes.open_node(path, files)
    customers.add_customer(engine, ALICE, nodes.PLAN)
    nodes.held(engine, 0)
    before = sorted(tmp_path.iterdir())
    files.fail(kind)
    with pytest.raises((DirectoryError, RecordingFailed)):
        back_up(engine, tmp_path / "backup")
    assert sorted(tmp_path.iterdir()) == before
    nodes.drop(engine)


def back_up_fatally(pipe: Pipe, path: Path, target: Path, fatal: int) -> None:
    files = Fatal()
    engine = nodes.open_node(path, files)
    nodes.held(engine, 0)
    files.arm(fatal)
    back_up(engine, target)
    pipe.send(files.done)
    nodes.drop(engine)


def test_a_backup_that_is_killed_at_any_step_is_whole_or_not_there(
    tmp_path: Path, path: Path, engine: Engine
) -> None:
    engine.close()
    steps, fatal, whole = 1, 0, 0
    while fatal <= steps:
        target = tmp_path / f"backup{fatal}"
        child = Child(back_up_fatally, path, target, fatal)
        if fatal == 0:
            steps = child.receive()
            child.finish()
            assert steps > 10
        else:
            child.killed()
        if target.exists():
            restore(target, tmp_path / "again", ManualClock())
            again = nodes.open_node(tmp_path / "again")
            assert verify(again).faults == ()
            nodes.drop(again)
            shutil.rmtree(tmp_path / "again")
            whole += 1
        fatal += 1
    assert 1 <= whole <= 3
    nodes.open_node(path).close()


def restore_fatally(pipe: Pipe, source: Path, target: Path, fatal: int) -> None:
    files = Fatal()
    files.arm(fatal)
    restore(source, target, ManualClock(), files)
    pipe.send(files.done)


def test_a_restore_that_is_killed_at_any_step_makes_a_whole_node_or_none(
    tmp_path: Path, engine: Engine
) -> None:
    before = nodes.dump(engine)
    back_up(engine, tmp_path / "backup")
    engine.close()
    steps, fatal, whole = 1, 0, 0
    while fatal <= steps:
        target = tmp_path / f"again{fatal}"
        child = Child(restore_fatally, tmp_path / "backup", target, fatal)
        if fatal == 0:
            steps = child.receive()
            child.finish()
            assert steps > 8
        else:
            child.killed()
        if target.exists():
            again = nodes.open_node(target)
            assert without_tail(nodes.dump(again)) == without_tail(before)
            nodes.drop(again)
            whole += 1
        fatal += 1
    assert 1 <= whole <= 2


def test_a_restored_node_gives_no_id_again_and_each_restore_is_its_own(
    tmp_path: Path, path: Path, engine: Engine
) -> None:
    back_up(engine, tmp_path / "backup")
    given = {explicit(engine), nodes.held(engine, 1).hold}
    clock = ManualClock()
    incarnations, workers = [1], [int(engine.worker)]
    for number in range(2):
        clock.advance(5_000_000)
        done = restore(tmp_path / "backup", tmp_path / str(number), clock)
        incarnations.append(done.incarnation)
        again = nodes.open_node(tmp_path / str(number))
        workers.append(again.worker)
        given |= {explicit(again), nodes.held(again, 1).hold}
        again.close()
    assert sorted(set(incarnations)) == incarnations
    assert sorted(set(workers)) == workers
    assert len(given) == 6
    with pytest.raises(DirectoryError, match="is there already and not empty"):
        restore(tmp_path / "backup", tmp_path / "0", clock)


def test_a_backup_of_a_restored_node_comes_back_too(tmp_path: Path, engine: Engine) -> None:
    clock = ManualClock()
    back_up(engine, tmp_path / "backup0")
    before = without_tail(nodes.dump(engine))
    for number in range(3):
        done = restore(tmp_path / f"backup{number}", tmp_path / f"again{number}", clock)
        again = nodes.open_node(tmp_path / f"again{number}")
        assert without_tail(nodes.dump(again)) == before
        nodes.settle(again, nodes.held(again, 3).hold, 2)
        before = without_tail(nodes.dump(again))
        back_up(again, tmp_path / f"backup{number + 1}")
        assert find(tmp_path / f"again{number}").node.incarnation == done.incarnation
        again.close()


@pytest.mark.parametrize("later", [1, 2])
def test_segments_of_the_earlier_life_that_come_after_the_backup_are_refused(
    tmp_path: Path, path: Path, engine: Engine, later: int
) -> None:
    back_up(engine, tmp_path / "backup")
    nodes.fill_to(engine, 3 * SEGMENT)
    engine.close()
    restore(tmp_path / "backup", tmp_path / "again", ManualClock())
    name = f"{later * SEGMENT:016x}.seg"
    shutil.copy(path / "journal" / name, tmp_path / "again" / "journal" / name)
    before = nodes.journal_bytes(tmp_path / "again")
    for _ in range(2):
        with pytest.raises(JournalDamaged, match=f"{name}: .*incarnation 1, but one before it of"):
            nodes.open_node(tmp_path / "again")
    assert nodes.journal_bytes(tmp_path / "again") == before


def test_a_segment_of_the_earlier_life_is_refused_also_where_the_state_is_believed(
    tmp_path: Path, path: Path, engine: Engine
) -> None:
    back_up(engine, tmp_path / "backup")
    nodes.fill_to(engine, 3 * SEGMENT)
    engine.close()
    again = tmp_path / "again"
    restore(tmp_path / "backup", again, ManualClock())
    nodes.open_node(again).close()
    assert dry_run(again).outcome is Outcome.GO_ON
    name = f"{2 * SEGMENT:016x}.seg"
    shutil.copy(path / "journal" / name, again / "journal" / name)
    assert dry_run(again).outcome is Outcome.REFUSE
    with pytest.raises(JournalDamaged, match="incarnation 1, but one before it of"):
        nodes.open_node(again)
    assert (again / "journal" / name).read_bytes() == (path / "journal" / name).read_bytes()


def _one(folder: Path) -> Path:
    [file] = folder.iterdir()
    return file


def _patch(file: Path, at: int, data: bytes) -> None:
    with file.open("r+b") as opened:
        opened.seek(at)
        opened.write(data)


DAMAGES: dict[str, Callable[[Path], object]] = {
    "the copy is damaged": lambda b: _patch(_one(b / "checkpoints"), 9_000, b"????"),
    "does not end with a checkpoint's footer": lambda b: os.truncate(
        _one(b / "checkpoints"), 8_192
    ),
    "no checkpoint is there": lambda b: _one(b / "checkpoints").unlink(),
    "checkpoints: no checkpoint is there": lambda b: shutil.rmtree(b / "checkpoints"),
    "this segment of the journal is missing": lambda b: _one(b / "journal").unlink(),
    "the segment is cut off": lambda b: os.truncate(_one(b / "journal"), 5_000),
    "the segment's header is damaged": lambda b: _patch(_one(b / "journal"), 40, b"????"),
    "does not lead to the checkpoint": lambda b: _patch(_one(b / "journal"), 4_140, b"????"),
    r"backup\.json: damaged": lambda b: (b / "backup.json").write_text("{"),
    r"backup\.json: directory format 9 is newer": lambda b: (b / "backup.json").write_text(
        json.dumps({**json.loads((b / "backup.json").read_text()), "format": 9})
    ),
    "no backup here; make one with `finomw backup DIR`": lambda b: (b / "backup.json").unlink(),
}


@pytest.mark.parametrize("told", DAMAGES)
def test_a_damaged_backup_is_refused_by_name(tmp_path: Path, engine: Engine, told: str) -> None:
    back_up(engine, tmp_path / "backup")
    DAMAGES[told](tmp_path / "backup")
    before = sorted(tmp_path.iterdir())
    with pytest.raises(DirectoryError, match=told) as caught:
        restore(tmp_path / "backup", tmp_path / "again", ManualClock())
    assert str(tmp_path / "backup") in str(caught.value)
    assert sorted(tmp_path.iterdir()) == before


def test_bytes_behind_the_backup_s_end_are_not_restored(tmp_path: Path, engine: Engine) -> None:
    end = back_up(engine, tmp_path / "backup").end
    engine.close()
    _patch(_one(tmp_path / "backup" / "journal"), end, b"noise")
    restore(tmp_path / "backup", tmp_path / "again", ManualClock())
    segment = (tmp_path / "again" / "journal" / f"{0:016x}.seg").read_bytes()
    assert segment[end:] == bytes(SEGMENT - end)


def test_nobody_runs_on_a_backup(tmp_path: Path, engine: Engine) -> None:
    back_up(engine, tmp_path / "backup")
    for ask in (open_engine, dry_run, find):
        with pytest.raises(FinomwError, match="make one of it with `finomw restore`"):
            ask(tmp_path / "backup")
