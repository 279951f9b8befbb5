"""Checkpoints on disk: one file each, a copy of the state at a known LSN, provably whole.

The file ``checkpoints/<end of its tail as 16 hex digits>.mdb`` is LMDB's compact copy of one
snapshot, followed by a footer of one page (4096 bytes), little-endian; format version 1::

    offset size
         0    8  magic "finockpt"
         8    4  format version
        12    4  CRC-32 of this footer's 112 bytes with this field zero
        16   16  node id
        32    8  incarnation of the node
        40    8  length of the copy in bytes
        48    8  tail of the journal in the copy: LSN of the last record,
        56    8  LSN behind it,
        64    4  its CRC,
        68    4  zero,
        72    8  number of records so far
        80   32  SHA-256 of the copy
       112 3984  zero

A name without ``.draft`` is given only to a file that was read back and found whole, and only after
the journal was durable up to its tail: so replay can always go on from it.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import struct
from pathlib import Path
from typing import NamedTuple
from zlib import crc32

import lmdb

from finomw import limits
from finomw.errors import CheckpointBroken, DirectoryError
from finomw.journal.format import Tail
from finomw.store.env import DATA, StateUnreadable
from finomw.store.meta import TABLE, TAIL_KEY, decode_tail
from finomw.types import Lsn

FORMAT_VERSION = 1
SUFFIX = ".mdb"
MAGIC = b"finockpt"
FOOTER_SIZE = limits.PAGE

_FOOTER = struct.Struct("<8sII16sQQQQI4xQ32s")
_NAME = re.compile(rf"[0-9a-f]{{16}}{re.escape(SUFFIX)}")

if _FOOTER.size != 112:
    raise AssertionError("the layout above and the struct disagree")


class Checkpoint(NamedTuple):
    """What a checkpoint's footer says; ``size`` is the copy's length in bytes."""

    path: Path
    node: bytes
    incarnation: int
    size: int
    tail: Tail
    digest: bytes


def name_of(end: Lsn) -> str:
    """Return the file name of the checkpoint whose tail ends at an LSN."""
    return f"{end:016x}{SUFFIX}"


def listed(folder: Path) -> list[Path]:
    """Return the paths of all checkpoints, newest first, good or not; raises `DirectoryError`."""
    try:
        names = os.listdir(folder)
    except FileNotFoundError:
        return []
    except OSError as error:
        raise DirectoryError(f"{folder}: cannot be read: {error.strerror}") from error
    return [folder / name for name in sorted(names, reverse=True) if _NAME.fullmatch(name)]


def newest_end(folder: Path) -> Lsn:
    """Return where the newest checkpoint's tail ends, by its name; 0 without one."""
    paths = listed(folder)
    return int(paths[0].stem, 16) if paths else 0


def encode_footer(checkpoint: Checkpoint) -> bytes:
    """Return the page that ends a checkpoint."""
    _, node, incarnation, size, tail, digest = checkpoint
    fields = (node, incarnation, size, *tail, digest)
    crc = crc32(_FOOTER.pack(MAGIC, FORMAT_VERSION, 0, *fields))
    return _FOOTER.pack(MAGIC, FORMAT_VERSION, crc, *fields).ljust(FOOTER_SIZE, b"\0")


def read(path: Path, node: bytes, incarnation: int) -> Checkpoint:
    """Read a checkpoint's footer, and check that it is one of this node's.

    Raises `CheckpointBroken`, and `DirectoryError` for a newer format.
    """
    if not path.is_file():  # opening a pipe would wait for its other end
        raise CheckpointBroken(f"{path}: is no regular file")
    try:
        with path.open("rb") as file:
            size = file.seek(0, os.SEEK_END) - FOOTER_SIZE
            page = b"" if size < 0 else os.pread(file.fileno(), FOOTER_SIZE, size)
    except OSError as error:
        raise CheckpointBroken(f"{path}: cannot be read: {error.strerror}") from error
    if len(page) < FOOTER_SIZE or not page.startswith(MAGIC):
        raise CheckpointBroken(f"{path}: does not end with a checkpoint's footer")
    _, version, crc, *fields = _FOOTER.unpack_from(page)
    if version > FORMAT_VERSION:
        raise DirectoryError(
            f"{path}: checkpoint format {version} is newer than this finomw ({FORMAT_VERSION}); "
            "install the version that wrote it"
        )
    found = Checkpoint(path, fields[0], fields[1], fields[2], Tail(*fields[3:7]), fields[7])
    sound = crc == crc32(_FOOTER.pack(MAGIC, version, 0, *fields))
    if not sound or page != encode_footer(found):
        raise CheckpointBroken(f"{path}: the footer is damaged")
    if found.size != size:
        raise CheckpointBroken(f"{path}: the copy has {size} bytes, its footer says {found.size}")
    if found.node != node or found.incarnation > incarnation:
        raise CheckpointBroken(f"{path}: belongs to another node, or to a later incarnation")
    return found


def check(path: Path, node: bytes, incarnation: int) -> Checkpoint:
    """Read a checkpoint whole: its hash, and that LMDB opens it and knows its tail.

    Raises as `read`.
    """
    checkpoint = read(path, node, incarnation)
    if digest_of(path, checkpoint.size) != checkpoint.digest:
        raise CheckpointBroken(f"{path}: the copy is damaged")
    try:
        tail = tail_of(path)
    except StateUnreadable as error:
        raise CheckpointBroken(str(error)) from error
    if tail != checkpoint.tail:
        raise CheckpointBroken(f"{path}: the copy ends at {tail}, its footer says otherwise")
    return checkpoint


def newest_good(
    folder: Path, node: bytes, incarnation: int
) -> tuple[Checkpoint | None, list[CheckpointBroken]]:
    """Return the newest checkpoint that is whole, and what is wrong with those above it."""
    broken: list[CheckpointBroken] = []
    for path in listed(folder):
        try:
            return check(path, node, incarnation), broken
        except CheckpointBroken as error:
            broken.append(error)
    return None, broken


def restore_into(checkpoint: Checkpoint, state: Path, size: int) -> None:
    """Make a checkpoint's copy the state in a directory that has none, of ``size`` bytes or more.

    Raises `CheckpointBroken` where the copy is not what its footer says, `OSError` where the disk
    has no room; then there is a draft and no state.
    """
    target = state / DATA
    draft = target.with_name(f"{DATA}.draft")
    digest = hashlib.sha256()
    with checkpoint.path.open("rb") as source, draft.open("wb") as file:
        left = checkpoint.size
        while left and (piece := source.read(min(left, limits.MIB))):
            digest.update(piece)
            file.write(piece)
            left -= len(piece)
        file.flush()
        os.posix_fallocate(file.fileno(), 0, max(size, checkpoint.size))
    if left or digest.digest() != checkpoint.digest:
        raise CheckpointBroken(f"{checkpoint.path}: the copy is damaged")
    draft.rename(target)


def tail_of(data: Path) -> Tail:
    """Return the tail in a state or a copy that nobody has open, changing nothing.

    Raises `StateUnreadable`.
    """
    try:
        size = data.stat().st_size
        env = lmdb.open(
            str(data), size, subdir=False, readonly=True, lock=False, create=False, max_dbs=1
        )
        with contextlib.closing(env):
            # What lies behind the file's end must not be touched: that would be a SIGBUS.
            if (env.info()["last_pgno"] + 1) * env.stat()["psize"] > size:
                raise StateUnreadable(f"{data}: is cut off")
            with env.begin(db=env.open_db(TABLE.encode(), create=False)) as txn:
                return decode_tail(txn.get(TAIL_KEY))
    except (lmdb.Error, OSError) as error:
        raise StateUnreadable(f"{data}: cannot be read: {error}") from error


def digest_of(path: Path, size: int) -> bytes:
    """Return the SHA-256 of a file's first ``size`` bytes."""
    digest = hashlib.sha256()
    try:
        with path.open("rb") as file:
            while size and (piece := file.read(min(size, limits.MIB))):
                digest.update(piece)
                size -= len(piece)
    except OSError as error:
        raise CheckpointBroken(f"{path}: cannot be read: {error.strerror}") from error
    return digest.digest()
