"""Every row of the decision tables, on a real directory: what a dry run says, what a start does."""

from __future__ import annotations

import json
import logging
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple
from zlib import crc32

import nodes
import pytest
from nodes import ALICE, SEGMENT

from finomw.engine import customers, grants
from finomw.engine.analysis import analyse, dry_run
from finomw.engine.checkpoint import make_checkpoint, prune
from finomw.engine.directory import find
from finomw.engine.engine import Engine
from finomw.engine.verify import verify
from finomw.errors import DirectoryError, FinomwError, JournalDamaged
from finomw.journal.control import VERSION, Control
from finomw.journal.files import Files
from finomw.journal.format import START
from finomw.journal.recovery import Behind, Outcome
from finomw.store.checkpoints import listed
from finomw.store.env import DATA


class Left(NamedTuple):
    """What an engine leaves that was killed: what is durable, and what is only committed."""

    path: Path
    durable: dict[str, object]
    durable_end: int
    committed: dict[str, object]
    end: int
    at_durable: dict[str, bytes]


def leave(path: Path, *, checkpoints: int = 0, segments: int = 0) -> Left:
    """Run a node for a while and kill it: its last three records were not flushed."""
    engine = nodes.open_node(nodes.make(path))
    customers.add_customer(engine, ALICE, nodes.PLAN)
    grants.grant(engine, ALICE, 1_000, "test", "first")
    nodes.fill_to(engine, segments * SEGMENT)
    for _ in range(checkpoints):
        nodes.held(engine, 1)
        make_checkpoint(engine)
    nodes.held(engine, 10)
    engine.flush()
    durable, durable_end = nodes.dump(engine), engine.tail()
    at_durable = nodes.journal_bytes(path)
    for amount in (20, 30, 40):
        nodes.held(engine, amount)
    committed, end = nodes.dump(engine), engine.tail()
    nodes.drop(engine)
    return Left(path, durable, durable_end, committed, end, at_durable)


@pytest.fixture
def left(tmp_path: Path) -> Left:
    return leave(tmp_path / "node")


def contents(path: Path) -> dict[str, bytes]:
    """Return every file but the locks, which may be made at any time."""
    files = (file for file in path.rglob("*") if file.is_file() and file.suffix != ".lock")
    return {str(file.relative_to(path)): file.read_bytes() for file in files}


def started(left: Left, caplog: pytest.LogCaptureFixture) -> tuple[dict[str, object], list[str]]:
    """Start a node; return all it says and the levels of what was logged."""
    with caplog.at_level(logging.INFO, "finomw"):
        engine = nodes.open_node(left.path)
    state = nodes.dump(engine)
    assert verify(engine).faults == ()
    assert engine.durable() == engine.tail()
    nodes.held(engine, 0)
    engine.close()
    return state, [record.levelname for record in caplog.records]


def with_control(left: Left, act: Callable[[Control], None]) -> None:
    control = Control(Files(), left.path / "control")
    act(control)
    control.close()


def overwrite(left: Left, lsn: int, data: bytes) -> None:
    with (left.path / "journal" / f"{lsn - lsn % SEGMENT:016x}.seg").open("r+b") as file:
        file.seek(lsn % SEGMENT)
        file.write(data)


def replace_journal(left: Left, files: dict[str, bytes]) -> None:
    for name, data in files.items():
        (left.path / "journal" / name).write_bytes(data)


def same_boot(left: Left) -> None:
    """Change nothing."""


def new_boot(left: Left) -> None:
    def reboot(control: Control) -> None:
        epoch = control.epoch()
        assert epoch is not None
        control.file.store(16, bytes(b ^ 1 for b in epoch.boot))

    with_control(left, reboot)


def control_lost(left: Left) -> None:
    (left.path / "control").unlink()


def rebuild_interrupted(left: Left) -> None:
    with_control(left, Control.distrust)


def state_missing(left: Left) -> None:
    (left.path / "state" / DATA).unlink()


def state_directory_missing(left: Left) -> None:
    shutil.rmtree(left.path / "state")


def state_moved(left: Left) -> None:
    (left.path / "state").rename(left.path / "was")
    shutil.copytree(left.path / "was", left.path / "state")


def state_unreadable(left: Left) -> None:
    (left.path / "state" / DATA).write_bytes(os.urandom(1 << 20))


def state_cut_off(left: Left) -> None:
    os.truncate(left.path / "state" / DATA, 3 * 4096)


def flush_failed(left: Left) -> None:
    with_control(left, Control.fail)


def lmdb_newer(left: Left) -> None:
    replace_journal(left, left.at_durable)


GO, QUIET, LOUD = Outcome.GO_ON, Outcome.RECOVER, Outcome.REPORT


@pytest.mark.parametrize(
    ("happens", "outcome", "reason", "keeps_all"),
    [
        (same_boot, GO, "up to date", True),
        (new_boot, QUIET, "started anew", True),
        (control_lost, QUIET, "the control file is new", True),
        (rebuild_interrupted, QUIET, "a rebuild was interrupted", True),
        (state_missing, QUIET, "the state is missing", True),
        (state_directory_missing, QUIET, "the state is missing", True),
        (state_moved, QUIET, "another one", True),
        (state_unreadable, LOUD, "cannot be read", True),
        (state_cut_off, LOUD, "cannot be read", True),
        (flush_failed, LOUD, "a flush to disk failed", True),
        (lmdb_newer, LOUD, "newer than the journal", False),
    ],
)
@pytest.mark.parametrize("checkpoints", [0, 2])
def test_a_row_of_the_first_table(
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    happens: Callable[[Left], None],
    outcome: Outcome,
    reason: str,
    keeps_all: bool,
    checkpoints: int,
) -> None:
    left = leave(tmp_path / "node", checkpoints=checkpoints)
    happens(left)
    before = contents(left.path)
    plan = dry_run(left.path)
    assert contents(left.path) == before
    assert (plan.outcome, plan.error, plan.behind) == (outcome, None, Behind.ZEROS)
    assert reason in plan.reason
    assert plan.tail.end == (left.end if keeps_all else left.durable_end)
    assert not plan.clean
    if outcome is Outcome.GO_ON:
        assert (plan.records, plan.checkpoint) == (0, None)
    else:
        assert (plan.checkpoint is not None) is (checkpoints > 0)
        assert plan.records == plan.tail.number - (plan.start.number if checkpoints else 0)
    state, levels = started(left, caplog)
    assert state == (left.committed if keeps_all else left.durable)
    assert levels == ["WARNING" if outcome is LOUD else "INFO"]
    assert dry_run(left.path).outcome is Outcome.GO_ON
    kept = {file.name for file in (left.path / "state").iterdir() if file.name[-4:] != "lock"}
    kept -= {"lock.mdb"}
    worthless = outcome is GO or happens in (new_boot, state_missing, state_directory_missing)
    assert kept == ({DATA} if worthless else {DATA, f"{DATA}.old"})


def test_lmdb_older_than_the_journal_is_rebuilt_and_reported(
    left: Left, caplog: pytest.LogCaptureFixture
) -> None:
    older = (left.path / "state" / DATA).read_bytes()
    later = nodes.open_node(left.path)
    nodes.held(later, 5)
    later.flush()
    committed = nodes.dump(later)
    nodes.drop(later)
    caplog.clear()
    (left.path / "state" / DATA).write_bytes(older)
    plan = dry_run(left.path)
    assert (plan.outcome, plan.reason) == (LOUD, "the state is older than what is durable")
    assert started(left, caplog) == (committed, ["WARNING"])


def test_set_aside_copies_do_not_accumulate(left: Left) -> None:
    for happens in (state_moved, new_boot, state_unreadable, new_boot, control_lost, new_boot):
        shutil.rmtree(left.path / "was", ignore_errors=True)
        happens(left)
        nodes.drop(nodes.open_node(left.path))
        names = [file.name for file in (left.path / "state").iterdir()]
        assert sorted(name for name in names if name.startswith(DATA))[2:] == []
        assert "rebuild" not in names


def test_a_torn_tail_is_cut_and_reported(left: Left, caplog: pytest.LogCaptureFixture) -> None:
    new_boot(left)
    overwrite(left, left.durable_end + 20, bytes(SEGMENT - left.durable_end - 20))
    plan = dry_run(left.path)
    assert (plan.outcome, plan.behind, plan.tail.end) == (LOUD, Behind.BYTES, left.durable_end)
    assert started(left, caplog) == (left.durable, ["WARNING"])
    assert f"torn tail cut at LSN {left.durable_end}" in caplog.text


def test_life_behind_a_gap_that_was_never_durable_is_cut(
    left: Left, caplog: pytest.LogCaptureFixture
) -> None:
    new_boot(left)
    overwrite(left, left.durable_end + 40, b"????")
    plan = dry_run(left.path)
    assert (plan.outcome, plan.behind) == (LOUD, Behind.RECORDS)
    assert started(left, caplog) == (left.durable, ["WARNING"])
    assert f"records behind a gap cut at LSN {left.durable_end}" in caplog.text


def hole_in_what_is_durable(left: Left) -> None:
    overwrite(left, START.end + 40, b"????")


def durable_end_is_zeros(left: Left) -> None:
    overwrite(left, left.durable_end - 64, bytes(SEGMENT - left.durable_end % SEGMENT + 64))


def segment_missing_in_the_middle(left: Left) -> None:
    (left.path / "journal" / f"{SEGMENT:016x}.seg").unlink()


def first_segment_missing(left: Left) -> None:
    (left.path / "journal" / f"{0:016x}.seg").unlink()


def segment_cut_off(left: Left) -> None:
    os.truncate(left.path / "journal" / f"{SEGMENT:016x}.seg", SEGMENT - 1)


def segment_of_another_node(left: Left) -> None:
    other = nodes.make(left.path.parent / "other")
    name = f"{SEGMENT:016x}.seg"
    shutil.copy(other / "journal" / name, left.path / "journal" / name)


def segment_of_a_later_incarnation(left: Left) -> None:
    file = left.path / "journal" / f"{SEGMENT:016x}.seg"
    data = bytearray(file.read_bytes())
    data[64:72] = (2).to_bytes(8, "little")
    data[12:16] = bytes(4)
    data[12:16] = crc32(data[:128]).to_bytes(4, "little")
    file.write_bytes(data)


def newer_journal(left: Left) -> None:
    file = left.path / "journal" / f"{SEGMENT:016x}.seg"
    with file.open("r+b") as segment:
        segment.seek(8)
        segment.write((2).to_bytes(4, "little"))


def newer_node_file(left: Left) -> None:
    file = left.path / "node.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), "format": 2}))


def newer_control(left: Left) -> None:
    with (left.path / "control").open("r+b") as file:
        file.seek(8)
        file.write((VERSION + 1).to_bytes(8, "little"))


@pytest.mark.parametrize(
    ("happens", "error", "named"),
    [
        (hole_in_what_is_durable, JournalDamaged, f"--accept-loss-after {START.end}"),
        (durable_end_is_zeros, JournalDamaged, "--accept-loss-after"),
        (segment_missing_in_the_middle, JournalDamaged, "--accept-loss-after 65456"),
        (first_segment_missing, JournalDamaged, f"the journal begins at LSN {SEGMENT}"),
        (segment_cut_off, JournalDamaged, "the segment is cut off"),
        (segment_of_another_node, JournalDamaged, "another node"),
        (segment_of_a_later_incarnation, JournalDamaged, "incarnation 2, but node.json says 1"),
        (newer_journal, DirectoryError, "journal format 2 is newer"),
        (newer_node_file, DirectoryError, "directory format 2 is newer"),
        (newer_control, DirectoryError, f"version {VERSION + 1} is newer"),
    ],
)
def test_what_is_refused_names_file_and_way_out_and_changes_nothing(
    tmp_path: Path, happens: Callable[[Left], None], error: type[FinomwError], named: str
) -> None:
    left = leave(tmp_path / "node", segments=3)
    new_boot(left)
    happens(left)
    before = contents(left.path)
    for _ in range(2):
        with pytest.raises(error) as caught:
            nodes.open_node(left.path)
        message = str(caught.value)
        assert named in message
        assert str(left.path) in message
        if isinstance(caught.value, JournalDamaged):
            assert f"LSN {caught.value.lsn}" in message
            assert "finomw recover --dry-run" in message or "node.json" in message
    changed = contents(left.path)
    assert {name for name in before if changed.get(name) != before[name]} <= {"control"}
    if happens is newer_node_file:
        with pytest.raises(DirectoryError, match=named):
            dry_run(left.path)
    else:
        plan = dry_run(left.path)
        assert plan.outcome is Outcome.REFUSE
        assert str(plan.error) == message


def test_a_missing_segment_is_refused_also_where_the_state_is_believed(tmp_path: Path) -> None:
    left = leave(tmp_path / "node", segments=3)
    segment_missing_in_the_middle(left)
    with pytest.raises(JournalDamaged, match=f"LSN {SEGMENT}: this segment of the journal is miss"):
        nodes.open_node(left.path)


def test_a_checkpoint_of_a_newer_format_is_refused(tmp_path: Path) -> None:
    left = leave(tmp_path / "node", checkpoints=2)
    newest = listed(left.path / "checkpoints")[0]
    with newest.open("r+b") as file:
        file.seek(-4096 + 8, os.SEEK_END)
        file.write((2).to_bytes(4, "little"))
    assert dry_run(left.path).outcome is Outcome.GO_ON
    new_boot(left)
    plan = dry_run(left.path)
    assert plan.outcome is Outcome.REFUSE
    with pytest.raises(DirectoryError, match="checkpoint format 2 is newer than this finomw"):
        nodes.open_node(left.path)


def test_a_journal_that_ends_before_its_checkpoint_is_damaged(tmp_path: Path) -> None:
    left = leave(tmp_path / "node", checkpoints=2)
    control_lost(left)
    newest, oldest = (int(path.stem, 16) for path in listed(left.path / "checkpoints"))
    overwrite(left, oldest, bytes(SEGMENT - oldest))
    plan = dry_run(left.path)
    assert (plan.outcome, plan.durable) == (Outcome.REFUSE, newest)
    with pytest.raises(JournalDamaged, match=f"everything up to LSN {newest} was on disk"):
        nodes.open_node(left.path)


def test_a_pruned_journal_without_its_checkpoint_s_segment_is_refused(tmp_path: Path) -> None:
    engine = nodes.open_node(nodes.make(tmp_path / "node"))
    customers.add_customer(engine, ALICE, nodes.PLAN)
    for end in (2, 3):
        nodes.fill_to(engine, end * SEGMENT)
        made = make_checkpoint(engine)
    prune(engine, 0)
    nodes.drop(engine)
    (tmp_path / "node" / "control").unlink()
    base = made.tail.lsn // SEGMENT * SEGMENT
    for file in (tmp_path / "node" / "journal").iterdir():
        if int(file.stem, 16) >= base:
            file.unlink()
    with pytest.raises(JournalDamaged, match=f"LSN {base}: this segment of the journal is missing"):
        nodes.open_node(tmp_path / "node")


def test_a_dry_run_asks_for_a_directory_that_nobody_has_open(path: Path, engine: Engine) -> None:
    with pytest.raises(DirectoryError, match="a process has it open"):
        dry_run(path)
    engine.close()
    plan = dry_run(path)
    assert (plan.outcome, plan.clean) == (Outcome.GO_ON, True)


def test_a_new_directory_starts_without_a_word(
    path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    assert dry_run(path).outcome is Outcome.RECOVER
    with caplog.at_level(logging.INFO, "finomw"):
        engine = nodes.open_node(path)
    assert caplog.messages == []
    assert engine.health().clean_start
    engine.close()


def test_a_state_that_only_looks_whole_is_rebuilt(
    left: Left, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("finomw.engine.opening._believed", lambda directory: None)
    directory = find(left.path)
    control = Control(Files(), directory.control)
    plan = analyse(directory, directory.segments(Files()), control, believe=False)
    control.close()
    assert (plan.outcome, plan.reason) == (LOUD, "the state cannot be read")
    assert started(left, caplog) == (left.committed, ["WARNING"])


@pytest.fixture
def memory(tmp_path: Path) -> Iterator[Path]:
    """Make a folder on a memory file system, removed afterwards."""
    folder = Path("/dev/shm") / f"finomw-test-{os.getpid()}-{tmp_path.name}"
    folder.mkdir()
    yield folder
    shutil.rmtree(folder, ignore_errors=True)


def test_a_link_to_a_memory_file_system_that_a_boot_has_emptied_is_followed(
    left: Left, memory: Path, caplog: pytest.LogCaptureFixture
) -> None:
    state_directory_missing(left)
    (left.path / "state").symlink_to(memory / "node" / "state")
    assert dry_run(left.path).reason == "the state is missing"
    assert started(left, caplog) == (left.committed, ["INFO"])
    assert (left.path / "state").is_symlink()
    assert (memory / "node" / "state" / DATA).exists()
    shutil.rmtree(memory / "node")
    engine = nodes.open_node(left.path)
    assert verify(engine).faults == ()
    engine.close()
