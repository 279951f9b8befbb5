"""LMDB behind its fence: transactions whole or not at all, and only finomw's errors come out."""

from __future__ import annotations

import errno
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from finomw import limits
from finomw.errors import DirectoryError, RecordingFailed
from finomw.store.env import DATA, Environment, StateUnreadable, set_aside

SIZE = limits.MIB


@pytest.fixture
def env(tmp_path: Path) -> Iterator[Environment]:
    env = Environment(tmp_path, SIZE)
    yield env
    env.close()


def test_a_transaction_commits_at_the_end_and_aborts_on_an_exception(env: Environment) -> None:
    table = env.table("t")
    with env.write() as txn:
        txn.put(b"kept", b"1", db=table)

    def fail_half_way() -> None:
        with env.write() as txn:
            txn.put(b"gone", b"1", db=table)
            raise KeyError

    with pytest.raises(KeyError):
        fail_half_way()
    with env.read() as txn:
        assert list(txn.cursor(db=table)) == [(b"kept", b"1")]


def test_a_transaction_may_be_aborted_inside_and_left_normally(env: Environment) -> None:
    table = env.table("t")
    with env.write() as txn:
        txn.put(b"gone", b"1", db=table)
        txn.abort()
    with env.write() as txn:
        assert txn.get(b"gone", db=table) is None
        txn.put(b"kept", b"1", db=table)
    with env.read() as txn:
        assert txn.get(b"kept", db=table) == b"1"


def test_a_snapshot_stays_as_it_was(env: Environment) -> None:
    table = env.table("t")
    with env.read() as before:
        with env.write() as txn:
            txn.put(b"k", b"1", db=table)
        assert before.get(b"k", db=table) is None


def test_a_full_state_fails_the_transaction_whole(env: Environment) -> None:
    table = env.table("t")
    with env.write() as txn:
        txn.put(b"kept", b"1", db=table)

    def overfill() -> None:
        with env.write() as txn:
            for number in range(SIZE // 1_000):
                txn.put(number.to_bytes(8, "big"), bytes(1_000), db=table)

    with pytest.raises(RecordingFailed, match="the state is full"):
        overfill()
    with env.write() as txn:
        assert list(txn.cursor(db=table)) == [(b"kept", b"1")]
        txn.put(b"more", b"2", db=table)


def test_the_file_has_all_its_space_at_once(env: Environment, tmp_path: Path) -> None:
    status = (tmp_path / DATA).stat()
    assert status.st_size == SIZE
    assert status.st_blocks * 512 >= SIZE


def test_a_disk_without_room_is_said_before_anything_is_stored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.raises(DirectoryError, match=r"data\.mdb: cannot allocate 1048576 bytes: No space"):
        Environment(tmp_path, SIZE)
    monkeypatch.undo()
    Environment(tmp_path, SIZE).close()


@pytest.mark.parametrize("garbage", [b"\0" * 100_000, b"\xff" * 100_000, b"short"])
def test_a_file_that_is_no_lmdb_is_unreadable(tmp_path: Path, garbage: bytes) -> None:
    (tmp_path / DATA).write_bytes(garbage)
    with pytest.raises(StateUnreadable, match=r"data\.mdb: cannot be opened"):
        Environment(tmp_path, SIZE)
    set_aside(tmp_path)
    assert (tmp_path / f"{DATA}.old").read_bytes()[:5] == garbage[:5]
    Environment(tmp_path, SIZE).close()


def test_setting_aside_what_is_not_there_is_nothing(tmp_path: Path) -> None:
    set_aside(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_second_opening_in_one_process_is_refused(env: Environment, tmp_path: Path) -> None:
    with pytest.raises(StateUnreadable, match="already open"):
        Environment(tmp_path, SIZE)


def test_whatever_lmdb_raises_comes_out_as_recording_failed(env: Environment) -> None:
    table = env.table("t")
    with pytest.raises(RecordingFailed, match="MDB_BAD_VALSIZE"), env.read() as txn:
        txn.get(b"", db=table)
    with pytest.raises(RecordingFailed, match="MDB_BAD_VALSIZE"), env.write() as txn:
        txn.put(b"", b"", db=table)


def test_a_closed_environment_says_so(tmp_path: Path) -> None:
    env = Environment(tmp_path, SIZE)
    env.close()
    for use in (env.read, env.write):
        with pytest.raises(RecordingFailed, match="closed"), use():
            raise AssertionError
    with pytest.raises(RecordingFailed, match="closed"):
        env.forget_dead_readers()
    with pytest.raises(StateUnreadable, match="closed"):
        env.table("t")


def test_a_killed_reader_keeps_no_pages_once_it_is_forgotten(tmp_path: Path) -> None:
    ready, tell = os.pipe()
    child = os.fork()
    if child == 0:
        with Environment(tmp_path, SIZE).read():
            os.write(tell, b"!")
            signal.pause()
    assert os.read(ready, 1) == b"!"
    env = Environment(tmp_path, SIZE)
    table = env.table("t")
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)

    def churn() -> None:
        for number in range(300):
            with env.write() as txn:
                txn.put(b"k", bytes([number % 256]) * 2_000, db=table)

    with pytest.raises(RecordingFailed, match="full"):
        churn()
    env.forget_dead_readers()
    churn()
    env.close()
    os.close(ready)
    os.close(tell)


@pytest.mark.parametrize("write", [True, False])
def test_a_row_that_cannot_be_decoded_is_a_damaged_state(
    env: Environment, tmp_path: Path, write: bool
) -> None:
    table = env.table("t")
    with env.write() as txn:
        txn.put(b"good", msgspec.msgpack.encode(1), db=table)
        txn.put(b"bad", b"\xc1", db=table)

    def use() -> None:
        with env.write() if write else env.read() as txn:
            if write:
                txn.put(b"good", msgspec.msgpack.encode(2), db=table)
            msgspec.msgpack.decode(txn.get(b"bad", db=table))

    with pytest.raises(RecordingFailed, match=r"the state is damaged: .*then run `finomw recover`"):
        use()
    with env.read() as txn:
        assert msgspec.msgpack.decode(txn.get(b"good", db=table)) == 1


def test_who_expects_a_bad_row_may_go_on(env: Environment) -> None:
    table = env.table("t")
    with env.write() as txn:
        with pytest.raises(msgspec.MsgspecError):
            msgspec.msgpack.decode(b"\xc1")
        txn.put(b"key", b"value", db=table)
    with env.read() as txn:
        assert txn.get(b"key", db=table) == b"value"
