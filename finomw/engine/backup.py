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
from datetime import timedelta
from pathlib import Path
from typing import NamedTuple

import msgspec

from finomw.clock import Clock
from finomw.engine.checkpoint import publish
from finomw.engine.directory import NODE_FILE, NodeDirectory, appearing, read_node, write_node
from finomw.engine.engine import Engine
from finomw.errors import CheckpointBroken, DirectoryError
from finomw.journal.files import Files
from finomw.journal.recovery import has_record
from finomw.store.checkpoints import Checkpoint, newest_good
from finomw.types import Lsn

BACKUP_FILE = "backup.json"

_SECOND = timedelta(seconds=1) // timedelta(microseconds=1)


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


def restore(source: Path, target: Path, clock: Clock) -> Restored:
    """Make a node directory out of a backup, as a new incarnation of its node.

    Raises `DirectoryError` where ``source`` is no whole backup, or ``target`` is not free.
    """
    files = Files()
    missing = f"{source}: no backup here; make one with `finomw backup DIR`"
    node = read_node(source / BACKUP_FILE, missing)
    backup = NodeDirectory(source, node)
    checkpoint = _whole(backup, files)
    later = max(node.incarnation + 1, clock.now() // _SECOND)
    node = msgspec.structs.replace(node, incarnation=later)
    with appearing(target, files) as draft:
        directory = NodeDirectory(draft, node)
        segments = directory.segments(files)
        files.copy(checkpoint.path, directory.checkpoints / checkpoint.path.name)
        base = segments.base_of(checkpoint.tail.lsn)
        with closing(backup.segments(files).open(base)) as segment:
            files.allocate(segments.path(base), segments.size, segment.file.load(0, segments.size))
        segments.create(base + segments.size)
        write_node(draft / NODE_FILE, node, files)
    return Restored(checkpoint.tail.end, checkpoint.tail.number, later)


def _whole(backup: NodeDirectory, files: Files) -> Checkpoint:
    """Return a backup's checkpoint; raises `DirectoryError` unless all of the backup is there."""
    checkpoint, broken = newest_good(backup.checkpoints, *backup.identity)
    if broken:
        raise broken[0]
    if checkpoint is None:
        raise CheckpointBroken(f"{backup.checkpoints}: the backup has no checkpoint")
    segments = backup.segments(files)
    if not has_record(segments, checkpoint.tail):
        path = segments.path(segments.base_of(checkpoint.tail.lsn))
        raise DirectoryError(f"{path}: the checkpoint's last record is not there")
    return checkpoint
