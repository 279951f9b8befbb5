"""The node directory: where everything lies, and what ``node.json`` says about it.

One directory belongs to one node: one machine or container, all its workers. The sizes that were
chosen when it was made stand in it, so that every process agrees on them whatever the YAML says
today. The directory is made under another name and renamed when it is complete: a half-made one
never looks like a node.
"""

from __future__ import annotations

import errno
import fcntl
import glob
import itertools
import os
import secrets
import shutil
import stat
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path

import msgspec

from finomw import limits
from finomw.clock import Clock
from finomw.errors import DirectoryError
from finomw.journal.control import Epoch
from finomw.journal.files import Files
from finomw.journal.segment import Segments
from finomw.store.env import DATA

FORMAT_VERSION = 1
NODE_FILE = "node.json"
BACKUP_FILE = "backup.json"
"""What a backup has in the place of `NODE_FILE`: nobody runs on it."""
FOLDERS = ("state", "journal", "checkpoints", "workers")
_INCARNATION_SHIFT = 30
"""An incarnation has room for so many bits of worker ids and record numbers."""
_INCARNATION_MAX = 2**32
_LOW_WORD = 2**32 - 1
_GET_VERSION = 0x80087601
"""Linux's FS_IOC_GETVERSION."""
_SECOND = timedelta(seconds=1) // timedelta(microseconds=1)


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

    @property
    def id_base(self) -> int:
        """What all ids of this incarnation lie above: none of an earlier one is given again.

        A node that was restored from a backup may have given out ids since that backup was made.
        """
        return 0 if self.incarnation == 1 else self.incarnation << _INCARNATION_SHIFT

    def reborn(self, clock: Clock) -> NodeFile:
        """Return the node as a new incarnation, later than any that there may have been.

        Seconds since 1970 count them: nobody knows how often the same backup was restored.
        """
        later = max(self.incarnation + 1, clock.now() // _SECOND)
        return msgspec.structs.replace(self, incarnation=later)


class NodeDirectory:
    """The paths of one node directory, and its identity."""

    def __init__(self, path: Path, node: NodeFile) -> None:
        self.path = path
        self.node = node
        self.state = path / "state"
        self.id = bytes.fromhex(node.node)
        self.journal = path / "journal"
        self.checkpoints = path / "checkpoints"
        self.workers = path / "workers"
        self.control = path / "control"
        self.start_lock = path / "start.lock"
        self.node_lock = path / "node.lock"
        self.state_lock = self.state / "node.lock"
        self.housekeeper_lock = path / "housekeeper.lock"
        self.checkpoint_lock = path / "checkpoint.lock"

    @property
    def identity(self) -> tuple[bytes, int]:
        """Node and incarnation, as its files carry them."""
        return self.id, self.node.incarnation

    def segments(self, files: Files) -> Segments:
        """Return the journal's segments."""
        node = self.node
        return Segments(files, self.journal, node.segment_size, self.id, node.incarnation)

    def epoch(self) -> Epoch:
        """Return under which the page cache and LMDB may be believed: boot and the state's file.

        A file system that was torn away has lost what it had not written, under the same boot: so
        the device's number goes with that of its present mounting. A copy that was put in the
        file's place may get the inode's number, but not its generation. Raises `OSError`.
        """
        fd = os.open(self.state / DATA, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            file, generation = os.fstat(fd), _generation(fd)
        finally:
            os.close(fd)
        device = mounting(file.st_dev) << 32 | file.st_dev & _LOW_WORD
        return Epoch(boot_id(), device, file.st_ino ^ generation << 32)

    def make_state(self) -> None:
        """Make the state directory unless it is there; raises `OSError`.

        It may be a link to a memory file system, whose end of the link is gone after a boot.
        """
        Path(os.path.realpath(self.state)).mkdir(mode=0o700, parents=True, exist_ok=True)


def _generation(fd: int) -> int:
    """Return which file this is of all that had its inode's number, 32 bits; 0 if nobody counts."""
    try:
        return int.from_bytes(fcntl.ioctl(fd, _GET_VERSION, bytes(8))[:4], sys.byteorder)
    except OSError:
        return 0


def mounting(device: int) -> int:
    """Return the kernel's number for the present mounting of a device's file system, 32 bits.

    It is that of the file system's folder in sysfs, which is made anew each time it is mounted;
    mounting it at a second place changes nothing. 0 where there is none: a memory file system.
    """
    numbers = f"{os.major(device)}:{os.minor(device)}"
    try:
        name = os.path.basename(os.readlink(f"/sys/dev/block/{numbers}"))
        folders = list(Path("/sys/fs").glob(f"*/{glob.escape(name)}"))
        return folders[0].stat().st_ino & _LOW_WORD if folders else 0
    except OSError:
        return 0


def boot_id() -> bytes:
    """Return what this start of the machine is called."""
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return bytes.fromhex(boot.replace("-", ""))


def create(path: Path, segment_size: int, state_size: int, files: Files | None = None) -> None:
    """Make a new node directory; raises `DirectoryError` where that is not possible.

    ``path`` must not exist, or be an empty directory. Sizes are bytes.
    """
    files = files or Files()
    node = NodeFile(FORMAT_VERSION, secrets.token_hex(16), 1, segment_size, state_size)
    with appearing(path, files) as draft:
        segments = NodeDirectory(draft, node).segments(files)
        segments.create(0)
        segments.create(segment_size)
        write_node(draft / NODE_FILE, node, files)


@contextmanager
def appearing(path: Path, files: Files, folders: Iterable[str] = FOLDERS) -> Iterator[Path]:
    """Yield a draft of a directory with some folders; it gets its name when it is complete.

    Raises `DirectoryError` where ``path`` is taken, or cannot be made; then nothing is left.
    """
    path = Path(os.path.abspath(path))
    if path.exists() and (not path.is_dir() or any(path.iterdir())):
        raise DirectoryError(f"{path}: is there already and not empty; choose another directory")
    draft = path.with_name(f"{path.name}.{os.getpid()}.draft")
    try:
        draft.mkdir(mode=0o700, parents=True)
        for folder in folders:
            (draft / folder).mkdir(mode=0o700)
        yield draft
        draft.rename(path)
        files.sync_directory(path.parent)
    except OSError as error:
        raise DirectoryError(f"{path}: cannot be made: {error.strerror}") from error
    finally:
        shutil.rmtree(draft, ignore_errors=True)


def free_name(path: Path) -> Path:
    """Return the path, or one with a number where it is taken."""
    paths = (path if n == 1 else path.with_name(f"{path.name}.{n}") for n in itertools.count(1))
    return next(path for path in paths if not path.exists())


def find(path: Path, *, older: bool = False) -> NodeDirectory:
    """Return an existing node directory; raises `DirectoryError` for anything else.

    One of an older format is refused too, unless that is what the caller is there for.
    """
    missing = f"{path}: no node directory here; make one with `finomw init`"
    if (path / BACKUP_FILE).exists():
        missing = f"{path}: a backup, no node directory; make one of it with `finomw restore`"
    node = read_node(path / NODE_FILE, missing)
    if node.format < FORMAT_VERSION and not older:
        raise DirectoryError(
            f"{path / NODE_FILE}: directory format {node.format} is older than this finomw's "
            f"({FORMAT_VERSION}); stop every process that uses it and run `finomw upgrade`"
        )
    return NodeDirectory(path, node)


def write_node(file: Path, node: NodeFile, files: Files) -> None:
    """Write what `read_node` reads, durably; raises `OSError`."""
    files.write(file, msgspec.json.encode(node) + b"\n")


def read_node(file: Path, missing: str) -> NodeFile:
    """Read ``node.json``, or what has its form; raises `DirectoryError`, with ``missing`` if so."""
    try:
        node = msgspec.json.decode(_read_small(file), type=NodeFile)
    except (FileNotFoundError, NotADirectoryError):
        raise DirectoryError(missing) from None
    except OSError as error:
        raise DirectoryError(f"{file}: cannot be read: {error.strerror}") from error
    except (msgspec.MsgspecError, RecursionError) as error:
        raise DirectoryError(f"{file}: damaged: {error}") from error
    _check(file, node)
    return node


def _read_small(file: Path) -> bytes:
    """Read a file of at most a page; what is no file is an error, and not waited for."""
    fd = os.open(file, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            raise OSError(errno.EINVAL, "no regular file")
        return os.read(fd, limits.PAGE)
    finally:
        os.close(fd)


def _check(file: Path, node: NodeFile) -> None:
    """Raise `DirectoryError` unless every field can be what was written when the node was made."""
    if node.format > FORMAT_VERSION:
        raise DirectoryError(
            f"{file}: directory format {node.format} is newer than this finomw "
            f"({FORMAT_VERSION}); install the version that wrote it"
        )
    if not limits.SEGMENT_SIZE_MIN <= node.segment_size <= limits.SEGMENT_SIZE_MAX:
        raise DirectoryError(f"{file}: segment_size {node.segment_size} is out of range")
    if not limits.STATE_SIZE_MIN <= node.state_size <= limits.STATE_SIZE_MAX:
        raise DirectoryError(f"{file}: state_size {node.state_size} is out of range")
    if node.segment_size % limits.PAGE or node.state_size % limits.PAGE:
        raise DirectoryError(f"{file}: a size is no multiple of {limits.PAGE}")
    if len(node.node) != 32 or not set(node.node) <= set("0123456789abcdef"):
        raise DirectoryError(f"{file}: node {node.node!r} is not an id of 32 hex digits")
    if node.format < 1:
        raise DirectoryError(f"{file}: format {node.format} is out of range")
    if not 1 <= node.incarnation < _INCARNATION_MAX:
        raise DirectoryError(f"{file}: incarnation {node.incarnation} is out of range")
