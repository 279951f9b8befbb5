"""The node directory: where everything lies, and what ``node.json`` says about it.

One directory belongs to one node: one machine or container, all its workers. The sizes that were
chosen when it was made stand in it, so that every process agrees on them whatever the YAML says
today. The directory is made under another name and renamed when it is complete: a half-made one
never looks like a node.
"""

from __future__ import annotations

import os
import secrets
import shutil
from pathlib import Path

import msgspec

from finomw import limits
from finomw.errors import DirectoryError
from finomw.journal.control import Epoch
from finomw.journal.files import Files
from finomw.journal.segment import Segments

FORMAT_VERSION = 1
_FOLDERS = ("state", "journal", "checkpoints", "workers")


class NodeFile(msgspec.Struct, frozen=True):
    """What stands in ``node.json``. Sizes are bytes."""

    format: int
    node: str
    incarnation: int
    segment_size: int
    state_size: int

    @property
    def short_id(self) -> str:
        """The part of the node's id that hold ids begin with."""
        return self.node[:8]


class NodeDirectory:
    """The paths of one node directory, and its identity."""

    def __init__(self, path: Path, node: NodeFile) -> None:
        self.path = path
        self.node = node
        self.state = path / "state"
        self.journal = path / "journal"
        self.workers = path / "workers"
        self.control = path / "control"
        self.start_lock = path / "start.lock"
        self.node_lock = path / "node.lock"
        self.housekeeper_lock = path / "housekeeper.lock"

    def segments(self, files: Files) -> Segments:
        """Return the journal's segments."""
        node = self.node
        return Segments(
            files, self.journal, node.segment_size, bytes.fromhex(node.node), node.incarnation
        )

    def epoch(self) -> Epoch:
        """Return under which the page cache and LMDB may be believed: boot and state directory."""
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        state = os.stat(self.state)
        return Epoch(bytes.fromhex(boot.replace("-", "")), state.st_dev, state.st_ino)


def create(path: Path, segment_size: int, state_size: int, files: Files | None = None) -> None:
    """Make a new node directory; raises `DirectoryError` where that is not possible.

    ``path`` must not exist, or be an empty directory. Sizes are bytes.
    """
    files = files or Files()
    if path.exists() and (not path.is_dir() or any(path.iterdir())):
        raise DirectoryError(f"{path}: is there already and not empty; choose another directory")
    draft = path.with_name(f"{path.name}.{os.getpid()}.draft")
    try:
        draft.mkdir(mode=0o700, parents=True)
        for folder in _FOLDERS:
            (draft / folder).mkdir(mode=0o700)
        node = NodeFile(FORMAT_VERSION, secrets.token_hex(16), 1, segment_size, state_size)
        segments = NodeDirectory(draft, node).segments(files)
        segments.create(0)
        segments.create(segment_size)
        files.write(draft / "node.json", msgspec.json.encode(node) + b"\n")
        draft.rename(path)
        files.sync_directory(path.parent)
    except OSError as error:
        shutil.rmtree(draft, ignore_errors=True)
        raise DirectoryError(f"{path}: cannot be made: {error.strerror}") from error


def find(path: Path) -> NodeDirectory:
    """Return an existing node directory; raises `DirectoryError` for anything else."""
    file = path / "node.json"
    try:
        node = msgspec.json.decode(file.read_bytes(), type=NodeFile)
    except (FileNotFoundError, NotADirectoryError):
        raise DirectoryError(
            f"{path}: no node directory here; make one with `finomw init`"
        ) from None
    except OSError as error:
        raise DirectoryError(f"{file}: cannot be read: {error.strerror}") from error
    except msgspec.MsgspecError as error:
        raise DirectoryError(f"{file}: damaged: {error}") from error
    if node.format > FORMAT_VERSION:
        raise DirectoryError(
            f"{file}: directory format {node.format} is newer than this finomw "
            f"({FORMAT_VERSION}); install the version that wrote it"
        )
    if not limits.SEGMENT_SIZE_MIN <= node.segment_size <= limits.SEGMENT_SIZE_MAX:
        raise DirectoryError(f"{file}: segment_size {node.segment_size} is out of range")
    if len(node.node) != 32 or not set(node.node) <= set("0123456789abcdef"):
        raise DirectoryError(f"{file}: node {node.node!r} is not an id of 32 hex digits")
    return NodeDirectory(path, node)
