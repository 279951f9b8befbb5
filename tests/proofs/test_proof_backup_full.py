"""A backup, or a loss that is accepted, on a disk that is full: said, and nothing is left half."""

from __future__ import annotations

import shutil
import sys
from contextlib import suppress
from pathlib import Path

import pytest
from mounts import small_tmpfs

sys.path.insert(0, str(Path(__file__).parent.parent / "engine"))

import nodes
import ruins

from finomw import limits
from finomw.engine.backup import back_up, restore
from finomw.engine.loss import accept_loss, assess
from finomw.engine.verify import verify
from finomw.errors import DirectoryError, FinomwError, RecordingFailed
from finomw.testing.clock import ManualClock

KIB = limits.KIB


@pytest.mark.parametrize("room", [8 * KIB, 40 * KIB, 100 * KIB, 140 * KIB])
def test_a_backup_or_a_restore_without_room_leaves_no_trace(tmp_path: Path, room: int) -> None:
    """The copy of the state takes about 50 KiB, the segment 64 KiB."""
    left = ruins.leave(tmp_path / "node")
    engine = nodes.open_node(left.path)
    with small_tmpfs(room) as disk:
        with pytest.raises((DirectoryError, RecordingFailed), match=r"No space|cannot be made"):
            back_up(engine, disk.path / "backup")
        assert list(disk.path.iterdir()) == []
        back_up(engine, tmp_path / "backup")
        with pytest.raises(DirectoryError, match="cannot be made: No space left on device"):
            restore(tmp_path / "backup", disk.path / "again", ManualClock())
        assert list(disk.path.iterdir()) == []
    assert verify(engine).faults == ()
    engine.close()


def fill(path: Path) -> None:
    """Leave no room on a file system."""
    with path.open("wb", buffering=0) as file, suppress(OSError):
        while file.write(bytes(KIB)):
            pass


def test_a_loss_without_room_to_keep_it_is_not_accepted_and_then_is(tmp_path: Path) -> None:
    left = ruins.leave(tmp_path / "node")
    ruin = ruins.damaged_record(left)
    with small_tmpfs(4 * limits.MIB) as disk:
        shutil.copytree(left.path, disk.path / "node", dirs_exist_ok=True)
        path, filler = disk.path / "node", disk.path / "filler"
        fill(filler)
        before = {file.name: file.read_bytes() for file in (path / "journal").iterdir()}
        with pytest.raises((OSError, FinomwError), match="No space"):
            accept_loss(path, ruin.end, ManualClock())
        now = {file.name: file.read_bytes() for file in path.rglob("*.seg")}
        assert now == before
        filler.unlink()
        assert assess(path).end == ruin.end
        accept_loss(path, ruin.end, ManualClock())
        engine = nodes.open_node(path)
        assert engine.tail() == ruin.end
        assert verify(engine).faults == ()
        nodes.drop(engine)
