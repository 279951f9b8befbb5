"""Making a node directory, finding it, and opening it once in a process."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec
import nodes
import pytest
from nodes import SEGMENT, STATE

from finomw import limits
from finomw.engine import customers
from finomw.engine.directory import create, find
from finomw.engine.engine import close_engine, open_engine
from finomw.errors import DirectoryError, EngineClosed, JournalDamaged
from finomw.testing.clock import ManualClock
from finomw.testing.files import FaultyFiles


def test_a_new_directory_is_complete_and_private(tmp_path: Path) -> None:
    path = tmp_path / "a" / "node"
    create(path, SEGMENT, STATE)
    assert sorted(p.name for p in path.iterdir()) == [
        "checkpoints",
        "journal",
        "node.json",
        "state",
        "workers",
    ]
    assert path.stat().st_mode & 0o777 == 0o700
    assert [p.name for p in path.parent.iterdir()] == ["node"]
    node = find(path).node
    assert (node.segment_size, node.state_size, node.incarnation) == (SEGMENT, STATE, 1)
    assert len(node.short_id) == 8


def test_an_empty_directory_may_be_used_and_a_full_one_not(tmp_path: Path) -> None:
    (tmp_path / "node").mkdir()
    create(tmp_path / "node", SEGMENT, STATE)
    with pytest.raises(DirectoryError, match="there already and not empty"):
        create(tmp_path / "node", SEGMENT, STATE)
    (tmp_path / "file").touch()
    with pytest.raises(DirectoryError, match="there already"):
        create(tmp_path / "file", SEGMENT, STATE)


@pytest.mark.parametrize("kind", ["allocate", "write", "sync"])
@pytest.mark.parametrize("at", [1, 2])
def test_what_cannot_be_made_whole_is_not_made(tmp_path: Path, kind: str, at: int) -> None:
    files = FaultyFiles()
    files.fail(kind, at, for_good=True, error=28)
    if (kind, at) == ("write", 2):
        files.fail("rename", error=28)
    with pytest.raises(DirectoryError, match="cannot be made: No space left"):
        create(tmp_path / "node", SEGMENT, STATE, files)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("content", "why"),
    [
        ("{", "damaged"),
        ("[]", "damaged"),
        ('{"format": 1}', "damaged"),
        ("NEWER", "directory format 2 is newer"),
        ("SMALL", "segment_size 4096 is out of range"),
        ("NAME", "not an id of 32 hex digits"),
    ],
)
def test_a_directory_that_is_not_ours_is_refused(path: Path, content: str, why: str) -> None:
    file = path / "node.json"
    whole = file.read_text()
    changed = {
        "NEWER": whole.replace('"format":1', '"format":2'),
        "SMALL": whole.replace(str(SEGMENT), "4096"),
        "NAME": whole.replace(find(path).node.node, "x" * 32),
    }
    file.write_text(changed.get(content, content))
    with pytest.raises(DirectoryError, match=why):
        open_engine(path)


def test_what_is_no_directory_is_refused_with_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(DirectoryError, match="make one with `finomw init`"):
        open_engine(tmp_path / "nowhere")
    (tmp_path / "file").touch()
    with pytest.raises(DirectoryError, match="no node directory here"):
        find(tmp_path / "file")
    (tmp_path / "odd" / "node.json").mkdir(parents=True)
    with pytest.raises(DirectoryError, match=r"node\.json: cannot be read"):
        find(tmp_path / "odd")


@pytest.mark.parametrize("name", ["start.lock", "node.lock", "state", "control"])
def test_a_directory_that_cannot_be_opened_is_said(path: Path, name: str) -> None:
    if (path / name).exists():
        (path / name).rmdir()
    (path / name).symlink_to("/proc/nowhere/else")
    with pytest.raises(DirectoryError, match="cannot be opened"):
        open_engine(path)
    (path / name).unlink()
    close_engine(open_engine(path))


def test_a_process_shares_one_engine_whatever_the_path(path: Path, tmp_path: Path) -> None:
    clock = ManualClock()
    engine = open_engine(path, clock)
    (tmp_path / "link").symlink_to(path)
    assert open_engine(str(tmp_path / "link")) is engine
    assert engine.clock is clock
    close_engine(engine)
    assert engine.tail() >= limits.PAGE
    close_engine(engine)
    with pytest.raises(EngineClosed):
        engine.tail()
    close_engine(engine)
    again = open_engine(path)
    assert again is not engine
    close_engine(again)


def test_a_closed_engine_refuses_everything(path: Path) -> None:
    engine = nodes.open_node(path)
    worker = engine.worker
    engine.close()
    engine.close()
    for use in (
        engine.tail,
        engine.flush,
        engine.durable,
        engine.health,
        engine.prepare_next_segment,
        lambda: engine.store,
        lambda: nodes.hold(engine, 0),
    ):
        with pytest.raises(EngineClosed, match="closed in this process"):
            use()
    assert worker == 1
    assert list((path / "workers").iterdir()) == []


def test_workers_are_counted_and_leave_no_trace_when_they_close(path: Path) -> None:
    for expected in (1, 2, 3):
        engine = nodes.open_node(path)
        assert engine.worker == expected
        assert [p.name for p in (path / "workers").iterdir()] == [f"{expected}.lock"]
        engine.close()
    assert list((path / "workers").iterdir()) == []


def test_a_reader_never_becomes_a_worker(path: Path) -> None:
    engine = nodes.open_node(path)
    assert engine.health().worker == 0
    engine.prepare_next_segment()
    engine.close()
    again = nodes.open_node(path)
    assert nodes.dump(again)["workers"] == 0
    again.close()


def test_opening_leaks_no_descriptor(path: Path) -> None:
    nodes.open_node(path).close()
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(3):
        engine = nodes.open_node(path)
        assert engine.worker
        engine.close()
    assert len(os.listdir("/proc/self/fd")) == before
    (path / "journal" / f"{0:016x}.seg").write_bytes(bytes(SEGMENT))
    (path / "control").unlink()
    for _ in range(3):
        with pytest.raises(JournalDamaged):
            nodes.open_node(path)
    assert len(os.listdir("/proc/self/fd")) == before


def test_a_full_state_is_raised_in_the_node_file(path: Path) -> None:
    file = path / "node.json"
    node = msgspec.json.decode(file.read_bytes())
    raised = {**node, "state_size": 2 * node["state_size"]}
    file.write_bytes(msgspec.json.encode(raised))
    engine = nodes.open_node(path)
    customers.add_customer(engine, nodes.ALICE, nodes.PLAN)
    engine.close()
    assert (path / "state" / "data.mdb").stat().st_size == raised["state_size"]
