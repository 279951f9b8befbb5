"""A checkpoint's file: its layout, and everything that can be wrong with it."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from pathlib import Path
from zlib import crc32

import pytest

from finomw import limits
from finomw.errors import CheckpointBroken, DirectoryError
from finomw.journal.format import START, Tail
from finomw.store import Store
from finomw.store.checkpoints import (
    FOOTER_SIZE,
    Checkpoint,
    check,
    encode_footer,
    listed,
    name_of,
    newest_end,
    newest_good,
    read,
    restore_into,
    tail_of,
)
from finomw.store.env import DATA, StateUnreadable
from finomw.types import WorkerId

NODE = bytes(range(16))
TAIL = Tail(lsn=4096, end=5000, crc=0xDEADBEEF, number=7)


def make(folder: Path, tail: Tail = TAIL, worker: int = 5) -> Checkpoint:
    """Write a whole checkpoint of a small state."""
    state = folder / "made"
    state.mkdir(parents=True)
    store = Store(state, limits.STATE_SIZE_MIN, "node")
    with store.write() as txn:
        store.meta.set_tail(txn, tail)
        store.meta.set_last_worker(txn, WorkerId(worker))
    path = folder / name_of(tail.end)
    with path.open("wb") as file:
        store.copy_to(file.fileno())
    store.close()
    data = path.read_bytes()
    made = Checkpoint(path, NODE, 3, len(data), tail, hashlib.sha256(data).digest())
    path.write_bytes(data + encode_footer(made))
    for file in state.iterdir():
        file.unlink()
    state.rmdir()
    return made


def test_the_footer_is_as_its_layout_says(tmp_path: Path) -> None:
    made = make(tmp_path)
    page = made.path.read_bytes()[-FOOTER_SIZE:]
    assert page[:8] == b"finockpt"
    assert page[8:12] == (1).to_bytes(4, "little")
    assert page[12:16] == crc32(page[:12] + bytes(4) + page[16:112]).to_bytes(4, "little")
    assert page[16:32] == NODE
    numbers = [int.from_bytes(page[at : at + 8], "little") for at in (32, 40, 48, 56, 72)]
    assert numbers == [3, made.size, TAIL.lsn, TAIL.end, TAIL.number]
    assert page[64:72] == TAIL.crc.to_bytes(8, "little")
    assert page[80:112] == hashlib.sha256(made.path.read_bytes()[: made.size]).digest()
    assert page[112:] == bytes(FOOTER_SIZE - 112)


def test_a_whole_checkpoint_reads_as_what_was_written(tmp_path: Path) -> None:
    made = make(tmp_path)
    assert read(made.path, NODE, 3) == made
    assert check(made.path, NODE, 4) == made
    assert tail_of(made.path) == TAIL


def test_checkpoints_are_listed_newest_first_and_nothing_else_is(tmp_path: Path) -> None:
    assert listed(tmp_path / "none") == []
    assert newest_end(tmp_path) == 0
    for name in (name_of(5), name_of(0x500), "new.draft", "x.mdb", f"{name_of(7)}.draft"):
        (tmp_path / name).touch()
    assert [path.name for path in listed(tmp_path)] == [name_of(0x500), name_of(5)]
    assert newest_end(tmp_path) == 0x500


@pytest.mark.parametrize("at", [0, 1, 20, 33, 41, 50, 60, 66, 70, 75, 90, 112, 4095])
def test_any_changed_byte_of_the_footer_is_seen(tmp_path: Path, at: int) -> None:
    made = make(tmp_path)
    data = bytearray(made.path.read_bytes())
    data[made.size + at] ^= 0x40
    made.path.write_bytes(data)
    with pytest.raises(CheckpointBroken, match=str(made.path)):
        read(made.path, NODE, 3)


def test_any_changed_byte_of_the_copy_is_seen(tmp_path: Path) -> None:
    made = make(tmp_path)
    data = made.path.read_bytes()
    for at in range(0, made.size, made.size // 16):
        made.path.write_bytes(data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :])
        assert read(made.path, NODE, 3) == made
        with pytest.raises(CheckpointBroken, match="the copy is damaged"):
            check(made.path, NODE, 3)


def cut(path: Path) -> None:
    os.truncate(path, path.stat().st_size - 1)


def page_lost(path: Path) -> None:
    data = path.read_bytes()
    path.write_bytes(data[: limits.PAGE] + data[2 * limits.PAGE :])


def page_more(path: Path) -> None:
    path.write_bytes(bytes(limits.PAGE) + path.read_bytes())


def emptied(path: Path) -> None:
    os.truncate(path, 0)


def gone(path: Path) -> None:
    path.unlink()


def a_directory(path: Path) -> None:
    path.unlink()
    path.mkdir()


@pytest.mark.parametrize("harm", [cut, page_lost, page_more, emptied, gone, a_directory])
def test_a_file_of_another_length_is_broken(tmp_path: Path, harm: Callable[[Path], None]) -> None:
    made = make(tmp_path)
    harm(made.path)
    with pytest.raises(CheckpointBroken, match=str(made.path)):
        read(made.path, NODE, 3)


def test_another_node_s_and_a_later_incarnation_s_are_not_ours(tmp_path: Path) -> None:
    made = make(tmp_path)
    for node, incarnation in ((bytes(16), 3), (NODE, 2)):
        with pytest.raises(CheckpointBroken, match="another node, or to a later incarnation"):
            read(made.path, node, incarnation)


def test_a_newer_format_is_refused_and_never_skipped(tmp_path: Path) -> None:
    make(tmp_path, TAIL._replace(end=4900))
    made = make(tmp_path)
    data = bytearray(made.path.read_bytes())
    data[made.size + 8] = 2
    made.path.write_bytes(data)
    with pytest.raises(DirectoryError, match="format 2 is newer than this finomw") as caught:
        newest_good(tmp_path, NODE, 3)
    assert not isinstance(caught.value, CheckpointBroken)


def test_a_footer_that_names_another_tail_than_the_copy_is_broken(tmp_path: Path) -> None:
    made = make(tmp_path)
    lying = made._replace(tail=TAIL._replace(number=8))
    made.path.write_bytes(made.path.read_bytes()[: made.size] + encode_footer(lying))
    with pytest.raises(CheckpointBroken, match="its footer says otherwise"):
        check(made.path, NODE, 3)


def test_what_lmdb_cannot_open_is_broken_though_its_hash_is_right(tmp_path: Path) -> None:
    path = tmp_path / name_of(5000)
    data = os.urandom(4 * limits.PAGE)
    made = Checkpoint(path, NODE, 1, len(data), TAIL, hashlib.sha256(data).digest())
    path.write_bytes(data + encode_footer(made))
    with pytest.raises(CheckpointBroken, match="cannot be read"):
        check(path, NODE, 1)


def test_the_newest_good_one_is_found_and_the_broken_ones_named(tmp_path: Path) -> None:
    assert newest_good(tmp_path, NODE, 3) == (None, [])
    oldest = make(tmp_path, TAIL._replace(end=4800))
    middle = make(tmp_path, TAIL._replace(end=4900))
    newest = make(tmp_path)
    assert newest_good(tmp_path, NODE, 3) == (newest, [])
    cut(newest.path)
    found, broken = newest_good(tmp_path, NODE, 3)
    assert found == middle
    assert [str(error).split(":")[0] for error in broken] == [str(newest.path)]
    cut(middle.path)
    cut(oldest.path)
    found, broken = newest_good(tmp_path, NODE, 3)
    assert found is None
    assert len(broken) == 3


def test_a_checkpoint_becomes_a_state_with_all_its_space(tmp_path: Path) -> None:
    made = make(tmp_path, worker=9)
    state = tmp_path / "state"
    state.mkdir()
    restore_into(made, state, limits.STATE_SIZE_MIN)
    assert [file.name for file in state.iterdir()] == [DATA]
    status = (state / DATA).stat()
    assert status.st_size == limits.STATE_SIZE_MIN
    assert status.st_blocks * 512 >= limits.STATE_SIZE_MIN
    store = Store(state, limits.STATE_SIZE_MIN, "node")
    assert store.tail() == TAIL
    with store.write() as txn:
        assert store.meta.last_worker(txn) == 9
        store.meta.set_tail(txn, TAIL._replace(number=8))
    store.close()
    assert tail_of(state / DATA).number == 8
    assert tail_of(made.path) == TAIL


def test_a_copy_that_rots_before_it_is_restored_is_no_state(tmp_path: Path) -> None:
    made = make(tmp_path)
    data = bytearray(made.path.read_bytes())
    data[5000] ^= 1
    made.path.write_bytes(data)
    state = tmp_path / "state"
    state.mkdir()
    with pytest.raises(CheckpointBroken, match="the copy is damaged"):
        restore_into(made, state, limits.STATE_SIZE_MIN)
    assert not (state / DATA).exists()


def test_the_tail_of_a_state_is_read_without_touching_it(tmp_path: Path) -> None:
    store = Store(tmp_path, limits.STATE_SIZE_MIN, "node")
    store.close()
    before = {
        file.name: (file.read_bytes(), file.stat().st_mtime_ns) for file in tmp_path.iterdir()
    }
    assert tail_of(tmp_path / DATA) == START
    assert before == {
        file.name: (file.read_bytes(), file.stat().st_mtime_ns) for file in tmp_path.iterdir()
    }
    with pytest.raises(StateUnreadable, match="cannot be read"):
        tail_of(tmp_path / "none")


def test_a_state_that_is_cut_off_is_unreadable_and_kills_nobody(tmp_path: Path) -> None:
    made = make(tmp_path)
    os.truncate(made.path, 3 * limits.PAGE)
    with pytest.raises(StateUnreadable, match="is cut off"):
        tail_of(made.path)
