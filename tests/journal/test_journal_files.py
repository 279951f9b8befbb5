"""The seam to the operating system: complete and durable, or not at all."""

from __future__ import annotations

import errno
import os
import threading
from pathlib import Path

import pytest

from finomw import limits
from finomw.journal.files import Files, FileTooShort
from finomw.testing.files import FaultyFiles


def test_a_file_is_allocated_with_its_head_and_zeros(tmp_path: Path) -> None:
    Files().allocate(tmp_path / "a", 3 * limits.MIB + 5, b"head")
    assert (tmp_path / "a").read_bytes() == b"head" + bytes(3 * limits.MIB + 1)
    assert Files().names(tmp_path) == ["a"]


def test_an_existing_file_is_never_replaced(tmp_path: Path) -> None:
    Files().allocate(tmp_path / "a", 10, b"first")
    Files().allocate(tmp_path / "a", 20, b"second")
    assert (tmp_path / "a").read_bytes() == b"first" + bytes(5)
    assert Files().names(tmp_path) == ["a"]


def test_threads_that_allocate_the_same_file_never_write_to_each_other_s(tmp_path: Path) -> None:
    path, size, failures = tmp_path / "a", 4 * limits.MIB, []
    barrier = threading.Barrier(4)

    def allocate(number: int) -> None:
        barrier.wait()
        try:
            Files().allocate(path, size, bytes([number]) * 8)
            seen = path.read_bytes()[:8]
            heads.append(seen)
        except OSError as error:
            failures.append(error)

    heads: list[bytes] = []
    threads = [threading.Thread(target=allocate, args=(number,)) for number in range(1, 5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    assert set(heads) == {path.read_bytes()[:8]}
    assert path.read_bytes()[8:] == bytes(size - 8)
    assert Files().names(tmp_path) == ["a"]


def test_a_failed_allocation_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.raises(OSError, match="No space"):
        Files().allocate(tmp_path / "a", 100, b"")
    assert Files().names(tmp_path) == []


def test_a_small_file_is_replaced_whole(tmp_path: Path) -> None:
    path = tmp_path / "a"
    Files().write(path, b"old and long")
    Files().write(path, b"new")
    assert path.read_bytes() == b"new"
    assert Files().names(tmp_path) == ["a"]


@pytest.mark.parametrize("kind", ["rename", "write"])
def test_a_failed_replacement_leaves_the_old_file(tmp_path: Path, kind: str) -> None:
    files, path = FaultyFiles(), tmp_path / "a"
    files.write(path, b"old")
    files.fail(kind)
    with pytest.raises(OSError, match="Input/output error"):
        files.write(path, b"new")
    assert path.read_bytes() == b"old"
    assert files.names(tmp_path) == ["a"]


def test_words_and_bytes_share_one_mapping(tmp_path: Path) -> None:
    Files().allocate(tmp_path / "a", 8192, b"")
    file, other = (Files().map(tmp_path / "a", 8192) for _ in range(2))
    file.store_word(16, 2**64 - 2)
    file.store(24, b"abc")
    assert other.load(16, 11) == b"\xfe" + b"\xff" * 7 + b"abc"
    assert other.load_word(16) == 2**64 - 2
    file.flush()
    file.will_need(4097, 100_000)
    file.will_need(8192, 10)
    other.close()
    file.close()
    assert (tmp_path / "a").read_bytes()[24:27] == b"abc"


def test_a_file_too_short_is_not_mapped(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(bytes(10))
    before = os.listdir("/proc/self/fd")
    with pytest.raises(FileTooShort, match="shorter than 11 bytes"):
        Files().map(tmp_path / "a", 11)
    assert os.listdir("/proc/self/fd") == before


def test_faults_come_at_the_operation_asked_for(tmp_path: Path) -> None:
    files = FaultyFiles()
    files.fail("sync", at=2)
    files.sync_directory(tmp_path)
    with pytest.raises(OSError, match="Input/output"):
        files.sync_directory(tmp_path)
    files.sync_directory(tmp_path)
    files.fail("sync", at=2, for_good=True, error=errno.ENOSPC)
    files.sync_directory(tmp_path)
    for _ in range(3):
        with pytest.raises(OSError, match="No space"):
            files.sync_directory(tmp_path)
    files.mend()
    files.sync_directory(tmp_path)
    assert files.counts["sync"] == 8


def test_a_failed_flush_loses_its_pages_though_the_next_one_succeeds(tmp_path: Path) -> None:
    files, path = FaultyFiles(), tmp_path / "a"
    files.allocate(path, 3 * 4096, b"")
    file = files.map(path, 3 * 4096)
    file.store(0, b"kept")
    file.flush()
    file.store(4096, b"lost")
    files.fail("flush")
    with pytest.raises(OSError, match="Input/output"):
        file.flush()
    file.store_word(8192, 0x21)
    file.flush()
    assert file.load(4096, 4) == b"lost"
    file.close()
    files.power_cut()
    disk = path.read_bytes()
    assert disk[:4] == b"kept"
    assert disk[4096:4100] == bytes(4)
    assert disk[8192:8193] == b"!"


def test_a_large_file_is_filled_by_a_callback_and_appended_to(tmp_path: Path) -> None:
    path = tmp_path / "a"
    Files().fill(path, lambda fd: os.write(fd, b"one") and None)
    Files().append(path, b"two")
    assert path.read_bytes() == b"onetwo"
    assert path.stat().st_mode & 0o777 == 0o600
    with pytest.raises(FileExistsError):
        Files().fill(path, lambda fd: None)
    Files().unlink(path)
    assert not path.exists()


def test_a_fill_that_fails_leaves_nothing(tmp_path: Path) -> None:
    def fail(fd: int) -> None:
        os.write(fd, b"half")
        raise OSError(errno.ENOSPC, "No space left on device")

    before = os.listdir("/proc/self/fd")
    with pytest.raises(OSError, match="No space"):
        Files().fill(tmp_path / "a", fail)
    assert list(tmp_path.iterdir()) == []
    assert os.listdir("/proc/self/fd") == before


def test_names_are_on_the_disk_when_their_directory_was_synced(tmp_path: Path) -> None:
    files = FaultyFiles()
    for name in ("old", "first", "second"):
        (tmp_path / name).write_bytes(name.encode())
    files.fill(tmp_path / "new", lambda fd: None)
    files.fail("sync", for_good=True)
    with pytest.raises(OSError, match="Input/output"):
        files.rename(tmp_path / "new", tmp_path / "old")
    for name in ("first", "second"):
        with pytest.raises(OSError, match="Input/output"):
            files.unlink(tmp_path / name)
    assert [path.name for path in tmp_path.iterdir()] == ["old"]
    files.power_cut()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["first", "old"]
    assert (tmp_path / "old").read_bytes() == b"old"
    files.mend()
    files.unlink(tmp_path / "first")
    files.fill(tmp_path / "new", lambda fd: None)
    files.rename(tmp_path / "new", tmp_path / "old")
    files.power_cut()
    assert [(path.name, path.read_bytes()) for path in tmp_path.iterdir()] == [("old", b"")]
