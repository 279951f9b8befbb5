"""Checkpoints: made while writers go on, proved, kept in twos, and started from."""

from __future__ import annotations

import logging
import os
import resource
import shutil
import threading
from collections.abc import Callable
from pathlib import Path

import nodes
import pytest
from nodes import ALICE, SEGMENT
from processes import Child, Pipe

from finomw import limits
from finomw.engine import customers, records
from finomw.engine.checkpoint import make_checkpoint, oldest_start, prunable, prune
from finomw.engine.engine import Engine
from finomw.engine.verify import verify
from finomw.errors import JournalDamaged, RecordingFailed
from finomw.journal.files import Files
from finomw.journal.format import START
from finomw.store.checkpoints import listed, name_of
from finomw.testing.fatal import Fatal
from finomw.testing.files import FaultyFiles


def invalidate(path: Path) -> None:
    (path / "control").unlink(missing_ok=True)


def names(path: Path) -> list[str]:
    return sorted(file.name for file in (path / "checkpoints").iterdir())


def fill_to(engine: Engine, lsn: int) -> None:
    """Record what is large and small in turns until the tail has passed an LSN."""
    while engine.tail() < lsn:
        grant_noted(engine, 1_000)
        nodes.settle(engine, nodes.held(engine, 0).hold, 0)


def grant_noted(engine: Engine, length: int) -> int:
    """Record a grant with a note of some length; return the record's size."""
    before = engine.tail()
    at, name = engine.clock.now(), f"{before:08}"
    engine.execute(records.Grant(at, ALICE, 1, "noted", name, "x" * length))
    return engine.tail() - before


def bases(engine: Engine) -> list[int]:
    return [base // SEGMENT for base in engine.segments.bases()]


def restart(path: Path, engine: Engine, files: Files | None = None) -> Engine:
    """Kill an engine, lose the control file, and open again: what was committed must be there."""
    before = nodes.dump(engine)
    nodes.drop(engine)
    invalidate(path)
    again = nodes.open_node(path, files)
    assert nodes.dump(again) == before
    return again


def test_a_start_replays_only_what_came_after_the_checkpoint(
    path: Path, engine: Engine, caplog: pytest.LogCaptureFixture
) -> None:
    fill_to(engine, 2 * SEGMENT)
    checkpoint = make_checkpoint(engine)
    assert checkpoint.tail == engine.store.tail()
    assert checkpoint.path == path / "checkpoints" / name_of(checkpoint.tail.end)
    assert engine.durable() >= checkpoint.tail.end
    nodes.held(engine, 5)
    with caplog.at_level(logging.INFO, "finomw"):
        again = restart(path, engine)
    assert f"from {checkpoint.path.name} and 1 journal records" in caplog.text
    assert verify(again).faults == ()
    again.close()


def test_a_checkpoint_alone_is_enough(path: Path, engine: Engine) -> None:
    nodes.held(engine, 5)
    make_checkpoint(engine)
    restart(path, engine).close()


def test_writers_go_on_while_a_checkpoint_is_made(path: Path, engine: Engine) -> None:
    stop, made = threading.Event(), []

    def write() -> None:
        while not stop.is_set():
            nodes.settle(engine, nodes.held(engine, 1).hold, 0)

    writers = [threading.Thread(target=write) for _ in range(2)]
    for writer in writers:
        writer.start()
    try:
        made = [make_checkpoint(engine) for _ in range(5)]
    finally:
        stop.set()
        for writer in writers:
            writer.join()
    ends = [checkpoint.tail.end for checkpoint in made]
    assert ends == sorted(ends)
    assert ends[-1] > ends[0]
    assert names(path) == [name_of(end) for end in sorted(set(ends))[-2:]]
    again = restart(path, engine)
    assert verify(again).faults == ()
    again.close()


def test_two_good_checkpoints_are_kept_and_a_broken_one_does_not_count(
    path: Path, engine: Engine
) -> None:
    made = []
    for _ in range(3):
        nodes.held(engine, 1)
        made.append(make_checkpoint(engine).path)
    assert names(path) == [made[1].name, made[2].name]
    made[2].write_bytes(made[2].read_bytes()[:-1])
    nodes.held(engine, 1)
    made.append(make_checkpoint(engine).path)
    assert names(path) == [made[1].name, made[2].name, made[3].name]
    nodes.held(engine, 1)
    made.append(make_checkpoint(engine).path)
    assert names(path) == [made[3].name, made[4].name]


def test_the_same_state_twice_is_one_checkpoint(path: Path, engine: Engine) -> None:
    first = make_checkpoint(engine)
    assert make_checkpoint(engine).tail == first.tail
    assert names(path) == [first.path.name]


def cut_short(file: Path) -> None:
    os.truncate(file, file.stat().st_size - 1)


def without_footer(file: Path) -> None:
    os.truncate(file, file.stat().st_size - 4096)


def emptied(file: Path) -> None:
    os.truncate(file, 0)


def one_bit_flipped(file: Path) -> None:
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 1
    file.write_bytes(data)


def footer_flipped(file: Path) -> None:
    data = bytearray(file.read_bytes())
    data[-4096 + 50] ^= 1
    file.write_bytes(data)


def of_another_node(file: Path) -> None:
    other = nodes.make(file.parent.parent.parent / "other")
    engine = nodes.open_node(other)
    customers.add_customer(engine, ALICE, nodes.PLAN)
    made = make_checkpoint(engine)
    engine.close()
    file.write_bytes(made.path.read_bytes())


HARM = [cut_short, without_footer, emptied, one_bit_flipped, footer_flipped, of_another_node]


@pytest.mark.parametrize("harm", HARM)
def test_a_broken_checkpoint_is_skipped_for_the_older_one_with_a_warning(
    path: Path, engine: Engine, caplog: pytest.LogCaptureFixture, harm: Callable[[Path], None]
) -> None:
    nodes.held(engine, 1)
    older = make_checkpoint(engine)
    nodes.held(engine, 2)
    newest = make_checkpoint(engine)
    nodes.held(engine, 3)
    harm(newest.path)
    kept = newest.path.read_bytes()
    with caplog.at_level(logging.INFO, "finomw"):
        again = restart(path, engine)
    (line,) = [record for record in caplog.records if "rebuilt" in record.message]
    assert line.levelname == "WARNING"
    assert f"from {older.path.name} and 2 journal records" in line.message
    assert f"skipped {newest.path}: " in line.message
    assert newest.path.read_bytes() == kept
    again.close()


@pytest.mark.parametrize("harm", HARM)
def test_where_all_are_broken_the_whole_journal_is_replayed(
    path: Path, engine: Engine, caplog: pytest.LogCaptureFixture, harm: Callable[[Path], None]
) -> None:
    newest = make_checkpoint(engine)
    nodes.held(engine, 3)
    harm(newest.path)
    with caplog.at_level(logging.WARNING, "finomw"):
        restart(path, engine).close()
    assert "rebuilt the state from no checkpoint and 4 journal records" in caplog.text


def fill_and_checkpoint(engine: Engine, segments: int) -> None:
    """Make two checkpoints, the older one so many segments from the journal's beginning."""
    fill_to(engine, segments * SEGMENT)
    make_checkpoint(engine)
    fill_to(engine, (segments + 1) * SEGMENT)
    make_checkpoint(engine)


def test_segments_go_when_two_checkpoints_and_the_audit_s_bytes_lie_behind_them(
    path: Path, engine: Engine
) -> None:
    fill_to(engine, 2 * SEGMENT)
    make_checkpoint(engine)
    assert (prune(engine, 0), prunable(engine, 0)) == (0, 0)  # one checkpoint is not enough
    fill_to(engine, 3 * SEGMENT)
    make_checkpoint(engine)
    assert prune(engine, 3 * SEGMENT) == 0
    assert prune(engine, 2 * SEGMENT) == 1
    assert bases(engine) == [1, 2, 3]
    assert prune(engine, 0) == 1
    assert bases(engine) == [2, 3]
    assert prune(engine, 0) == 0
    again = restart(path, engine)
    assert verify(again).faults == ()
    nodes.settle(again, nodes.held(again, 1).hold, 1)
    again.close()


def test_a_pruned_journal_is_verified_from_the_oldest_kept_checkpoint(
    path: Path, engine: Engine
) -> None:
    fill_and_checkpoint(engine, 3)
    oldest = listed(path / "checkpoints")[-1]
    assert oldest_start(engine) == START
    assert prune(engine, 0) == 3
    start = oldest_start(engine)
    assert start is not None
    assert name_of(start.end) == oldest.name
    assert verify(engine).faults == ()
    for file in (path / "checkpoints").iterdir():
        file.unlink()
    (fault,) = verify(engine).faults
    assert "was pruned" in fault


def test_no_good_checkpoint_for_a_pruned_journal_is_refused(path: Path, engine: Engine) -> None:
    fill_and_checkpoint(engine, 2)
    prune(engine, 0)
    nodes.drop(engine)
    invalidate(path)
    before = nodes.journal_bytes(path)
    for file in (path / "checkpoints").iterdir():
        one_bit_flipped(file)
    with pytest.raises(JournalDamaged, match="begins at LSN 131072, and no good checkpoint") as e:
        nodes.open_node(path)
    assert "finomw recover --dry-run" in str(e.value)
    assert str(listed(path / "checkpoints")[0]) in str(e.value)
    assert nodes.journal_bytes(path) == before


def test_a_state_that_is_believed_needs_no_checkpoint(path: Path, engine: Engine) -> None:
    fill_and_checkpoint(engine, 2)
    prune(engine, 0)
    before = nodes.dump(engine)
    nodes.drop(engine)
    for file in (path / "checkpoints").iterdir():
        file.unlink()
    again = nodes.open_node(path)
    assert nodes.dump(again) == before
    again.close()


def test_the_segment_of_a_checkpoint_s_last_record_stays_though_it_ends_there(
    path: Path, engine: Engine
) -> None:
    make_checkpoint(engine)
    grant_noted(engine, 300)
    size = 0
    while (left := SEGMENT - engine.tail()) > size + 500:
        size = grant_noted(engine, 300)
    grant_noted(engine, 300 + left - size)
    assert make_checkpoint(engine).tail.end == SEGMENT
    nodes.held(engine, 0)
    make_checkpoint(engine)
    fill_to(engine, 2 * SEGMENT)
    assert prune(engine, 0) == 0
    again = restart(path, engine)
    assert oldest_start(again) == START
    again.close()


def test_a_journal_of_many_segments_needs_few_open_files(path: Path, engine: Engine) -> None:
    fill_to(engine, 24 * SEGMENT)
    engine.flush()
    assert len(engine.segments._opened) <= 2
    end = engine.tail()
    engine.close()
    child = Child(with_few_files, path)
    assert child.receive() == ("rebuilt", end, ())
    child.finish()
    again = nodes.open_node(path)
    assert again.segments.bases()[0] > end
    assert verify(again).faults == ()
    again.close()


def with_few_files(pipe: Pipe, path: Path) -> None:
    """Rebuild, verify, write on, flush, checkpoint and prune with few more files than are open."""
    invalidate(path)
    opened = len(os.listdir("/proc/self/fd"))
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (opened + 14, hard))
    engine = nodes.open_node(path)
    pipe.send(("rebuilt", engine.tail(), verify(engine).faults))
    for _ in range(12):
        fill_to(engine, engine.tail() + SEGMENT)
        engine.flush()
    for _ in range(2):
        make_checkpoint(engine)
        nodes.held(engine, 0)
    prune(engine, 0)
    engine.close()


def checkpoint_and_prune(pipe: Pipe, path: Path, fatal: int) -> None:
    files = Fatal()
    engine = nodes.open_node(path, files)
    nodes.held(engine, 0)
    files.arm(fatal)
    make_checkpoint(engine)
    prune(engine, 0)
    pipe.send(files.done)
    nodes.drop(engine)


def with_two_checkpoints(path: Path) -> Path:
    """Make a node whose next checkpoint and pruning remove a checkpoint and four segments."""
    engine = nodes.open_node(nodes.make(path, limits.STATE_SIZE_MIN))
    customers.add_customer(engine, ALICE, nodes.PLAN)
    fill_to(engine, 3 * SEGMENT)
    make_checkpoint(engine)
    fill_to(engine, 4 * SEGMENT)
    make_checkpoint(engine)
    engine.close()
    return path


def test_a_kill_at_any_step_of_checkpoint_and_pruning_changes_nothing(tmp_path: Path) -> None:
    template = with_two_checkpoints(tmp_path / "template")
    steps, fatal = 99, 0
    while fatal < steps:
        path = tmp_path / str(fatal)
        shutil.copytree(template, path)
        child = Child(checkpoint_and_prune, path, fatal)
        if fatal == 0:
            steps = child.receive()
            child.finish()
            assert steps > 20
        else:
            child.killed()
        believed = nodes.open_node(path)
        again = restart(path, believed)
        assert verify(again).faults == ()
        make_checkpoint(again)
        prune(again, 0)
        assert len(names(path)) == 2
        assert all(name.endswith(".mdb") for name in names(path))
        restart(path, again).close()
        shutil.rmtree(path)
        fatal += 1


FAULTS = [(at, False) for at in range(1, 5)] + [(1, True)]


@pytest.mark.parametrize("kind", ["write", "rename", "sync", "unlink", "flush"])
@pytest.mark.parametrize(("at", "for_good"), FAULTS)
def test_a_fault_and_a_power_cut_at_any_step_lose_nothing_that_was_acknowledged(
    tmp_path: Path, kind: str, at: int, for_good: bool
) -> None:
    path = with_two_checkpoints(tmp_path / "node")
    files = FaultyFiles()
    engine = nodes.open_node(path, files)
    nodes.held(engine, 0)
    engine.flush()
    files.fail(kind, at, for_good=for_good)
    failed = False
    for step in (make_checkpoint, lambda engine: prune(engine, 0)):
        try:
            step(engine)
        except RecordingFailed:
            failed = True
    before = nodes.dump(engine)
    assert failed or files.counts[kind] < files._faults[kind][0]
    nodes.drop(engine)
    files.mend()
    files.power_cut()
    invalidate(path)
    again = nodes.open_node(path, files)
    assert nodes.dump(again) == before
    assert verify(again).faults == ()
    make_checkpoint(again)
    again.close()
    assert [name for name in names(path) if not name.endswith(".mdb")] == []


def test_a_checkpoint_that_cannot_be_made_leaves_the_others_and_nothing_else(
    path: Path, engine: Engine
) -> None:
    engine.close()
    files = FaultyFiles()
    engine = nodes.open_node(path, files)
    first = make_checkpoint(engine)
    nodes.held(engine, 1)
    for kind in ("write", "rename"):
        files.fail(kind)
        with pytest.raises(RecordingFailed, match="a checkpoint cannot be made"):
            make_checkpoint(engine)
        assert names(path) == [first.path.name]
    nodes.settle(engine, nodes.held(engine, 1).hold, 1)
    assert len(names(path)) == 1
    make_checkpoint(engine)
    assert len(names(path)) == 2
    engine.close()


def test_a_checkpoint_is_not_published_where_the_journal_cannot_be_flushed(
    path: Path, engine: Engine
) -> None:
    engine.close()
    files = FaultyFiles()
    engine = nodes.open_node(path, files)
    nodes.held(engine, 1)
    files.fail("flush")
    with pytest.raises(RecordingFailed):
        make_checkpoint(engine)
    assert names(path) == []
    assert engine.health().failed
    nodes.drop(engine)


def test_a_disk_without_room_for_a_copy_keeps_what_it_has_for_calls(
    path: Path, engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    health = engine.health()
    short = health.space._replace(disk_free=health.space.state_used + 4 * SEGMENT)
    monkeypatch.setattr(engine, "health", lambda: health._replace(space=short))
    with pytest.raises(RecordingFailed, match="no room for a copy of the state"):
        make_checkpoint(engine)
    assert names(path) == []
    monkeypatch.undo()
    make_checkpoint(engine)
    assert len(names(path)) == 1


def test_what_was_committed_while_the_copy_began_is_on_disk_before_it_is_published(
    path: Path, engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    copy_to = engine.store.copy_to

    def copy(fd: int) -> None:
        nodes.held(engine, 1)
        copy_to(fd)

    monkeypatch.setattr(engine.store, "copy_to", copy)
    checkpoint = make_checkpoint(engine)
    assert checkpoint.tail == engine.store.tail()
    assert engine.control.durable() == checkpoint.tail.end
