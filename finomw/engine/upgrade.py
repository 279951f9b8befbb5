"""Upgrades: a node directory of an older format is made one of this version's.

A copy of the whole directory is made first, beside it, and stays: until the new version has proved
itself, the old one can go back to it. Then one step after the other makes the next format, and
``node.json`` is written last in each: an upgrade that was interrupted goes on where it stopped.
Nothing may have the directory open. What changes between two formats is told in ``STEPS`` alone.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import msgspec

from finomw.engine import directory as formats
from finomw.engine.analysis import closed
from finomw.engine.directory import NODE_FILE, NodeDirectory, write_node
from finomw.errors import DirectoryError
from finomw.journal.files import Files

STEPS: dict[int, Callable[[NodeDirectory], None]] = {}
"""What makes the next format out of each; the first format is 1, and the newest, so it is empty."""


class Upgraded(NamedTuple):
    """From which format to which, and where the copy lies; ``None`` where nothing was to do."""

    before: int
    after: int
    copy: Path | None


def upgrade(path: Path) -> Upgraded:
    """Bring a node directory to this version's format.

    Raises `DirectoryError` where there is none, a process has it open, its format is newer, or the
    disk has no room for the copy; then it is as it was.
    """
    files = Files()
    with closed(path) as directory:
        before, newest = directory.node.format, formats.FORMAT_VERSION
        if before == newest:
            return Upgraded(before, newest, None)
        copy = _copied(path, before)
        for number in range(before, newest):
            STEPS[number](directory)
            node = msgspec.structs.replace(directory.node, format=number + 1)
            write_node(path / NODE_FILE, node, files)
            directory = NodeDirectory(path, node)
    return Upgraded(before, newest, copy)


def _copied(path: Path, number: int) -> Path:
    """Copy the directory, unless an upgrade that was interrupted has done so already."""
    copy = path.with_name(f"{path.name}.format-{number}")
    if copy.exists():
        return copy
    draft = copy.with_name(f"{copy.name}.draft")
    try:
        shutil.rmtree(draft, ignore_errors=True)
        shutil.copytree(path, draft, symlinks=True)
        draft.rename(copy)
    except OSError as error:
        shutil.rmtree(draft, ignore_errors=True)
        raise DirectoryError(f"{copy}: the copy cannot be made: {error}") from error
    return copy
