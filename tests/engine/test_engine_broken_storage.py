"""Storage that others keep: copies under way, locks of stopped processes, places to read only."""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import nodes
import pytest
from nodes import ALICE, held, open_node, settle
from processes import Child, Pipe

from finomw.engine.backup import back_up, restore
from finomw.engine.checkpoint import make_checkpoint
from finomw.engine.customers import add_customer
from finomw.engine.engine import Engine
from finomw.engine.grants import grant
from finomw.engine.verify import verify
from finomw.errors import RecordingFailed
from finomw.journal.files import ReadOnlyFiles
from finomw.journal.locks import FileLock
from finomw.store.checkpoints import listed
from finomw.testing.clock import ManualClock
from finomw.types import Refusal


@contextmanager
def copy_under_way(engine: Engine) -> Iterator[None]:
    """Have a copy of the state stand still in another thread: nobody reads what it writes."""
    reader, writer = os.pipe()
    copier = threading.Thread(target=lambda: engine.store.copy_to(writer))
    copier.start()
    # It has its snapshot when it writes.
    os.read(reader, 1)
    try:
        yield
        assert copier.is_alive()
    finally:
        drain = threading.Thread(target=lambda: read_out(reader))
        drain.start()
        copier.join(60)
        os.close(writer)
        drain.join(60)
        os.close(reader)


def read_out(fd: int) -> None:
    while os.read(fd, 1 << 20):
        pass


def test_a_refused_call_waits_for_no_copy_of_the_state(engine: Engine) -> None:
    for _ in range(300):  # more than fits a pipe
        settle(engine, held(engine, 0).hold, 0)
    with copy_under_way(engine):
        assert nodes.hold(engine, 10**9) is Refusal.EXHAUSTED
        settle(engine, held(engine, 5).hold, 5)
        assert engine.flush() == engine.tail()
    assert verify(engine).faults == ()


def grow_and_fill(pipe: Pipe, path: Path) -> None:
    engine = open_node(path)
    size = engine.store.room().size
    engine.store.grow()
    with engine.store.read():  # so that no page is used again
        filler = threading.Thread(target=fill_beyond, args=(engine, size))
        filler.start()
        filler.join()
    pipe.send(engine.store.room().used > size)
    engine.close()


def fill_beyond(engine: Engine, size: int) -> None:
    while engine.store.room().used <= size:
        grant(engine, ALICE, 1, "test", f"more {engine.tail()}")


def test_a_copy_follows_a_state_that_another_process_made_larger(tmp_path: Path) -> None:
    path = nodes.make(tmp_path / "node", 1 << 20)
    engine = open_node(path)
    add_customer(engine, ALICE, nodes.PLAN)
    child = Child(grow_and_fill, path)
    assert child.receive() is True
    child.finish()
    with (tmp_path / "copy").open("wb") as file:
        engine.store.copy_to(file.fileno())
    assert (tmp_path / "copy").stat().st_size > 0
    assert verify(engine).faults == ()
    engine.close()


def test_who_keeps_house_does_not_wait_for_another_s_checkpoint(engine: Engine) -> None:
    stopped = FileLock(engine.directory.checkpoint_lock)
    stopped.exclusive()
    with pytest.raises(RecordingFailed, match="another process makes a checkpoint already"):
        make_checkpoint(engine, wait=False)
    assert listed(engine.directory.checkpoints) == []
    stopped.close()
    made = make_checkpoint(engine, wait=False)
    assert listed(engine.directory.checkpoints) == [made.path]


def test_a_backup_that_may_only_be_read_is_restored(
    engine: Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    done = back_up(engine, tmp_path / "backup")
    really_open = os.open

    def read_only(path: str | Path, flags: int, *rest: int) -> int:
        if Path(path).is_relative_to(tmp_path / "backup") and flags & (os.O_WRONLY | os.O_RDWR):
            raise OSError(errno.EROFS, "Read-only file system", str(path))
        return really_open(path, flags, *rest)

    with monkeypatch.context() as patch:
        patch.setattr(os, "open", read_only)
        restored = restore(tmp_path / "backup", tmp_path / "again", ManualClock())
    assert restored.end == done.end
    again = open_node(tmp_path / "again")
    assert verify(again).faults == ()
    again.close()


def test_what_is_mapped_to_be_read_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(bytes(4096))
    file = ReadOnlyFiles().map(tmp_path / "file", 4096)
    with pytest.raises(TypeError):
        file.store(0, b"x")
    with pytest.raises(TypeError):
        file.store_word(0, 1)
    file.close()
    assert (tmp_path / "file").read_bytes() == bytes(4096)
