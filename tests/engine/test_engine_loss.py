"""The way out of a refusal: named by the dry run, taken on the owner's word, done as a whole."""

from __future__ import annotations

import errno
import json
import shutil
from collections.abc import Callable
from pathlib import Path

import nodes
import pytest
import ruins
from nodes import SEGMENT
from processes import Child, Pipe
from ruins import Left, Ruin

from finomw.engine import charge, grants
from finomw.engine.analysis import dry_run
from finomw.engine.directory import find
from finomw.engine.loss import Assessment, accept_loss, assess, rebuild
from finomw.engine.verify import verify
from finomw.errors import DirectoryError, FinomwError, InvalidValue, JournalDamaged, ReplayDiffers
from finomw.journal.control import Control
from finomw.journal.files import Files
from finomw.journal.recovery import Outcome
from finomw.store.checkpoints import listed
from finomw.testing.clock import ManualClock
from finomw.testing.fatal import Fatal
from finomw.testing.files import FaultyFiles

Happens = Callable[[Left], Ruin]

each_ruin = pytest.mark.parametrize(
    ("happens", "checkpoints"),
    [(happens, ()) for happens in ruins.EVERYWHERE]
    + [(happens, ruins.CHECKPOINTS_AT) for happens in ruins.WITH_CHECKPOINTS],
)


def contents(path: Path) -> dict[str, tuple[bytes, int]]:
    """Return every file of a node but the locks, with when it was changed."""
    files = (file for file in path.rglob("*") if file.is_file() and file.suffix != ".lock")
    return {
        str(file.relative_to(path)): (file.read_bytes(), file.stat().st_mtime_ns) for file in files
    }


def kept(path: Path) -> dict[str, bytes]:
    """Return what a node's journal and checkpoints are."""
    folders = ("journal", "checkpoints")
    files = (file for folder in folders for file in (path / folder).iterdir())
    return {str(file.relative_to(path)): file.read_bytes() for file in files}


def moved(path: Path) -> dict[str, bytes]:
    """Return all files that were ever moved aside, by name."""
    files = (file for file in path.glob("lost/*/*") if file.name != "records.jsonl")
    return {file.name: file.read_bytes() for file in files}


def nothing_is_gone(path: Path, before: dict[str, bytes]) -> None:
    """Every file of journal and checkpoints is as it was, or lies aside as it was."""
    now, aside = kept(path), moved(path)
    for name, content in before.items():
        assert now.get(name) == content or aside[Path(name).name] == content, name


def lsns(found: Assessment) -> tuple[list[int], list[tuple[int, int]]]:
    """Return the lost records and the lost stretches of an assessment."""
    records = [lost.lsn for lost in found.lost if lost.command is not None]
    return records, [(lost.lsn, lost.end) for lost in found.lost if lost.command is None]


def prefix(left: Left, end: int) -> dict[str, object]:
    """Return what the state has to be, from the records before an LSN alone."""
    path = left.path.with_name("prefix")
    shutil.copytree(left.path, path)
    for name in ("state", "checkpoints", "lost"):
        shutil.rmtree(path / name, ignore_errors=True)
    (path / "control").unlink(missing_ok=True)
    for file in (path / "journal").iterdir():
        base = int(file.stem, 16)
        if base >= end:
            file.unlink()
        elif base + SEGMENT > end:
            with file.open("r+b") as opened:
                opened.seek(end - base)
                opened.write(bytes(SEGMENT - (end - base)))
    engine = nodes.open_node(path)
    state = nodes.dump(engine)
    nodes.drop(engine)
    shutil.rmtree(path)
    return state


@each_ruin
def test_only_the_named_loss_is_accepted_and_then_the_node_goes_on(
    tmp_path: Path, happens: Happens, checkpoints: tuple[int, ...]
) -> None:
    left = ruins.leave(tmp_path / "node", checkpoints)
    whole = prefix(left, left.records[-1].end)
    ruin = happens(left)
    path, clock = left.path, ManualClock()
    originals = kept(path)
    with pytest.raises((JournalDamaged, ReplayDiffers)):
        nodes.open_node(path)
    before = contents(path)
    for _ in range(2):
        found = assess(path)
        assert found.plan.outcome is Outcome.REFUSE
        assert (found.end, *lsns(found)) == (ruin.end, ruin.lost, ruin.unread)
    for other in (0, ruin.end - 8, ruin.end + 8, left.records[-1].end + 8):
        with pytest.raises(InvalidValue, match=f"ends at LSN {ruin.end}, not {other}"):
            accept_loss(path, other, clock)
    assert contents(path) == before
    accepted, aside = accept_loss(path, ruin.end, clock)
    assert (accepted.end, accepted.lost) == (found.end, found.lost)
    nothing_is_gone(path, originals)
    gone = {Path(name).name for name, data in originals.items() if kept(path).get(name) != data}
    assert set(moved(path)) == gone
    if aside is None:
        assert happens in (ruins.watermark_beyond, ruins.end_is_zeros)
        assert gone == set()
    else:
        assert aside == path / "lost" / f"{ruin.end:016x}"
        lines = (aside / "records.jsonl").read_text().splitlines()
        assert [json.loads(line)["lsn"] for line in lines] == [lost.lsn for lost in found.lost]
    plan = dry_run(path)
    assert (plan.error, plan.tail.end) == (None, ruin.end)
    engine = nodes.open_node(path)
    if happens in (ruins.hole_below_the_checkpoint, ruins.checkpoint_of_another_life):
        assert nodes.dump(engine) == whole
    else:
        assert nodes.dump(engine) == prefix(left, ruin.end)
    goes_on(path, engine)


def goes_on(path: Path, engine: nodes.Engine) -> None:
    """Charge, kill, rebuild, and prove the books; no id of the lost life is given again."""
    assert verify(engine).faults == ()
    assert engine.worker > find(path).node.incarnation << 30
    for _ in range(200):
        nodes.settle(engine, nodes.held(engine, 9).hold, 8)
    again = nodes.rebuilt(engine, path)
    assert verify(again).faults == ()
    again.close()


@each_ruin
def test_a_power_cut_right_after_brings_back_no_more_than_the_same_refusal(
    tmp_path: Path, happens: Happens, checkpoints: tuple[int, ...]
) -> None:
    """The control file is flushed; here it is the one of before nevertheless."""
    left = ruins.leave(tmp_path / "node", checkpoints)
    ruin = happens(left)
    control = left.path / "control"
    old = control.read_bytes() if control.exists() else None
    accept_loss(left.path, ruin.end, ManualClock())
    after = kept(left.path)
    if old is not None:
        control.write_bytes(old)
        found = assess(left.path)
        if found.plan.error is not None:
            assert (found.end, found.lost) == (ruin.end, ())
            assert accept_loss(left.path, ruin.end, ManualClock())[1] is None
    assert kept(left.path) == after
    goes_on(left.path, nodes.open_node(left.path))


def accept_fatally(pipe: Pipe, path: Path, end: int, fatal: int) -> None:
    files = Fatal()
    files.arm(fatal)
    accept_loss(path, end, ManualClock(), files)
    pipe.send(files.done)


@pytest.mark.parametrize(
    ("happens", "checkpoints"),
    [
        (ruins.hole_without_witness, ()),
        (ruins.checkpoint_s_record_damaged, ruins.CHECKPOINTS_AT),
    ],
)
def test_a_loss_that_is_killed_at_any_step_is_gone_on_with(
    tmp_path: Path, happens: Happens, checkpoints: tuple[int, ...]
) -> None:
    left = ruins.leave(tmp_path / "node", checkpoints)
    ruin = happens(left)
    originals = kept(left.path)
    expected = assess(left.path).lost
    results = []
    steps, fatal = 1, 0
    while fatal <= steps:
        path = tmp_path / str(fatal)
        shutil.copytree(left.path, path)
        child = Child(accept_fatally, path, ruin.end, fatal)
        if fatal == 0:
            steps = child.receive()
            child.finish()
            assert steps > 30
        else:
            child.killed()
            again(path, ruin.end, expected)
        nothing_is_gone(path, originals)
        assert not list(path.glob("lost/*unfinished"))
        results.append(kept(path))
        engine = nodes.open_node(path)
        assert engine.tail() == ruin.end
        assert verify(engine).faults == ()
        engine.close()
        shutil.rmtree(path)
        fatal += 1
    assert all(result == results[0] for result in results)


def again(path: Path, end: int, expected: object) -> None:
    """Do what an owner does whose command was cut off: ask again, and say the same."""
    found = assess(path)
    if found.plan.error is None:
        return  # it was complete
    assert found.end == end
    if list(path.glob(f"lost/{end:016x}")):
        assert found.lost == ()  # all but the last word had been said
    else:
        assert found.lost == expected
    accept_loss(path, end, ManualClock())


@pytest.mark.parametrize("kind", ["write", "rename", "sync", "flush", "allocate"])
@pytest.mark.parametrize("at", [1, 2, 3, 4])
def test_a_fault_and_a_power_cut_leave_a_loss_that_can_be_done_again(
    tmp_path: Path, kind: str, at: int
) -> None:
    left = ruins.leave(tmp_path / "node", ruins.CHECKPOINTS_AT)
    ruin = ruins.checkpoint_s_record_damaged(left)
    if kind == "allocate":
        (left.path / "control").unlink()
    originals = kept(left.path)
    files = FaultyFiles()
    files.fail(kind, at, error=errno.ENOSPC)
    try:
        accept_loss(left.path, ruin.end, ManualClock(), files)
    except OSError:
        files.mend()
        files.power_cut()
        nothing_is_gone(left.path, originals)
        assert assess(left.path).end == ruin.end
        accept_loss(left.path, ruin.end, ManualClock(), files)
    files.power_cut()
    nothing_is_gone(left.path, originals)
    engine = nodes.open_node(left.path)
    assert engine.tail() == ruin.end
    goes_on(left.path, engine)


def test_zeros_that_a_failed_flush_did_not_write_are_written_by_the_next_try(
    tmp_path: Path,
) -> None:
    left = ruins.leave(tmp_path / "node")
    ruin = ruins.replay_differs(left)
    files = FaultyFiles()
    # The kept segments, the demand, and then the zeros.
    files.fail("flush", ruin.end // SEGMENT + 3)
    with pytest.raises(OSError, match="Input/output"):
        accept_loss(left.path, ruin.end, ManualClock(), files)
    files.mend()
    accept_loss(left.path, ruin.end, ManualClock(), files)
    files.power_cut()
    assert ruins.all_records(left.path)[-1].end == ruin.end
    goes_on(left.path, nodes.open_node(left.path))


def test_two_losses_at_one_place_keep_a_folder_each(tmp_path: Path) -> None:
    left = ruins.leave(tmp_path / "node")
    ruin = ruins.damaged_record(left)
    folders = []
    for _ in range(2):
        folders.append(accept_loss(left.path, ruin.end, ManualClock())[1])
        engine = nodes.open_node(left.path)
        grants.grant(engine, nodes.ALICE, 5, "again", str(len(folders)))
        nodes.drop(engine)
        ruins.new_boot(left.path)
        ruins.overwrite(left.path, ruin.end + 40, b"????")
    name = f"{ruin.end:016x}"
    assert folders == [left.path / "lost" / name, left.path / "lost" / f"{name}.2"]


def test_a_lost_hold_s_id_is_never_given_again(tmp_path: Path) -> None:
    left = ruins.leave(tmp_path / "node")
    ruin = ruins.damaged_record(left)
    given = {
        lost.fields["worker"] for lost in assess(left.path).lost if lost.command == "OpenWorker"
    }
    accept_loss(left.path, ruin.end, ManualClock())
    for incarnation in (1, 2):
        assert find(left.path).node.incarnation > incarnation
    engine = nodes.open_node(left.path)
    assert engine.worker not in given
    held = nodes.held(engine, 1)
    assert isinstance(held, charge.Held)
    assert int(held.hold.split("-")[1]) > 1 << 30
    engine.close()


def test_segments_of_the_lost_life_are_refused_when_they_come_back(tmp_path: Path) -> None:
    left = ruins.leave(tmp_path / "node")
    ruin = ruins.segment_missing(left)
    _, aside = accept_loss(left.path, ruin.end, ManualClock())
    assert aside is not None
    engine = nodes.open_node(left.path)
    nodes.fill_to(engine, SEGMENT + 8_000)
    end = engine.tail()
    engine.close()
    name = f"{2 * SEGMENT:016x}.seg"
    back = left.path / "journal" / name
    back.unlink(missing_ok=True)
    shutil.copy(aside / name, back)
    before = contents(left.path)
    assert dry_run(left.path).outcome is Outcome.REFUSE
    with pytest.raises(JournalDamaged, match=r"of the node's incarnation 1, but one before it of"):
        nodes.open_node(left.path)
    changed = {name for name, was in contents(left.path).items() if before[name] != was}
    assert changed <= {"control"}
    found = assess(left.path)
    assert found.end == end
    accept_loss(left.path, end, ManualClock())
    goes_on(left.path, nodes.open_node(left.path))


@pytest.mark.parametrize("same_boot", [True, False])
def test_what_is_not_refused_cannot_be_given_up(tmp_path: Path, same_boot: bool) -> None:
    left = ruins.leave(tmp_path / "node")
    if same_boot:
        nodes.open_node(left.path).close()
    before = contents(left.path)
    found = assess(left.path)
    assert (found.plan.error, found.end, found.lost) == (None, None, ())
    with pytest.raises(InvalidValue, match="not refused here, so there is nothing to lose"):
        accept_loss(left.path, left.records[20].lsn, ManualClock())
    assert contents(left.path) == before


def newer_journal(left: Left) -> str:
    ruins.overwrite(left.path, SEGMENT + 8, (2).to_bytes(4, "little"))
    return "journal format 2 is newer than this finomw"


def newer_control(left: Left) -> str:
    with (left.path / "control").open("r+b") as file:
        file.seek(8)
        file.write((99).to_bytes(8, "little"))
    return "version 99 is newer than this finomw"


def damaged_control(left: Left) -> str:
    with (left.path / "control").open("r+b") as file:
        file.seek(64)
        file.write((999).to_bytes(8, "little"))
    return "999 slots of 256 are in use; stop every process that uses this directory, then move"


def no_beginning(left: Left) -> str:
    """Prune what the checkpoints stand for, and break both."""
    ruins.segment_file(left.path, 0).unlink()
    for file in listed(left.path / "checkpoints"):
        file.write_bytes(file.read_bytes()[:-1])
    return "restore a checkpoint or the node from a backup"


def first_header(left: Left) -> str:
    for file in listed(left.path / "checkpoints"):
        file.unlink()
    ruins.overwrite(left.path, 40, b"????")
    return "the segment's header is damaged; put the right file back"


@pytest.mark.parametrize(
    "happens", [newer_journal, newer_control, damaged_control, no_beginning, first_header]
)
def test_a_refusal_that_no_loss_helps_says_what_does(
    tmp_path: Path, happens: Callable[[Left], str]
) -> None:
    left = ruins.leave(tmp_path / "node", ruins.CHECKPOINTS_AT)
    if happens is newer_journal:
        for file in listed(left.path / "checkpoints"):
            file.unlink()
    told = happens(left)
    before = contents(left.path)
    found = assess(left.path)
    assert (found.plan.outcome, found.end, found.lost) == (Outcome.REFUSE, None, ())
    assert told in str(found.plan.error)
    for end in (4096, left.records[20].lsn):
        with pytest.raises(FinomwError) as caught:
            accept_loss(left.path, end, ManualClock())
        assert str(caught.value) == str(found.plan.error)
    assert contents(left.path) == before


def test_a_rebuild_believes_nothing_but_the_disk(tmp_path: Path) -> None:
    left = ruins.leave(tmp_path / "node")
    engine = nodes.open_node(left.path)
    before = nodes.dump(engine)
    engine.close()
    state = left.path / "state" / "data.mdb"
    inode = state.stat().st_ino
    assert dry_run(left.path).outcome is Outcome.GO_ON
    plan = rebuild(left.path)
    assert plan.records == len(left.records)
    assert state.stat().st_ino != inode
    again = nodes.open_node(left.path)
    assert nodes.dump(again) == before
    again.close()


def test_a_rebuild_that_would_fail_leaves_a_state_that_can_still_be_believed(
    tmp_path: Path,
) -> None:
    left = ruins.leave(tmp_path / "node")
    nodes.drop(nodes.open_node(left.path))
    ruins.damaged_record(left)
    assert dry_run(left.path).outcome is Outcome.GO_ON
    with pytest.raises(JournalDamaged):
        rebuild(left.path)
    assert dry_run(left.path).outcome is Outcome.GO_ON
    nodes.open_node(left.path).close()


def test_everything_asks_for_a_directory_that_nobody_has_open(path: Path) -> None:
    engine = nodes.open_node(path)
    for ask in (assess, rebuild, lambda path: accept_loss(path, 4096, ManualClock())):
        with pytest.raises(DirectoryError, match="a process has it open; stop it first"):
            ask(path)
    engine.close()


def test_a_rehearsal_without_room_says_where_room_is_wanted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    left = ruins.leave(tmp_path / "node")
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "nowhere"))
    with pytest.raises(DirectoryError, match="TMPDIR name a place with 1048576 bytes or more"):
        assess(left.path)


def test_what_a_failed_flush_left_in_memory_alone_is_on_disk_after_a_loss(tmp_path: Path) -> None:
    """The kept part of the journal was read from the page cache: the loss stores it again."""
    left = ruins.leave(tmp_path / "node")
    files = FaultyFiles()
    engine = nodes.open_node(left.path, files)
    nodes.settle(engine, nodes.held(engine, 9).hold, 8)
    base = engine.tail() // SEGMENT * SEGMENT
    engine.segments.at(base).file.flush()
    for number in range(10):
        grants.grant(engine, nodes.ALICE, 1, "late", str(number))
    end = engine.tail()
    nodes.held(engine, 5)
    files.fail("flush", for_good=True)
    with pytest.raises(OSError, match="Input/output"):
        engine.segments.at(base).file.flush()
    nodes.drop(engine)
    files.mend()
    records_now = ruins.all_records(left.path)
    forged = Left(left.path, records_now, [])
    ruins.forge_result(forged, -1)
    control = Control(Files(), left.path / "control")
    control.distrust()
    control.close()
    assert assess(left.path).end == end
    accept_loss(left.path, end, ManualClock(), files)
    files.power_cut()
    assert ruins.all_records(left.path)[-1].end == end
