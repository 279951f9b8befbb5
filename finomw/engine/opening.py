"""Opening a node directory: who may decide, and what they decide.

All processes, the command line included, open one after the other under ``start.lock`` and share
``node.lock`` for life. Whoever gets ``node.lock`` exclusively is alone: only then may the state
be judged, rebuilt, or the failure flag cleared. A process that comes later joins, or refuses
while the flag is set: the others would believe a page cache that the disk does not.
"""

from __future__ import annotations

import logging
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager, nullcontext, suppress
from pathlib import Path
from typing import NamedTuple

from finomw.clock import SystemClock
from finomw.engine.analysis import Analysis, analyse
from finomw.engine.apply import Apply
from finomw.engine.directory import NodeDirectory
from finomw.engine.replay import replay
from finomw.engine.watchdog import Watchdog
from finomw.errors import DirectoryError, FlushFailed, InvariantBroken, RecordingFailed
from finomw.journal import recovery
from finomw.journal.control import Control
from finomw.journal.files import Files
from finomw.journal.format import START
from finomw.journal.locks import FileLock
from finomw.journal.reader import Reader
from finomw.journal.recovery import Outcome
from finomw.journal.segment import Segments
from finomw.journal.workers import start_time
from finomw.store import Guard, Store
from finomw.store.accounts import BlockPolicy
from finomw.store.checkpoints import restore_into
from finomw.store.env import DATA, StateUnreadable, allocate_locks, set_aside
from finomw.types import WorkerId

logger = logging.getLogger("finomw")

_REBUILD = "rebuild"
"""Where a new state is made, in the state directory: it has to be on the same file system."""
CLOSING_SECONDS = 2
"""How long a process that closes waits for others that open or close just now."""


class Opened(NamedTuple):
    """An opened node directory; closing it lets go of everything."""

    directory: NodeDirectory
    segments: Segments
    control: Control
    store: Store
    node_lock: FileLock
    state_lock: FileLock

    def close(self) -> None:
        """Close the state and the journal's mappings, then let go of the node."""
        self.store.close()
        self.segments.close()
        self.control.close()
        self.state_lock.close()
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
            directory.make_state()
            state_lock = FileLock(directory.state_lock)
            undo.callback(state_lock.close)
            control = Control(files, directory.control)
        except OSError as error:
            raise DirectoryError(f"{directory.path}: cannot be opened: {error}") from error
        undo.callback(control.close)
        if node_lock.try_exclusive():
            if not state_lock.try_exclusive():
                raise DirectoryError(
                    f"{directory.state}: another node directory, of which this may be a copy, has "
                    "the same state open; give this one a state of its own"
                )
            store = _recover(directory, segments, control, policy)
            with suppress(OSError):  # drafts only take space, and the next start tries again
                for place in (directory.path, directory.journal):
                    files.remove_drafts(place)
        elif control.failed:
            raise FlushFailed(
                f"{directory.path}: a flush to disk failed here; stop every process that uses "
                "this directory, then start again: the start recovers"
            )
        else:
            store = _join(directory, control)
        state_lock.shared()
        node_lock.shared()
        undo.pop_all()
    return Opened(directory, segments, control, store, node_lock, state_lock)


def close_cleanly(opened: Opened) -> None:
    """Close a node directory; who is the last to do so, and leaves it whole, says so.

    Nobody may open, and judge, while this process still has the state open: so it happens under
    the start lock. Who cannot get that soon, or cannot read the state, closes without a word.
    """
    directory, _, control, store, node_lock, _ = opened
    try:
        start = FileLock(directory.start_lock)
    except OSError:
        opened.close()
        return
    with suppress(RecordingFailed), ExitStack() as leaving:
        leaving.callback(start.close)
        leaving.callback(opened.close)
        if start.exclusive_within(CLOSING_SECONDS) and node_lock.try_exclusive():
            with store.read() as txn:
                end, holding = store.meta.tail(txn).end, store.holds.workers(txn)
            left = holding or any(slot.worker for slot in control.slots())
            if not left and not control.failed and control.durable() >= end:
                control.stop_clean(end)


def _join(directory: NodeDirectory, control: Control) -> Store:
    """Open the state that others use, behind a write mark like any writer; see `Watchdog`."""

    @contextmanager
    def marked(last_change: Callable[[], int]) -> Iterator[None]:
        slot, clock, pid = control.opener(), SystemClock(), os.getpid()
        watchdog = Watchdog(control, last_change, lambda: slot.write_mark, clock)
        slot.claim(WorkerId(0), pid, start_time(pid), 0)
        slot.mark_write(clock.monotonic())
        watchdog.start()
        try:
            yield
        finally:
            watchdog.stop()
            slot.mark_write(0)

    return _open_state(directory.state, directory, marked)


def _recover(
    directory: NodeDirectory, segments: Segments, control: Control, policy: BlockPolicy
) -> Store:
    """Judge the state, rebuild it if need be, and reset the control file; we are alone."""
    plan = analyse(directory, segments, control)
    with ExitStack() as undo:
        store = _believed(directory) if plan.outcome is Outcome.GO_ON else None
        if store is None and plan.outcome is Outcome.GO_ON:
            plan = analyse(directory, segments, control, believe=False)
        if plan.error is not None:
            raise plan.error
        if store is None:
            control.distrust()
            store = _rebuild(directory, segments, plan, policy)
        undo.callback(store.close)
        try:
            epoch = directory.epoch()
        except OSError as error:
            raise DirectoryError(f"{directory.state}: cannot be opened: {error}") from error
        end = plan.tail.end
        try:
            if plan.outcome is Outcome.GO_ON:
                recovery.zero_behind(segments, end)
            else:
                recovery.settle_end(segments, Reader(segments, plan.tail), plan.durable)
            recovery.store_again(segments, plan.durable, end)
        except OSError as error:
            control.fail()
            raise FlushFailed(f"{segments.directory}: cannot be flushed: {error}") from error
        control.reset(epoch, end, clean=plan.clean)
        undo.pop_all()
    _tell(directory, plan)
    return store


def _believed(directory: NodeDirectory) -> Store | None:
    """Open the state as it is, unless LMDB will not have it."""
    try:
        return _open_alone(directory.state, directory)
    except StateUnreadable:
        return None


def _rebuild(
    directory: NodeDirectory, segments: Segments, plan: Analysis, policy: BlockPolicy
) -> Store:
    """Make a new state of a checkpoint and the journal, and put it in the old one's place.

    It is made beside the old one, which goes only when the new one has proved to be whole.
    """
    fresh = directory.state / _REBUILD
    try:
        if fresh.exists():
            shutil.rmtree(fresh)
        fresh.mkdir(mode=0o700)
        if plan.checkpoint is not None:
            restore_into(plan.checkpoint, fresh, directory.node.state_size)
        with closing(_open_alone(fresh, directory)) as store:
            if store.tail() != plan.start:
                raise InvariantBroken(f"{fresh}: begins at {store.tail()}, not at {plan.start}")
            replay(store, Apply(store, policy), Reader(segments, plan.start))
            if store.tail() != plan.tail:
                raise InvariantBroken(f"{fresh}: ends at {store.tail()}, not at {plan.tail}")
        if not plan.stale:
            set_aside(directory.state)
        (fresh / DATA).rename(directory.state / DATA)
        shutil.rmtree(fresh)
    except OSError as error:
        raise DirectoryError(f"{directory.state}: cannot be rebuilt: {error}") from error
    return _open_alone(directory.state, directory)


def _tell(directory: NodeDirectory, plan: Analysis) -> None:
    """Log a start that was not simply a start: one line."""
    if plan.outcome is Outcome.GO_ON:
        if not plan.clean:
            text = "%s: the last stop was not clean; the state is whole up to LSN %d"
            logger.info(text, directory.path, plan.tail.end)
        return
    if plan.outcome is Outcome.RECOVER and plan.tail == START:
        return
    base = "no checkpoint" if plan.checkpoint is None else plan.checkpoint.path.name
    skipped = "".join(f"; skipped {error}" for error in plan.broken)
    logger.log(
        logging.WARNING if plan.outcome is Outcome.REPORT else logging.INFO,
        "%s: rebuilt the state from %s and %d journal records (%s; %s at LSN %d)%s",
        directory.path,
        base,
        plan.records,
        plan.reason,
        plan.behind.value,
        plan.tail.end,
        skipped,
    )


def _open_alone(place: Path, directory: NodeDirectory) -> Store:
    """Open LMDB in a directory where nobody else has."""
    allocate_locks(place)
    return _open_state(place, directory)


def _open_state(
    place: Path, directory: NodeDirectory, guard: Guard = lambda _: nullcontext()
) -> Store:
    """Open LMDB in a directory."""
    return Store(place, directory.node.state_size, directory.node.short_id, guard)
