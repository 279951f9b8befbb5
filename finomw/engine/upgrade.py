"""Upgrades: a node directory of an older format is made one of this version's.

A copy of the whole directory is made first, beside it, and stays: until the new version has proved
itself, the old one can go back to it. Then one step after the other makes the next format, and
``node.json`` is written last in each: an upgrade that was interrupted goes on where it stopped, and
its copy, called unfinished until the end, is not made anew from what is half done. Nothing may have
the directory open. What changes between two formats is told in ``STEPS`` alone.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import msgspec

from finomw.engine import directory as formats
from finomw.engine.analysis import closed
from finomw.engine.directory import NODE_FILE, NodeDirectory, free_name, read_node, write_node
from finomw.errors import DirectoryError
from finomw.journal.files import Files

STEPS: dict[int, Callable[[NodeDirectory], None]] = {}
"""What makes the next format out of each; the first format is 1, and the newest, so it is empty.

A step may be begun anew after it was interrupted anywhere.
"""


class Upgraded(NamedTuple):
    """From which format to which, and where the copy lies; ``None`` where nothing was to do."""

    before: int
    after: int
    copy: Path | None


def upgrade(path: Path, files: Files | None = None) -> Upgraded:
    """Bring a node directory to this version's format.

    Raises `DirectoryError` where there is none, a process has it open, its format is newer, or the
    disk has no room for the copy; then it is as it was. Interrupted, it can be done again.
    """
    files = files or Files()
    path = Path(os.path.abspath(path))
    with closed(path) as directory:
        newest = formats.FORMAT_VERSION
        copy = path.with_name(f"{path.name}.unfinished-upgrade")
        if not copy.exists():
            if directory.node.format == newest:
                return Upgraded(newest, newest, None)
            _copy(path, copy, files)
        for number in range(directory.node.format, newest):
            STEPS[number](directory)
            node = msgspec.structs.replace(directory.node, format=number + 1)
            write_node(path / NODE_FILE, node, files)
            directory = NodeDirectory(path, node)
        before = read_node(copy / NODE_FILE, f"{copy}: not the copy that an upgrade made").format
        kept = free_name(path.with_name(f"{path.name}.format-{before}"))
        files.rename(copy, kept)
    return Upgraded(before, newest, kept)


def _copy(path: Path, copy: Path, files: Files) -> None:
    """Copy the directory: under its name the copy is complete."""
    draft = copy.with_name(f"{copy.name}.draft")
    try:
        shutil.rmtree(draft, ignore_errors=True)
        files.copy_tree(path, draft)
        files.rename(draft, copy)
    except OSError as error:
        shutil.rmtree(draft, ignore_errors=True)
        raise DirectoryError(f"{copy}: the copy cannot be made: {error}") from error
