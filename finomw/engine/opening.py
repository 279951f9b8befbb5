"""Opening a node directory: who may decide, and what they decide.

All processes, the command line included, open one after the other under ``start.lock`` and share
``node.lock`` for life. Whoever gets ``node.lock`` exclusively is alone: only then may the state
be judged, rebuilt, or the failure flag cleared. A process that comes later joins, or refuses
while the flag is set: the others would believe a page cache that the disk does not.
"""

from __future__ import annotations

import logging
from contextlib import ExitStack
from typing import NamedTuple

from finomw.engine.apply import Apply
from finomw.engine.directory import NodeDirectory
from finomw.engine.replay import replay
from finomw.errors import DirectoryError, FlushFailed, JournalDamaged, RecordingFailed
from finomw.journal import recovery
from finomw.journal.control import Control
from finomw.journal.files import Files
from finomw.journal.format import START
from finomw.journal.locks import FileLock
from finomw.journal.reader import Reader
from finomw.journal.segment import Segments
from finomw.store import Store
from finomw.store.accounts import BlockPolicy
from finomw.store.env import StateUnreadable, set_aside
from finomw.types import Lsn

logger = logging.getLogger("finomw")


class Opened(NamedTuple):
    """An opened node directory; closing it lets go of everything."""

    directory: NodeDirectory
    segments: Segments
    control: Control
    store: Store
    node_lock: FileLock

    def close(self) -> None:
        """Close the state and the journal's mappings, then let go of the node."""
        self.store.close()
        self.segments.close()
        self.control.close()
        self.node_lock.close()


def open_directory(directory: NodeDirectory, files: Files, policy: BlockPolicy) -> Opened:
    """Open a node directory, recovering it first when this process is alone.

    Raises `DirectoryError`, `JournalDamaged`, `ReplayDiffers`, `FlushFailed`.
    """
    with ExitStack() as undo, ExitStack() as opening:
        try:
            start, node_lock = FileLock(directory.start_lock), FileLock(directory.node_lock)
        except OSError as error:
            raise DirectoryError(f"{directory.path}: cannot be opened: {error}") from error
        opening.callback(start.close)
        undo.callback(node_lock.close)
        start.exclusive()
        segments = directory.segments(files)
        undo.callback(segments.close)
        try:
            directory.state.mkdir(mode=0o700, exist_ok=True)
            control = Control(files, directory.control)
        except OSError as error:
            raise DirectoryError(f"{directory.path}: cannot be opened: {error}") from error
        undo.callback(control.close)
        if node_lock.try_exclusive():
            store = _recover(directory, segments, control, policy)
        elif control.failed:
            raise FlushFailed(
                f"{directory.path}: a flush to disk failed here; stop every process that uses "
                "this directory, then start again: the start recovers"
            )
        else:
            store = _open_state(directory)
        node_lock.shared()
        undo.pop_all()
    return Opened(directory, segments, control, store, node_lock)


def _recover(
    directory: NodeDirectory, segments: Segments, control: Control, policy: BlockPolicy
) -> Store:
    """Judge the state, rebuild it if need be, and reset the control file; we are alone.

    Whatever the page cache says that no flush has vouched for is stored again before it is
    flushed: an earlier flush may have failed and left the lost pages marked clean.
    """
    epoch = directory.epoch()
    watermark = control.durable() if control.epoch() is not None else 0
    store = _believable(directory, segments, control, watermark)
    with ExitStack() as undo:
        try:
            if store is not None:
                undo.callback(store.close)
                recovery.zero_behind(segments, store.tail().end)
            else:
                control.distrust()
                store = _rebuild(directory, segments, watermark, policy)
                undo.callback(store.close)
            end = store.tail().end
            for segment in segments.between(watermark, end):
                segment.restore(watermark, end)
                segment.file.flush()
        except OSError as error:
            control.fail()
            raise FlushFailed(f"{segments.directory}: cannot be flushed: {error}") from error
        control.reset(epoch, end)
        undo.pop_all()
    return store


def _believable(
    directory: NodeDirectory, segments: Segments, control: Control, watermark: Lsn
) -> Store | None:
    """Return the state as it is if the decision table says so."""
    same = control.epoch() == directory.epoch()
    if not same or control.failed:
        return None
    with ExitStack() as undo:
        try:
            store = _open_state(directory)
            undo.callback(store.close)
            tail = store.tail()
        except (StateUnreadable, RecordingFailed):
            return None
        matches = recovery.tail_matches(segments, tail, watermark)
        facts = recovery.StartFacts(same, control.failed, matches)
        if recovery.decide_start(facts) is recovery.Start.GO_ON:
            undo.pop_all()
            return store
    return None


def _rebuild(
    directory: NodeDirectory, segments: Segments, watermark: Lsn, policy: BlockPolicy
) -> Store:
    """Replay the whole journal into a new state."""
    _check_complete(segments)
    set_aside(directory.state)
    reader = Reader(segments, START)
    with ExitStack() as undo:
        store = _open_state(directory)
        undo.callback(store.close)
        count = replay(store, Apply(store, policy), reader)
        end = recovery.settle_end(segments, reader, watermark)
        undo.pop_all()
    if count or end is not recovery.End.CLEAN:
        logger.warning(
            "%s: rebuilt the state from %d journal records (%s at LSN %d)",
            directory.path,
            count,
            end.value,
            reader.tail.end,
        )
    return store


def _check_complete(segments: Segments) -> None:
    """Raise `JournalDamaged` where a segment file is missing: they are made one after the other."""
    bases = segments.bases()
    for expected in range(0, max(bases, default=0) + 1, segments.size):
        if expected not in bases:
            raise JournalDamaged(
                str(segments.path(expected)),
                expected,
                "this segment of the journal is missing",
                "put it back",
            )


def _open_state(directory: NodeDirectory) -> Store:
    """Open LMDB."""
    return Store(directory.state, directory.node.state_size, directory.node.short_id)
