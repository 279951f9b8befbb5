"""Backups: a whole node at one LSN in a directory of its own, taken while calls run.

A backup is a checkpoint and the stretch of journal that ends with it, under ``backup.json`` in the
place of ``node.json``: so that nobody runs on the backup itself. It is proved when it is made, and
again when it is restored. What is restored is a new incarnation of the node: the ids that it may
have given out after the backup are never given again, and segments of the earlier life that come
after it are refused. Both directories appear whole, under their names, or not at all::

    backup.json                as node.json, of the incarnation that was backed up
    checkpoints/<lsn>.mdb      the state at that LSN
    journal/<lsn>.seg          the segment with the checkpoint's last record, zeros behind it
"""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import NamedTuple

from finomw.clock import Clock
from finomw.engine.checkpoint import publish
from finomw.engine.directory import (
    BACKUP_FILE,
    NODE_FILE,
    NodeDirectory,
    appearing,
    read_node,
    write_node,
)
from finomw.engine.engine import Engine
from finomw.errors import DirectoryError, JournalDamaged
from finomw.journal.files import Files, ReadOnlyFiles
from finomw.journal.format import (
    HEADER_SIZE,
    START,
    Tail,
    decode_segment_header,
    encode_segment_header,
)
from finomw.journal.reader import Reader
from finomw.journal.recovery import has_record
from finomw.journal.segment import Segments
from finomw.store.checkpoints import Checkpoint, newest_good
from finomw.types import Lsn


class BackedUp(NamedTuple):
    """What a backup holds: everything before the LSN ``end``, in ``records`` journal records."""

    end: Lsn
    records: int
    size: int
    """Bytes of the state's copy."""


class Restored(NamedTuple):
    """What was restored, and as which incarnation."""

    end: Lsn
    records: int
    incarnation: int


def back_up(engine: Engine, target: Path) -> BackedUp:
    """Write a backup of what is committed now to a new directory, durably; writers go on.

    Raises `DirectoryError` where ``target`` is not free or cannot be made, `RecordingFailed`.
    """
    files, segments = engine.segments.files, engine.segments
    with appearing(target, files, ("checkpoints", "journal")) as draft:
        checkpoint = publish(engine, draft / "checkpoints")
        base = segments.base_of(checkpoint.tail.lsn)
        with closing(segments.open(base)) as segment:
            head = segment.file.load(0, checkpoint.tail.end - base)
        path = draft / "journal" / segments.path(base).name
        files.allocate(path, segments.size, head)
        write_node(draft / BACKUP_FILE, engine.directory.node, files)
    return BackedUp(checkpoint.tail.end, checkpoint.tail.number, checkpoint.size)


def restore(source: Path, target: Path, clock: Clock, files: Files | None = None) -> Restored:
    """Make a node directory out of a backup, as a new incarnation of its node.

    Raises `DirectoryError` where ``source`` is no whole backup, or ``target`` is not free.
    """
    files = files or Files()
    missing = f"{source}: no backup here; make one with `finomw backup DIR`"
    backup = NodeDirectory(source, read_node(source / BACKUP_FILE, missing))
    checkpoint, head = _whole(backup)
    node = backup.node.reborn(clock)
    with appearing(target, files) as draft:
        directory = NodeDirectory(draft, node)
        segments = directory.segments(files)
        files.copy(checkpoint.path, directory.checkpoints / checkpoint.path.name)
        base = segments.base_of(checkpoint.tail.lsn)
        path = segments.path(base)
        # Of the new incarnation, with its old salt: no segment of the earlier life may follow it.
        header = decode_segment_header(head[:HEADER_SIZE], str(path), base)
        header = header._replace(incarnation=node.incarnation)
        opening = encode_segment_header(header).ljust(HEADER_SIZE, b"\0")
        files.allocate(path, segments.size, opening + head[HEADER_SIZE:])
        segments.create(base + segments.size)
        write_node(draft / NODE_FILE, node, files)
    return Restored(checkpoint.tail.end, checkpoint.tail.number, node.incarnation)


def _whole(backup: NodeDirectory) -> tuple[Checkpoint, bytes]:
    """Return a backup's checkpoint, and its segment up to the checkpoint's tail.

    Raises `DirectoryError` unless all of the backup is there.
    """
    checkpoint, broken = newest_good(backup.checkpoints, *backup.identity)
    if broken:
        raise _damaged(backup, broken[0])
    if checkpoint is None:
        raise _damaged(backup, f"{backup.checkpoints}: no checkpoint is there")
    # It may lie where nothing can be written.
    segments, tail = backup.segments(ReadOnlyFiles()), checkpoint.tail
    base = segments.base_of(tail.lsn)
    try:
        with closing(segments.open(base)) as segment:
            head = segment.file.load(0, tail.end - base)
        # The journal's first segment is read from its beginning when the node is verified.
        start = START if base == 0 else tail
        if not (has_record(segments, tail) and _reads(segments, start, tail)):
            raise _damaged(backup, f"{segments.path(base)}: does not lead to the checkpoint")
    except JournalDamaged as error:
        raise _damaged(backup, error) from error
    return checkpoint, head


def _reads(segments: Segments, start: Tail, tail: Tail) -> bool:
    """Say whether the journal can be read from ``start`` exactly to ``tail``."""
    reader = Reader(segments, start, tail.end)
    for _ in reader:
        pass
    return reader.tail == tail


def _damaged(backup: NodeDirectory, why: object) -> DirectoryError:
    return DirectoryError(f"{backup.path}: the backup is damaged, use another: {why}")
