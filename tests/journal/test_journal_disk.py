"""The simulated disk: what a flush guarantees, what a failure loses, and who is told."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from random import Random

import pytest

from finomw import limits
from finomw.testing.disk import SECTOR, SimulatedDisk
from finomw.testing.pages import Version

FILE = Path("/disk/file")


def oldest(versions: list[Version]) -> int:
    return 0


def newest(versions: list[Version]) -> int:
    return len(versions) - 1


def holds(disk: SimulatedDisk, pick: Callable[[list[Version]], int], length: int = 1) -> bytes:
    """Return the first bytes of the file as a power cut now may leave them."""
    image, _ = disk.image(pick)
    return image.read(FILE)[:length]


@pytest.fixture
def disk() -> SimulatedDisk:
    disk = SimulatedDisk()
    disk.allocate(FILE, 2 * limits.PAGE, b"-")
    return disk


def test_what_no_flush_has_vouched_for_may_be_there_or_not(disk: SimulatedDisk) -> None:
    file = disk.map(FILE, limits.PAGE)
    file.store(0, b"a")
    file.store(0, b"b")
    assert {holds(disk, lambda versions, at=at: at) for at in range(3)} == {b"-", b"a", b"b"}
    file.flush()
    assert holds(disk, oldest) == holds(disk, newest) == b"b"


def test_a_flush_vouches_for_what_was_stored_before_it_began(disk: SimulatedDisk) -> None:
    file = disk.map(FILE, limits.PAGE)
    file.store(0, b"a")

    def store_meanwhile(kind: str, path: Path) -> None:
        if kind == "flushing":
            disk.step = lambda kind, path: None
            file.store(0, b"b")

    disk.step = store_meanwhile
    file.flush()
    assert (holds(disk, oldest), holds(disk, newest)) == (b"a", b"b")
    file.flush()
    assert holds(disk, oldest) == b"b"


def test_sectors_of_one_page_are_kept_or_lost_one_by_one() -> None:
    disk = SimulatedDisk(SECTOR)
    disk.allocate(FILE, limits.PAGE, b"")
    disk.map(FILE, limits.PAGE).store(0, b"x" * 2 * SECTOR)
    picks = iter([1, 0])
    image, picked = disk.image(lambda versions: next(picks))
    assert picked == (1, 0)
    assert image.read(FILE)[: 2 * SECTOR] == b"x" * SECTOR + bytes(SECTOR)


def test_a_failed_flush_leaves_clean_pages_and_is_told_once_to_each_that_was_there(
    disk: SimulatedDisk,
) -> None:
    first, second = disk.map(FILE, limits.PAGE), disk.map(FILE, limits.PAGE)
    first.store(0, b"a")
    disk.fail_flush()
    for file in (first, second):
        with pytest.raises(OSError, match="Input/output error"):
            file.flush()
        file.flush()
    disk.map(FILE, limits.PAGE).flush()
    assert holds(disk, oldest) == b"-"
    disk.evict(Random(0))
    first.store(0, b"b")
    first.flush()
    assert holds(disk, oldest) == b"b"


def test_an_error_that_nobody_was_told_of_is_told_to_who_comes_later(disk: SimulatedDisk) -> None:
    first = disk.map(FILE, limits.PAGE)
    first.store(0, b"a")
    disk.fail_flush()

    def die(kind: str, path: Path) -> None:
        if kind == "flushing":
            disk.step = lambda kind, path: None
            raise KeyboardInterrupt

    disk.step = die
    with pytest.raises(KeyboardInterrupt):
        first.flush()
    with pytest.raises(OSError, match="Input/output error"):
        disk.map(FILE, limits.PAGE).flush()


def test_a_name_is_there_for_good_once_its_directory_was_synced(disk: SimulatedDisk) -> None:
    seen: list[tuple[bool, bool]] = []
    other = Path("/disk/other")

    def look(kind: str, path: Path) -> None:
        images = [disk.image(pick)[0] for pick in (oldest, newest)]
        seen.append((images[0].exists(other), images[1].exists(other)))

    disk.step = look
    disk.allocate(other, limits.PAGE, b"")
    look("", other)
    assert seen[-2:] == [(False, True), (True, True)]
    disk.unlink(other)
    assert seen[-1] == (True, False)
    assert not disk.image(oldest)[0].exists(other)


def test_a_small_file_is_the_old_one_or_the_new_one(disk: SimulatedDisk) -> None:
    disk.write(FILE, b"old")
    left: set[bytes] = set()

    def look(kind: str, path: Path) -> None:
        left.update(holds(disk, pick, 9) for pick in (oldest, newest))

    disk.step = look
    disk.write(FILE, b"new")
    assert left == {b"old", b"new"}
    assert holds(disk, oldest, 9) == b"new"


def test_a_file_that_is_filled_and_appended_to_has_both(disk: SimulatedDisk) -> None:
    path = Path("/disk/draft")
    disk.fill(path, lambda fd: None)
    disk.append(path, b"footer")
    assert disk.read(path) == b"footer"
    assert disk.names(Path("/disk")) == ["draft", "file"]
