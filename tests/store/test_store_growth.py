"""The state grows while everybody works, or it does not grow and nothing has changed."""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from finomw import limits
from finomw.errors import DirectoryError, RecordingFailed
from finomw.store import gate, space
from finomw.store.env import DATA, Environment, StateFull, allocate_locks

SIZE = limits.MIB
ROW = bytes(2_000)


@pytest.fixture
def env(tmp_path: Path) -> Iterator[Environment]:
    env = Environment(tmp_path, SIZE)
    yield env
    env.close()


def put(env: Environment, rows: int, first: int = 0) -> None:
    table = env.table("t")
    for number in range(first, first + rows):
        with env.write() as txn:
            txn.put(number.to_bytes(8, "big"), ROW, db=table)


def count(env: Environment) -> int:
    table = env.table("t")
    with env.read() as txn:
        return int(txn.stat(table)["entries"])


def fill(env: Environment) -> int:
    """Put rows until the state is full; return how many there are."""
    rows = 0
    try:
        while True:
            put(env, 1, rows)
            rows += 1
    except StateFull:
        return rows


def blocks(directory: Path) -> int:
    return (directory / DATA).stat().st_blocks * 512


def no_room(monkeypatch: pytest.MonkeyPatch, error: int = errno.ENOSPC) -> None:
    def refuse(*_: object) -> None:
        raise OSError(error, os.strerror(error))

    monkeypatch.setattr(os, "posix_fallocate", refuse)


def in_child(work: Callable[[], None]) -> None:
    """Run something in a forked process, which must end well."""
    child = os.fork()
    if child == 0:
        try:
            work()
            os._exit(0)
        finally:
            os._exit(1)
    assert os.waitpid(child, 0)[1] == 0


def test_what_was_full_goes_on_when_it_has_grown(env: Environment, tmp_path: Path) -> None:
    rows = fill(env)
    assert env.room().left < 64 * limits.KIB
    env.grow()
    assert env.room().size == 2 * SIZE
    assert blocks(tmp_path) >= 2 * SIZE
    put(env, 100, rows)
    assert count(env) == rows + 100


def test_a_small_state_doubles_and_a_large_one_grows_by_a_quarter(env: Environment) -> None:
    mib = limits.MIB
    steps = {1: 1, 64: 64, 100: 64, 256: 64, 400: 100, 1024 * 1024: 0}
    for size, step in steps.items():
        env._size = size * mib
        assert env.next_growth() == step * mib
    env._size = limits.STATE_SIZE_MAX - mib
    assert env.next_growth() == mib


def test_nothing_grows_beyond_the_bound(env: Environment, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "STATE_SIZE_MAX", SIZE)
    with pytest.raises(StateFull, match="as large as it may be"):
        env.grow()
    assert env.room().size == SIZE


@pytest.mark.parametrize("error", [errno.ENOSPC, errno.EDQUOT, errno.EROFS])
def test_growth_that_fails_changes_nothing_and_is_tried_again(
    env: Environment, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: int
) -> None:
    rows = fill(env)
    no_room(monkeypatch, error)
    with pytest.raises(RecordingFailed, match=f"2097152 bytes: {os.strerror(error)}"):
        env.grow()
    assert (tmp_path / DATA).stat().st_size == SIZE
    assert count(env) == rows
    monkeypatch.undo()
    env.grow()
    put(env, 10, rows)
    assert count(env) == rows + 10


def test_a_part_that_was_allocated_is_given_back(
    env: Environment, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    allocate = os.posix_fallocate

    def half(fd: int, offset: int, length: int) -> None:
        allocate(fd, offset, length // 2)
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", half)
    with pytest.raises(RecordingFailed, match="No space left"):
        env.grow()
    assert (tmp_path / DATA).stat().st_size == SIZE
    assert env.room().size == SIZE


def test_no_file_is_left_where_a_new_state_finds_no_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    no_room(monkeypatch)
    with pytest.raises(DirectoryError, match="cannot allocate"):
        Environment(tmp_path, SIZE)
    assert not (tmp_path / DATA).exists()


def test_a_map_that_the_system_refuses_leaves_the_old_one(
    env: Environment, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.ENOMEM, "Cannot allocate memory")

    monkeypatch.setattr(space, "try_map", refuse)
    with pytest.raises(RecordingFailed, match="Cannot allocate memory"):
        env.grow()
    put(env, 10)
    monkeypatch.undo()
    env.grow()
    assert env.room().size == 2 * SIZE
    assert count(env) == 10


def test_a_larger_configured_size_is_taken_and_a_smaller_one_is_not(tmp_path: Path) -> None:
    for configured, found in ((SIZE, SIZE), (3 * SIZE, 3 * SIZE), (SIZE, 3 * SIZE)):
        env = Environment(tmp_path, configured)
        put(env, 10)
        assert env.room().size == found
        assert (tmp_path / DATA).stat().st_size == found
        assert blocks(tmp_path) >= found
        env.close()


def test_a_file_of_holes_is_filled_before_it_is_mapped(tmp_path: Path) -> None:
    Environment(tmp_path, SIZE).close()
    os.truncate(tmp_path / DATA, 4 * SIZE)
    assert blocks(tmp_path) < 4 * SIZE
    env = Environment(tmp_path, SIZE)
    assert blocks(tmp_path) >= 4 * SIZE
    env.close()


def test_another_process_follows_when_it_reads_and_when_it_writes(tmp_path: Path) -> None:
    """A reader follows when the rows lie behind its map, a writer when its map is full."""
    ready, tell = os.pipe()
    go, let_go = os.pipe()

    def child() -> None:
        mine = Environment(tmp_path, SIZE)
        table = mine.table("t")
        os.write(tell, b"!")
        os.read(go, 1)
        with mine.read() as txn:
            assert txn.stat(table)["entries"] > 600
        assert mine.room().size == 4 * SIZE
        put(mine, 1, 100_000)
        mine.close()

    pid = os.fork()
    if pid == 0:
        try:
            child()
            os._exit(0)
        finally:
            os._exit(1)
    assert os.read(ready, 1) == b"!"
    env = Environment(tmp_path, SIZE)
    rows = fill(env)
    env.grow()
    env.grow()
    put(env, 2 * rows, rows)
    os.write(let_go, b"!")
    assert os.waitpid(pid, 0)[1] == 0
    assert count(env) == 3 * rows + 1
    env.close()
    for end in (ready, tell, go, let_go):
        os.close(end)


def test_a_writer_that_is_full_takes_what_another_process_has_allocated(tmp_path: Path) -> None:
    env = Environment(tmp_path, SIZE)
    env.close()
    env = Environment(tmp_path, SIZE)
    rows = fill(env)

    def child() -> None:
        env.close()
        other = Environment(tmp_path, SIZE)
        other.grow()
        other.close()

    in_child(child)
    assert (tmp_path / DATA).stat().st_size == 2 * SIZE
    with pytest.raises(StateFull):
        put(env, 10, rows)
    env.grow()
    assert (tmp_path / DATA).stat().st_size == env.room().size == 2 * SIZE
    put(env, 10, rows)
    assert count(env) == rows + 10
    env.adopt()
    assert env.room().size == 2 * SIZE
    env.close()


def test_a_new_map_waits_for_the_snapshots_of_other_threads(env: Environment) -> None:
    put(env, 10)
    table = env.table("t")
    inside, leave = threading.Event(), threading.Event()
    read: list[bytes | None] = []

    def reader() -> None:
        with env.read() as txn:
            inside.set()
            assert leave.wait(60)
            with env.read() as nested:  # passes, though the gate is shut
                read.append(nested.get((9).to_bytes(8, "big"), db=table))
            read.append(txn.get((9).to_bytes(8, "big"), db=table))

    slow, grows = threading.Thread(target=reader), threading.Thread(target=env.grow)
    slow.start()
    assert inside.wait(60)
    grows.start()
    while not env._gate._shut:
        pass
    assert env._size == SIZE
    late = threading.Thread(target=env.room)
    late.start()
    leave.set()
    for thread in (slow, grows, late):
        thread.join(60)
        assert not thread.is_alive()
    assert read == [ROW, ROW]
    assert env.room().size == 2 * SIZE


def test_a_snapshot_that_stays_open_keeps_the_old_map_and_nobody_waits_for_ever(
    env: Environment, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gate, "DRAIN_SECONDS", 0)
    inside, leave = threading.Event(), threading.Event()

    def reader() -> None:
        with env.read():
            inside.set()
            assert leave.wait(60)

    slow = threading.Thread(target=reader)
    slow.start()
    assert inside.wait(60)
    with pytest.raises(RecordingFailed, match="cannot grow now: a transaction has been open"):
        env.grow()
    put(env, 10)
    leave.set()
    slow.join()
    # What was allocated is not lost: it is adopted.
    assert (tmp_path / DATA).stat().st_size == 2 * SIZE
    env.adopt()
    assert env.room().size == 2 * SIZE
    assert count(env) == 10


def test_nothing_grows_inside_a_transaction_of_the_same_thread(env: Environment) -> None:
    for use in (env.read, env.write):
        with use(), pytest.raises(RecordingFailed, match="cannot grow inside a transaction"):
            env.grow()
    env.grow()


def test_many_threads_read_and_write_while_the_state_grows(env: Environment) -> None:
    table = env.table("t")
    stop = threading.Event()
    whole: list[bool] = []

    def work() -> None:
        good = True
        while not stop.is_set():
            with env.read() as txn:
                good = good and all(row == ROW for _, row in txn.cursor(db=table))
        whole.append(good)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    rows = 0
    for _ in range(4):
        put(env, 50, rows)
        rows += 50
        env.grow()
    stop.set()
    for thread in threads:
        thread.join()
    assert whole == [True] * 4
    assert env.room().size == 16 * SIZE
    assert count(env) == rows


def test_the_lock_file_has_no_holes_and_as_many_readers_as_before(tmp_path: Path) -> None:
    allocate_locks(tmp_path)
    env = Environment(tmp_path, SIZE)
    put(env, 1)
    status = (tmp_path / space.LOCK).stat()
    assert status.st_blocks * 512 >= status.st_size
    assert env._env.info()["max_readers"] >= limits.STATE_READERS_MAX
    env.close()


def test_a_lock_file_that_finds_no_room_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    no_room(monkeypatch)
    with pytest.raises(DirectoryError, match=r"lock\.mdb: cannot be allocated: No space"):
        allocate_locks(tmp_path)
