"""What a start would do, worked out without changing anything.

`analyse` looks the facts up in the tables of ``journal/recovery.py``, reads the journal from where
a rebuild would begin to where it ends, and returns the plan as a value. ``opening.py`` carries it
out; `dry_run` only asks for it. Whoever calls is alone: nobody else has the directory open.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import NamedTuple

from finomw.engine.directory import NodeDirectory, boot_id, find
from finomw.errors import CheckpointBroken, DirectoryError, FinomwError, JournalDamaged
from finomw.journal import recovery
from finomw.journal.control import Control, Epoch
from finomw.journal.files import Files
from finomw.journal.format import START, Tail
from finomw.journal.locks import FileLock
from finomw.journal.reader import Reader
from finomw.journal.recovery import (
    BaseFacts,
    Behind,
    Boot,
    JournalEnd,
    Lmdb,
    Outcome,
    Place,
    StartFacts,
    decide_base,
    decide_start,
)
from finomw.journal.segment import Segments
from finomw.store import checkpoints
from finomw.store.checkpoints import Checkpoint, tail_of
from finomw.store.env import DATA, StateUnreadable
from finomw.types import Lsn


class Analysis(NamedTuple):
    """What a start does, and why.

    ``start`` is where replay begins (the tail of ``checkpoint``, or the journal's beginning), and
    ``tail`` the last record that can be read; both are LMDB's own tail where it is believed.
    ``durable`` is the highest LSN known to have been on disk. ``behind`` says what is cut,
    ``clean`` whether the last stop was clean, ``error`` why the start is refused. ``stale`` says
    that the state is of an earlier boot, and worth nothing once it is rebuilt.
    """

    outcome: Outcome
    reason: str
    checkpoint: Checkpoint | None
    broken: tuple[CheckpointBroken, ...]
    start: Tail
    tail: Tail
    durable: Lsn
    behind: Behind
    clean: bool
    stale: bool
    error: FinomwError | None

    @property
    def records(self) -> int:
        """How many records are replayed."""
        return self.tail.number - self.start.number


class Alone(NamedTuple):
    """A node directory that nobody else has open.

    ``control`` is ``None`` where there is none, or ``error`` says why it cannot be used.
    """

    directory: NodeDirectory
    segments: Segments
    control: Control | None
    error: DirectoryError | None


@contextmanager
def closed(path: Path) -> Iterator[NodeDirectory]:
    """Keep everybody else from opening a directory, of whatever format up to this version's.

    Raises `DirectoryError` where there is no node, or a process has it open.
    """
    directory = find(path, older=True)
    with ExitStack() as undo:
        for place in (directory.start_lock, directory.node_lock, directory.state_lock):
            if place == directory.state_lock and not place.exists():
                continue
            try:
                lock = FileLock(place)
            except OSError as error:
                raise DirectoryError(f"{path}: cannot be opened: {error}") from error
            undo.callback(lock.close)
            if not lock.try_exclusive():
                raise DirectoryError(f"{path}: a process has it open; stop it first")
        yield directory


@contextmanager
def alone(path: Path, files: Files) -> Iterator[Alone]:
    """Keep everybody else from opening a directory, and leave it as it is. Raises as `closed`."""
    find(path)
    with closed(path) as directory, ExitStack() as undo:
        segments = directory.segments(files)
        control, unusable = None, None
        if files.exists(directory.control):
            try:
                control = Control(files, directory.control)
                undo.callback(control.close)
            except DirectoryError as error:
                unusable = error
        yield Alone(directory, segments, control, unusable)


def dry_run(path: Path, files: Files | None = None) -> Analysis:
    """Say what a start of this directory would do; changes nothing. Raises as `alone`."""
    with alone(path, files or Files()) as found:
        return plan_of(found)


def plan_of(found: Alone, *, believe: bool = True) -> Analysis:
    """Say what a start would do with a directory that nobody else has open; see `analyse`."""
    if found.error is not None:
        return _refused(found.error, 0)
    return analyse(found.directory, found.segments, found.control, believe=believe)


def analyse(
    directory: NodeDirectory, segments: Segments, control: Control | None, *, believe: bool = True
) -> Analysis:
    """Say what a lone process does with this directory; a refusal is a plan as well.

    Without ``believe`` the state is taken for unreadable, whatever it looks like from outside.
    """
    epoch = None if control is None else control.epoch()
    watermark = 0
    try:
        if control is not None and epoch is not None:
            watermark = control.durable()
        facts, tail = _look(directory, segments, control, watermark, believe)
        missing = recovery.missing_segment(segments.bases(), segments.size)
        outcome = decide_start(facts)
        if outcome is Outcome.GO_ON and missing is None:
            recovery.check_behind(segments, tail.end)
            found = Analysis(
                *(outcome, Lmdb.MATCHES.value, None, (), tail, tail, watermark),
                *(Behind.ZEROS, False, False, None),
            )
        else:
            found = _plan(directory, segments, watermark, missing)
            found = found._replace(
                outcome=found.outcome.worse(outcome),
                reason=_reason(facts),
                stale=facts.boot is Boot.OTHER,
            )
    except (JournalDamaged, DirectoryError) as error:
        return _refused(error, watermark)
    stopped = 0 if control is None or epoch is None or facts.failed else control.clean_stop
    return found._replace(clean=found.tail == START or stopped == found.tail.end)


def _look(
    directory: NodeDirectory,
    segments: Segments,
    control: Control | None,
    watermark: Lsn,
    believe: bool,
) -> tuple[StartFacts, Tail]:
    """Return the facts of the first table, and LMDB's tail where it was asked for."""
    known = None if control is None else control.epoch()
    boot = Boot.UNKNOWN if known is None or not any(known.boot) else Boot.SAME
    if known is not None and boot is Boot.SAME and known.boot != boot_id():
        boot = Boot.OTHER
    place = _place(directory, known)
    failed = control is not None and control.failed
    lmdb, tail = Lmdb.UNREADABLE, START
    if believe and not failed and boot is Boot.SAME and place is Place.SAME:
        try:
            tail = tail_of(directory.state / DATA)
            lmdb = recovery.compare(segments, tail, watermark)
        except StateUnreadable:
            pass
    return StartFacts(failed, boot, place, lmdb), tail


def _place(directory: NodeDirectory, known: Epoch | None) -> Place:
    """Say whether the state directory is the one that the control file names."""
    if not (directory.state / DATA).exists():
        return Place.MISSING
    try:
        return Place.SAME if known == directory.epoch() else Place.ANOTHER
    except OSError:
        return Place.ANOTHER


def _reason(facts: StartFacts) -> str:
    """Say why the state is not believed, by the row of the first table."""
    if facts.failed:
        return "a flush to disk failed"
    if facts.boot is not None and facts.boot is not Boot.SAME:
        return str(facts.boot.value)
    if facts.place is not None and facts.place is not Place.SAME:
        return str(facts.place.value)
    return "" if facts.lmdb is None else facts.lmdb.value


def _plan(
    directory: NodeDirectory, segments: Segments, watermark: Lsn, missing: Lsn | None
) -> Analysis:
    """Return how the state would be rebuilt."""
    checkpoint, broken = checkpoints.newest_good(directory.checkpoints, *directory.identity)
    start = START if checkpoint is None else checkpoint.tail
    base = segments.base_of(start.lsn)
    reaches = base in segments.bases()
    outcome = decide_base(BaseFacts(missing is None, reaches, bool(broken)))
    reader = Reader(segments, start)
    error: FinomwError | None = None
    end = JournalEnd(Outcome.REFUSE, Behind.ZEROS, max(watermark, start.end))
    try:
        if reaches:
            for _ in reader:
                pass
        known = max(watermark, reader.stamp, 0 if checkpoint is None else start.end)
        end = recovery.judge_end(segments, reader.tail, known)
        if missing is not None:
            error = _missing(segments, missing, reader.tail.end)
        elif not reaches:
            error = _missing(segments, base, None) if checkpoint else _pruned(segments, broken)
        elif not recovery.has_record(segments, start):
            hint = recovery.give_up(None)
            error = recovery.damaged_end(segments, start.lsn, end.durable, hint)
        elif end.outcome is Outcome.REFUSE:
            error = recovery.damaged_end(segments, reader.tail.end, end.durable)
    except JournalDamaged as damage:
        error = damage
    return Analysis(
        outcome.worse(end.outcome if error is None else Outcome.REFUSE),
        "",
        checkpoint,
        tuple(broken),
        start,
        reader.tail,
        end.durable,
        end.behind,
        clean=False,
        stale=False,
        error=error,
    )


def _missing(segments: Segments, base: Lsn, end: Lsn | None) -> JournalDamaged:
    what = "this segment of the journal is missing"
    hint = f"put it back, {recovery.give_up(end)}"
    return JournalDamaged(str(segments.path(base)), base, what, hint)


def _pruned(segments: Segments, broken: list[CheckpointBroken]) -> JournalDamaged:
    """Return the refusal of a journal without its beginning, and nothing in its place."""
    first = min(segments.bases(), default=None)
    what = "this segment of the journal is missing"
    if first is not None:
        what = f"the journal begins at LSN {first}"
    what += ", and no good checkpoint stands for what is not there"
    if broken:
        what += f" ({broken[0]})"
    hint = (
        "restore a checkpoint or the node from a backup; `finomw recover --dry-run` says what is "
        "there; nothing was changed"
    )
    return JournalDamaged(str(segments.path(0)), 0, what, hint)


def _refused(error: FinomwError, watermark: Lsn) -> Analysis:
    """Return the plan of a start that stops at what it meets first."""
    return Analysis(
        Outcome.REFUSE,
        str(error),
        None,
        (),
        START,
        START,
        watermark,
        Behind.ZEROS,
        clean=False,
        stale=False,
        error=error,
    )
