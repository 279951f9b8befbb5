"""The way out of a refusal: say what would be lost, and part with it, on the owner's word only.

A start that meets damage to what was durable is refused and changes nothing. `assess` finds up to
where the journal can be read and replayed, and what lies behind; `accept_loss` makes that the
journal's end. Nobody can accept more than is lost: the LSN has to be the very one that `assess`
found. Nothing is removed: all that goes moves to a folder in ``lost``, as it was, with a list of
the lost records. Until that is done the folder is called unfinished and the start stays refused,
so that an interrupted loss is only ever gone on with.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, closing, suppress
from pathlib import Path
from typing import NamedTuple

import msgspec

from finomw.clock import Clock
from finomw.engine import records
from finomw.engine.analysis import Alone, Analysis, alone, plan_of
from finomw.engine.apply import Apply
from finomw.engine.aside import Aside
from finomw.engine.directory import NODE_FILE, NodeDirectory, write_node
from finomw.engine.engine import close_engine, open_engine
from finomw.engine.policy import BelowZero
from finomw.engine.replay import replay
from finomw.errors import (
    CheckpointBroken,
    DirectoryError,
    FinomwError,
    InvalidValue,
    JournalDamaged,
    RecordingFailed,
    ReplayDiffers,
)
from finomw.journal import recovery
from finomw.journal.control import Control, Epoch
from finomw.journal.files import Files
from finomw.journal.format import ALIGNMENT, START, Tail
from finomw.journal.reader import Reader
from finomw.journal.recovery import Outcome
from finomw.journal.segment import Segment, Segments, Window
from finomw.store import Store
from finomw.store.checkpoints import Checkpoint, check, listed, read, restore_into
from finomw.types import Lsn

_NO_BOOT = Epoch(bytes(16), 0, 0)
"""Under which nothing but checkpoints and journal is believed."""


class Lost(msgspec.Struct, frozen=True):
    """What lies from ``lsn`` up to ``end`` and would be lost: a record, as far as it can be read.

    ``command`` says what it did, ``fields`` with what. ``None`` is for bytes that are no record.
    """

    lsn: Lsn
    end: Lsn
    command: str | None
    fields: dict[str, object]


class Assessment(NamedTuple):
    """What a start would do; and where it is refused, what accepting the loss would cost.

    ``end`` is the LSN after which all is lost, ``None`` where nothing is, or no loss helps.
    Segments below ``first`` are of no use any more: one of those behind them is missing.
    """

    plan: Analysis
    end: Lsn | None
    first: Lsn
    lost: tuple[Lost, ...]


def assess(path: Path) -> Assessment:
    """Say what a start of this directory would do; changes nothing, rehearses the replay.

    Raises `DirectoryError` where there is no node, a process has it open, or there is no room for
    the rehearsal.
    """
    with alone(path, Files()) as place:
        return _assess(place)


def rebuild(path: Path) -> Analysis:
    """Start, believing nothing but checkpoints and journal; return what was done.

    Raises as `assess`, and what a start is refused with; then nothing has changed.
    """
    with alone(path, Files()) as place:
        found = _assess(place, believe=False)
        if found.plan.error is not None:
            raise found.plan.error
        if place.control is not None:
            place.control.distrust()
        plan = plan_of(place)
    close_engine(open_engine(path))
    return plan


def accept_loss(
    path: Path, after: Lsn, clock: Clock, files: Files | None = None
) -> tuple[Assessment, Path | None]:
    """Make ``after`` the journal's end; return what was lost, and where it lies now, if anything.

    Raises `InvalidValue` for another LSN than `assess` names, and the refusal itself where no
    loss helps; then nothing has changed. Interrupted, it can be done again.
    """
    with alone(path, files or Files()) as place:
        found = _assess(place)
        if found.plan.error is None:
            raise InvalidValue(f"{path}: a start is not refused here, so there is nothing to lose")
        if found.end is None:
            raise found.plan.error
        if found.end != after:
            raise InvalidValue(
                f"{path}: what can be read ends at LSN {found.end}, not {after}: accept that loss "
                "or none"
            )
        return found, _part(place, found, after, clock)


# Finding out.


def _assess(place: Alone, *, believe: bool = True) -> Assessment:
    directory, segments = place.directory, place.segments
    plan = plan_of(place, believe=believe)
    if plan.error is None and plan.outcome is not Outcome.GO_ON:
        differs = _rehearse(directory, segments, plan.checkpoint, plan.tail)
        if differs is not None:
            plan = plan._replace(outcome=Outcome.REFUSE, error=differs)
    way_out = None
    if isinstance(plan.error, JournalDamaged | ReplayDiffers):
        way_out = _way_out(directory, segments)
    if way_out is None:
        return Assessment(plan, None, 0, ())
    first, end = way_out
    begun = Aside(directory.path, end, segments.files).listed(Lost)
    # A loss that was interrupted may have left half a record where the list has a whole one.
    new = (lost for lost in _behind(segments, end) if lost.command is not None or not begun)
    lost = {lost.lsn: lost for lost in (*new, *begun)}
    return Assessment(plan, end, first, tuple(lost[lsn] for lsn in sorted(lost)))


def _way_out(directory: NodeDirectory, segments: Segments) -> tuple[Lsn, Lsn] | None:
    """Return from which segment on the journal helps, and up to where it can be replayed."""
    for checkpoint in (*_good_checkpoints(directory), None):
        start = START if checkpoint is None else checkpoint.tail
        tail = _readable(segments, start)
        if tail is not None:
            differs = _rehearse(directory, segments, checkpoint, tail)
            if differs is not None:
                tail = _readable(segments, start, differs.lsn) or start
            return _unbroken(segments, start), tail.end
    return None


def _good_checkpoints(directory: NodeDirectory) -> Iterator[Checkpoint]:
    """Yield all checkpoints that are whole, newest first."""
    for path in listed(directory.checkpoints):
        with suppress(CheckpointBroken):
            yield check(path, *directory.identity)


def _readable(segments: Segments, start: Tail, until: Lsn | None = None) -> Tail | None:
    """Return where the journal ends for a reader that begins at ``start``, if it can."""
    try:
        segments.open(segments.base_of(start.lsn)).close()
        if not recovery.has_record(segments, start):
            return None
    except JournalDamaged:
        return None
    reader = Reader(segments, start, until)
    with suppress(JournalDamaged):
        for _ in reader:
            pass
    return reader.tail


def _unbroken(segments: Segments, start: Tail) -> Lsn:
    """Return the base of the first segment from which none is missing up to ``start``."""
    bases, first = segments.bases(), segments.base_of(start.lsn)
    while first - segments.size in bases:
        first -= segments.size
    return first


def _rehearse(
    directory: NodeDirectory, segments: Segments, checkpoint: Checkpoint | None, tail: Tail
) -> ReplayDiffers | None:
    """Replay up to ``tail`` into a state that is thrown away; return what stops it, if anything."""
    node = directory.node
    start = START if checkpoint is None else checkpoint.tail
    try:
        with tempfile.TemporaryDirectory(prefix="finomw-") as name:
            place = Path(name)
            if checkpoint is not None:
                restore_into(checkpoint, place, node.state_size)
            with closing(Store(place, node.state_size, node.short_id)) as store:
                replay(store, Apply(store, BelowZero()), Reader(segments, start, tail.end))
    except ReplayDiffers as differs:
        return differs
    except (OSError, DirectoryError, RecordingFailed) as error:
        raise DirectoryError(
            f"{directory.path}: the replay cannot be rehearsed: {error}; let the environment's "
            f"TMPDIR name a place with {node.state_size} bytes or more"
        ) from error
    return None


def _behind(segments: Segments, end: Lsn) -> Iterator[Lost]:
    """Yield what lies behind ``end``, oldest first."""
    with closing(Window(segments)) as window:
        for base, lsn in recovery.behind(segments, end):
            try:
                segment = window.at(base)
            except FinomwError:
                yield Lost(lsn, base + segments.size, None, {})
            else:
                yield from _records_behind(segment, lsn)


def _records_behind(segment: Segment, lsn: Lsn) -> Iterator[Lost]:
    """Yield what lies in one segment from ``lsn`` on: records, and the bytes between."""
    for record in recovery.records_from(segment, lsn):
        if record.lsn > lsn:
            yield Lost(lsn, record.lsn, None, {})
        lsn = record.end
        try:
            command = records.decode(record.body)[0]
        except msgspec.MsgspecError:
            yield Lost(record.lsn, record.end, None, {})
        else:
            names = command.__struct_fields__
            fields = msgspec.json.encode({name: getattr(command, name) for name in names})
            name = type(command).__name__
            yield Lost(record.lsn, record.end, name, msgspec.json.decode(fields))
    rest = bytes(segment.rest(lsn)).rstrip(b"\0")
    if rest:
        yield Lost(lsn, lsn - -len(rest) // ALIGNMENT * ALIGNMENT, None, {})


# Parting with it.


def _part(place: Alone, found: Assessment, end: Lsn, clock: Clock) -> Path | None:
    """Move what is of no use any more aside, newest first, and make ``end`` the journal's end."""
    directory, segments, control, _ = place
    files = segments.files
    aside = Aside(directory.path, end, files)
    bases = segments.bases()
    misfits = [path for path in listed(directory.checkpoints) if not _fits(place, path, end)]
    with ExitStack() as undo:
        if control is None:
            control = Control(files, directory.control)
            undo.callback(control.close)
        recovery.store_again(segments, max(found.first, min(found.plan.durable, end)), end)
        _demand(control, max(found.plan.durable, end + ALIGNMENT))
        if found.lost or misfits or recovery.missing_segment(bases, segments.size) is not None:
            aside.begin(found.lost)
            for path in misfits:
                aside.move(path)
            for base in [base for base in reversed(bases) if base >= end]:
                aside.move(segments.path(base))
            for base in [base for base in bases if base < found.first]:
                aside.move(segments.path(base))
            _cut(segments, end, aside)
        # Ids that the lost records gave out are known to somebody, and never given again.
        write_node(directory.path / NODE_FILE, directory.node.reborn(clock), files)
        folder = aside.finish()
        # Should the demand come back after a power cut, the start is refused once more.
        control.reset(_NO_BOOT, end)
        control.file.flush()
    return folder


def _fits(place: Alone, path: Path, end: Lsn) -> bool:
    """Say whether a checkpoint knows nothing that the journal will not know."""
    try:
        tail = read(path, *place.directory.identity).tail
        return tail.end <= end and recovery.has_record(place.segments, tail)
    except CheckpointBroken:
        return int(path.stem, 16) <= end
    except JournalDamaged:
        return False


def _cut(segments: Segments, end: Lsn, aside: Aside) -> None:
    """Copy the segment in which the journal is to end, and zero what lies behind.

    Also what seems to be zeros: an earlier try may have failed to write them.
    """
    base = segments.base_of(end - 1)
    with closing(segments.open(base)) as segment:
        if end < segment.end:
            if recovery.has_bytes(segment, end):
                aside.copy(segments.path(base))
            segment.zero(end, segment.end - end)
            segment.file.flush()


def _demand(control: Control, durable: Lsn) -> None:
    """See to it that starts are refused until the loss is complete."""
    if control.epoch() is None:
        control.reset(_NO_BOOT, durable)
    control.distrust()
    control.demand(durable)
    control.file.flush()
