"""Making checkpoints, and pruning the journal behind them; both while calls run.

Published in this order, so that a cut at any step leaves what was there before, or more: the copy
is written as a draft, the journal is made durable up to the copy's tail, the footer is added and
flushed, the file is read back from the disk, and only then it gets its name. Two good checkpoints
are kept, so that one rotten block is not the end; what a killed writer left is cleared by the next.
The journal loses its oldest segments first, each for good before the next: a cut leaves no hole.
"""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

from finomw import limits
from finomw.engine.engine import Engine
from finomw.errors import CheckpointBroken, InvariantBroken, RecordingFailed
from finomw.journal.format import START, Tail
from finomw.journal.locks import FileLock
from finomw.store.checkpoints import (
    FOOTER_SIZE,
    Checkpoint,
    check,
    digest_of,
    encode_footer,
    listed,
    name_of,
    read,
    tail_of,
)
from finomw.types import Lsn

KEPT = 2
"""How many good checkpoints are kept."""

_DRAFT = "new.draft"


def make_checkpoint(engine: Engine, *, wait: bool = True) -> Checkpoint:
    """Make a checkpoint of what is committed now, durably; remove those that are too old.

    While another process makes one it waits, or not: that process may have been stopped. Raises
    `RecordingFailed` where it cannot be made; then all is as before, and it may be tried again.
    """
    directory, files = engine.directory, engine.segments.files
    try:
        lock = FileLock(directory.checkpoint_lock)
    except OSError as error:
        raise RecordingFailed(f"a checkpoint cannot be made: {error}") from error
    try:
        if wait:
            lock.exclusive()
        elif not lock.try_exclusive():
            raise RecordingFailed(f"{lock.path}: another process makes a checkpoint already")
        # The directory may be an older one, or one copied without what was empty.
        directory.checkpoints.mkdir(mode=0o700, exist_ok=True)
        _check_room(engine)
        checkpoint = publish(engine, directory.checkpoints)
        for path in _too_old(engine):
            files.unlink(path)
        return checkpoint
    except (CheckpointBroken, OSError) as error:
        raise RecordingFailed(f"a checkpoint cannot be made: {error}") from error
    finally:
        lock.close()


def _check_room(engine: Engine) -> None:
    """Raise `RecordingFailed` where the copy would use room that calls may need meanwhile.

    A flush that fails is noticed here too, before anything is copied for nothing.
    """
    engine.flush()
    space = engine.health().space
    wanted = space.state_used + FOOTER_SIZE + limits.LOW_SPACE_SEGMENTS * engine.segments.size
    if space.disk_free < wanted:
        # No numbers: they change, and what is told once is told by its text.
        raise RecordingFailed(
            f"a checkpoint cannot be made: {engine.directory.path}: the disk has no room for a "
            f"copy of the state beside {limits.LOW_SPACE_SEGMENTS} segments; make room"
        )


def publish(engine: Engine, folder: Path) -> Checkpoint:
    """Write a draft in a folder, prove it, and give it its name.

    Nobody else may publish there meanwhile. Raises `CheckpointBroken`, `RecordingFailed`,
    `OSError`; then no draft is left.
    """
    draft = folder / _DRAFT
    try:
        draft.unlink(missing_ok=True)
        return _publish(engine, draft)
    finally:
        with suppress(OSError):
            draft.unlink(missing_ok=True)


def _publish(engine: Engine, draft: Path) -> Checkpoint:
    identity, files = engine.directory.identity, engine.segments.files
    files.fill(draft, engine.store.copy_to)
    tail, size = tail_of(draft), draft.stat().st_size
    # The journal has to reach it before anybody can start from it.
    if engine.flush() < tail.end:
        raise InvariantBroken(f"a flush left the journal short of the copy's tail {tail.end}")
    footer = Checkpoint(draft, *identity, size, tail, digest_of(draft, size))
    files.append(draft, encode_footer(footer))
    checked = check(draft, *identity)
    path = draft.with_name(name_of(tail.end))
    files.rename(draft, path)
    return checked._replace(path=path)


def _too_old(engine: Engine) -> list[Path]:
    """Return the checkpoints older than the last of those that are to be kept."""
    identity = engine.directory.identity
    paths = listed(engine.directory.checkpoints)
    good = 0
    for index, path in enumerate(paths):
        with suppress(CheckpointBroken):
            check(path, *identity)
            good += 1
        if good == KEPT:
            return paths[index + 1 :]
    return []


def prunable(engine: Engine, keep: int) -> Lsn:
    """Return the LSN below which whole segments may be removed: the one place that decides it.

    A segment goes when every kept checkpoint begins behind it, and ``keep`` bytes of the journal
    lie between it and the tail. Nothing goes before there are as many good checkpoints as are kept.
    """
    tails = _kept_tails(engine)
    if len(tails) < KEPT:
        return 0
    return min(tails[-1].lsn, engine.tail() - keep)


def prune(engine: Engine, keep: int) -> int:
    """Remove the segments that nobody needs, oldest first; return how many there were.

    ``keep`` is in bytes. Raises `RecordingFailed` where one cannot be removed; the others stay.
    """
    segments = engine.segments
    oldest = segments.bases()
    if not oldest or oldest[0] + segments.size > engine.tail() - keep:
        return 0
    limit = prunable(engine, keep)
    gone = [base for base in oldest if base + segments.size <= limit]
    for base in gone:
        try:
            segments.files.unlink(segments.path(base))
        except FileNotFoundError:
            continue
        except OSError as error:
            raise RecordingFailed(
                f"{segments.path(base)}: cannot be removed: {error.strerror}"
            ) from error
    return len(gone)


def oldest_start(engine: Engine) -> Tail | None:
    """Return the oldest tail from which the journal can be read; ``None`` where there is none."""
    segments = engine.segments
    bases = segments.bases()
    if 0 in bases:
        return START
    tails = [tail for tail in _kept_tails(engine) if segments.base_of(tail.lsn) in bases]
    return tails[-1] if tails else None


def _kept_tails(engine: Engine) -> list[Tail]:
    """Return the tails of all checkpoints that seem good by their footers, newest first."""
    identity = engine.directory.identity
    tails: list[Tail] = []
    for path in listed(engine.directory.checkpoints):
        with suppress(CheckpointBroken):
            tails.append(read(path, *identity).tail)
    return tails
