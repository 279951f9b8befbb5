"""The folder in ``lost`` where a node's owner finds what was given up, as it was.

It is called unfinished while files still move there, and gets its own name when all is complete: so
a loss that was interrupted finds its folder again, while an earlier one at the same LSN keeps its
own. No file is ever written over, and each move is durable before the next. ``records.jsonl`` has
the records that were lost, a JSON document a line.
"""

from __future__ import annotations

import filecmp
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

import msgspec

from finomw.engine.directory import free_name
from finomw.journal.files import Files
from finomw.types import Lsn

LOST = "lost"
_LIST = "records.jsonl"
_T = TypeVar("_T", bound=msgspec.Struct)


class Aside:
    """What is moved aside when a node directory's journal is to end at an LSN."""

    def __init__(self, node: Path, end: Lsn, files: Files) -> None:
        self._parent = node / LOST
        self._name = f"{end:016x}"
        self._folder = self._parent / f"{self._name}.unfinished"
        self._files = files

    def listed(self, kind: type[_T]) -> list[_T]:
        """Return what a loss that was interrupted has listed; nothing without one."""
        with suppress(FileNotFoundError):
            lines = (self._folder / _LIST).read_bytes().splitlines()
            return [msgspec.json.decode(line, type=kind) for line in lines]
        return []

    def begin(self, lost: Iterable[msgspec.Struct]) -> None:
        """Make the folder, or find it, and write the list of what is lost; raises `OSError`."""
        self._parent.mkdir(mode=0o700, exist_ok=True)
        self._folder.mkdir(mode=0o700, exist_ok=True)
        for folder in (self._parent.parent, self._parent):
            self._files.sync_directory(folder)
        lines = b"".join(msgspec.json.encode(one) + b"\n" for one in lost)
        self._files.write(self._folder / _LIST, lines)

    def move(self, path: Path) -> None:
        """Move a file here, durably; raises `OSError`."""
        self._files.rename(path, free_name(self._folder / path.name))
        self._files.sync_directory(path.parent)

    def copy(self, path: Path) -> None:
        """Copy a file here, durably, unless that was done; raises `OSError`."""
        target, draft = self._folder / path.name, self._folder / f"{path.name}.draft"
        if target.exists() and filecmp.cmp(path, target, shallow=False):
            return
        draft.unlink(missing_ok=True)
        self._files.copy(path, draft)
        self._files.rename(draft, free_name(target))

    def finish(self) -> Path | None:
        """Give the folder its name, and return it; ``None`` where there was nothing to move."""
        if not self._folder.exists():
            return None
        folder = free_name(self._parent / self._name)
        self._files.rename(self._folder, folder)
        return folder
