"""Upgrades: an older format is refused, copied, brought up step by step, and never half."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import nodes
import pytest

from finomw.engine.directory import NodeDirectory, find
from finomw.engine.engine import Engine
from finomw.engine.upgrade import STEPS, Upgraded, upgrade
from finomw.engine.verify import verify
from finomw.errors import DirectoryError
from finomw.journal.files import Files

NEW = "made by format {}"


def step(number: int) -> Callable[[NodeDirectory], None]:
    def run(directory: NodeDirectory) -> None:
        assert directory.node.format == number
        (directory.path / f"new{number + 1}").write_text(NEW.format(number + 1))

    return run


@pytest.fixture
def newest(monkeypatch: pytest.MonkeyPatch) -> int:
    """Have two newer formats than the one that nodes are made in."""
    monkeypatch.setattr("finomw.engine.directory.FORMAT_VERSION", 3)
    for number in (1, 2):
        monkeypatch.setitem(STEPS, number, step(number))
    return 3


@pytest.fixture
def older(path: Path, engine: Engine, newest: int) -> dict[str, bytes]:
    """Close the node, which is of format 1; return its files."""
    nodes.held(engine, 5)
    engine.close()
    file = path / "node.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), "format": 1}))
    return files_of(path)


def files_of(path: Path) -> dict[str, bytes]:
    files = (file for file in path.rglob("*") if file.is_file() and file.suffix != ".lock")
    return {str(file.relative_to(path)): file.read_bytes() for file in files}


def is_upgraded(path: Path, done: Upgraded, older: dict[str, bytes]) -> None:
    assert (done.before, done.after) == (1, 3)
    assert done.copy == path.with_name("node.format-1")
    assert files_of(done.copy) == older
    assert find(path).node.format == 3
    assert (path / "new2").exists()
    assert (path / "new3").exists()
    names = sorted(file.name for file in path.parent.iterdir())
    assert names == ["node", "node.format-1"]
    engine = nodes.open_node(path)
    assert verify(engine).faults == ()
    engine.close()
    assert upgrade(path) == Upgraded(3, 3, None)


def test_an_older_format_is_refused_and_then_upgraded(path: Path, older: dict[str, bytes]) -> None:
    with pytest.raises(DirectoryError, match=r"format 1 is older .* run `finomw upgrade`"):
        find(path)
    assert files_of(path) == older
    is_upgraded(path, upgrade(path), older)


def test_the_newest_format_has_nothing_to_do(path: Path) -> None:
    before = files_of(path)
    assert upgrade(path) == Upgraded(1, 1, None)
    assert files_of(path) == before
    assert [file.name for file in path.parent.iterdir()] == ["node"]


class Interrupted(Files):
    """Raises like Ctrl-C at the N-th operation, before or after it."""

    def __init__(self, at: int, *, after: bool) -> None:
        self.left = at
        self.after = after

    def _around(self, act: Callable[[], None]) -> None:
        self.left -= 1
        if self.left == 0 and not self.after:
            raise KeyboardInterrupt
        act()
        if self.left == 0:
            raise KeyboardInterrupt

    def copy_tree(self, source: Path, target: Path) -> None:
        self._around(lambda: Files().copy_tree(source, target))

    def rename(self, source: Path, target: Path) -> None:
        self._around(lambda: Files().rename(source, target))

    def write(self, path: Path, data: bytes) -> None:
        self._around(lambda: Files().write(path, data))


@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("at", range(1, 6))
def test_an_upgrade_that_is_interrupted_goes_on_with_its_first_copy(
    path: Path, older: dict[str, bytes], at: int, after: bool
) -> None:
    with pytest.raises(KeyboardInterrupt):
        upgrade(path, Interrupted(at, after=after))
    if (at, after) == (5, True):
        assert upgrade(path) == Upgraded(3, 3, None)
        is_upgraded(path, Upgraded(1, 3, path.with_name("node.format-1")), older)
    else:
        is_upgraded(path, upgrade(path), older)


@pytest.mark.parametrize("number", [1, 2])
def test_a_step_that_fails_half_way_is_begun_anew_and_the_copy_is_not(
    path: Path, older: dict[str, bytes], number: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    def half(directory: NodeDirectory) -> None:
        (directory.path / "half").touch()
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setitem(STEPS, number, half)
        with pytest.raises(OSError, match="No space left"):
            upgrade(path)
    assert find(path, older=True).node.format == number
    (path / "half").unlink()
    is_upgraded(path, upgrade(path), older)


def test_a_copy_of_an_earlier_upgrade_is_kept_too(path: Path, older: dict[str, bytes]) -> None:
    path.with_name("node.format-1").mkdir()
    done = upgrade(path)
    assert done.copy == path.with_name("node.format-1.2")
    assert files_of(done.copy) == older
    assert list(path.with_name("node.format-1").iterdir()) == []


def test_a_copy_without_room_leaves_all_as_it_was(
    path: Path, older: dict[str, bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(self: Files, source: Path, target: Path) -> None:
        target.mkdir()
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Files, "copy_tree", full)
    with pytest.raises(DirectoryError, match=r"cannot be made: .*No space left on device"):
        upgrade(path)
    assert files_of(path) == older
    assert [file.name for file in path.parent.iterdir()] == ["node"]


def test_what_is_linked_is_copied_and_a_lost_state_is_none(
    path: Path, older: dict[str, bytes], tmp_path: Path
) -> None:
    (path / "journal").rename(tmp_path / "elsewhere")
    (path / "journal").symlink_to(tmp_path / "elsewhere")
    for file in (path / "state").iterdir():
        file.unlink()
    (path / "state").rmdir()
    (path / "state").symlink_to(tmp_path / "lost")
    copy = upgrade(path).copy
    assert copy is not None
    assert not (copy / "journal").is_symlink()
    kept = {name: data for name, data in older.items() if not name.startswith("state/")}
    assert files_of(copy) == kept
    engine = nodes.open_node(path)
    assert verify(engine).faults == ()
    engine.close()


def test_nobody_may_have_it_open_and_a_newer_format_is_left_alone(
    path: Path, engine: Engine, newest: int
) -> None:
    with pytest.raises(DirectoryError, match="a process has it open; stop it first"):
        upgrade(path)
    engine.close()
    file = path / "node.json"
    file.write_text(file.read_text().replace('"format":1', '"format":4'))
    before = files_of(path)
    with pytest.raises(DirectoryError, match=r"format 4 is newer than this finomw \(3\)"):
        upgrade(path)
    assert files_of(path) == before
