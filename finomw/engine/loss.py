"""The way out of a refusal: say what would be lost, and part with it, on the owner's word only.

A start that meets damage to what was durable is refused and changes nothing. `assess` finds up to
where the journal can be read and replayed, and what lies behind; `accept_loss` makes that the
journal's end. The damage is moved aside, never removed: the segments as they were, checkpoints that
know more than will be known, and a list of the lost records. Nobody can accept more than is lost:
the LSN has to be the very one that `assess` found.
"""

from __future__ import annotations

import itertools
import tempfile
from contextlib import closing, suppress
from pathlib import Path
from typing import NamedTuple

import msgspec

from finomw.engine import records
from finomw.engine.analysis import Alone, Analysis, alone, plan_of
from finomw.engine.apply import Apply
from finomw.engine.directory import NodeDirectory
from finomw.engine.engine import close_engine, open_engine
from finomw.engine.policy import BelowZero
from finomw.engine.replay import replay
from finomw.errors import (
    CheckpointBroken,
    FinomwError,
    InvalidValue,
    InvariantBroken,
    JournalDamaged,
    ReplayDiffers,
)
from finomw.journal import recovery
from finomw.journal.control import Epoch
from finomw.journal.files import Files
from finomw.journal.format import START, Tail
from finomw.journal.reader import Reader
from finomw.journal.recovery import Outcome
from finomw.journal.segment import Segments, Window
from finomw.store import Store
from finomw.store.checkpoints import Checkpoint, check, listed, restore_into
from finomw.types import Lsn

_LIST = "records.jsonl"


class Lost(NamedTuple):
    """A record that can still be read, but no longer be believed to follow the others."""

    lsn: Lsn
    command: records.AnyCommand | None
    """``None`` where its body cannot be read."""


class Assessment(NamedTuple):
    """What a start would do; and where it is refused, what accepting the loss would cost.

    ``end`` is the LSN after which all is lost, ``None`` where nothing is, or no loss helps.
    ``unreadable`` are the segment files of which nothing can be read.
    """

    plan: Analysis
    error: FinomwError | None
    end: Lsn | None
    lost: tuple[Lost, ...]
    unreadable: tuple[str, ...]


def assess(path: Path) -> Assessment:
    """Say what a start of this directory would do; changes nothing, rehearses the replay.

    Raises `DirectoryError` where there is no node, or a process has it open.
    """
    with alone(path, Files()) as place:
        return _assess(place)


def rebuild(path: Path) -> Analysis:
    """Make the next start believe nothing but checkpoints and journal, and start; return its plan.

    Raises as `alone`, and what a start is refused with.
    """
    with alone(path, Files()) as place:
        if place.control is not None:
            place.control.distrust()
        plan = plan_of(place)
    close_engine(open_engine(path))
    return plan


def accept_loss(path: Path, after: Lsn) -> tuple[Assessment, Path]:
    """Make ``after`` the journal's end; return what was lost, and where the damage lies now.

    Raises `InvalidValue` for another LSN than `assess` names, and the refusal itself where no
    loss helps. Interrupted, it can be done again.
    """
    with alone(path, Files()) as place:
        found = _assess(place)
        if found.error is None:
            raise InvalidValue(f"{path}: a start is not refused here, so there is nothing to lose")
        if found.end is None:
            raise found.error
        if found.end != after:
            raise InvalidValue(
                f"{path}: what can be read ends at LSN {found.end}, not {after}: accept that loss "
                "or none"
            )
        return found, _cut(place, found, after)


def _assess(place: Alone) -> Assessment:
    directory, segments = place.directory, place.segments
    plan = plan_of(place)
    error = plan.error
    if error is None and plan.outcome is not Outcome.GO_ON:
        error = _rehearse(directory, segments, plan.checkpoint, plan.tail)
    if not isinstance(error, JournalDamaged | ReplayDiffers):
        return Assessment(plan, error, None, (), ())
    tail = _way_out(directory, segments)
    if tail is None:
        return Assessment(plan, error, None, (), ())
    lost, unreadable = _behind(segments, tail.end)
    return Assessment(plan, error, tail.end, lost, unreadable)


def _way_out(directory: NodeDirectory, segments: Segments) -> Tail | None:
    """Return the last record up to which the journal can be read and replayed, from any start."""
    for checkpoint in (*_good_checkpoints(directory), None):
        start = START if checkpoint is None else checkpoint.tail
        tail = _readable(segments, start)
        if tail is not None:
            differs = _rehearse(directory, segments, checkpoint, tail)
            return tail if differs is None else _readable(segments, start, differs.lsn)
    return None


def _good_checkpoints(directory: NodeDirectory) -> list[Checkpoint]:
    """Return all checkpoints that are whole, newest first."""
    good: list[Checkpoint] = []
    for path in listed(directory.checkpoints):
        with suppress(CheckpointBroken):
            good.append(check(path, *directory.identity))
    return good


def _readable(segments: Segments, start: Tail, until: Lsn | None = None) -> Tail | None:
    """Return where the journal ends for a reader that begins at ``start``, if it can."""
    try:
        if segments.base_of(start.lsn) not in segments.bases():
            return None
        if not recovery.has_record(segments, start):
            return None
    except JournalDamaged:
        return None
    reader = Reader(segments, start, until)
    with suppress(JournalDamaged):
        for _ in reader:
            pass
    return reader.tail


def _rehearse(
    directory: NodeDirectory, segments: Segments, checkpoint: Checkpoint | None, tail: Tail
) -> ReplayDiffers | None:
    """Replay up to ``tail`` into a state that is thrown away; return what stops it, if anything."""
    node = directory.node
    start = START if checkpoint is None else checkpoint.tail
    with tempfile.TemporaryDirectory(prefix="finomw-") as name:
        place = Path(name)
        if checkpoint is not None:
            restore_into(checkpoint, place, node.state_size)
        with closing(Store(place, node.state_size, node.short_id)) as store:
            try:
                replay(store, Apply(store, BelowZero()), Reader(segments, start, tail.end))
            except ReplayDiffers as differs:
                return differs
    return None


def _behind(segments: Segments, end: Lsn) -> tuple[tuple[Lost, ...], tuple[str, ...]]:
    """Return the records behind ``end`` that can still be read, and the files that cannot."""
    lost: list[Lost] = []
    unreadable: list[str] = []
    with Window(segments) as window:
        for base, lsn in recovery.behind(segments, end):
            try:
                segment = window.at(base)
            except FinomwError as error:
                unreadable.append(str(error))
                continue
            for record in recovery.records_from(segment, lsn):
                try:
                    command = records.decode(record.body)[0]
                except msgspec.MsgspecError:
                    command = None
                lost.append(Lost(record.lsn, command))
    return tuple(lost), tuple(unreadable)


def _cut(place: Alone, found: Assessment, end: Lsn) -> Path:
    """Move what lies behind ``end`` aside; newest first, so that a cut leaves no hole."""
    directory, segments, control, _ = place
    files = segments.files
    aside = _new_folder(directory.path / "lost", f"{end:016x}")
    lines = b"".join(msgspec.json.encode(document(lost)) + b"\n" for lost in found.lost)
    files.write(aside / _LIST, lines)
    for path in listed(directory.checkpoints):
        if int(path.stem, 16) > end:
            files.rename(path, aside / path.name)
            files.sync_directory(directory.checkpoints)
    for base in reversed(segments.bases()):
        path = segments.path(base)
        if base >= end:
            files.rename(path, aside / path.name)
            files.sync_directory(directory.journal)
        elif base + segments.size > end:
            files.copy(path, aside / path.name)
    recovery.zero_behind(segments, end)
    if control is not None:
        # Of no boot, so that the next start believes only the journal. Should the old watermark
        # come back after a power cut, the start would be refused once more.
        control.reset(Epoch(bytes(16), 0, 0), end)
        control.file.flush()
    return aside


def _new_folder(parent: Path, name: str) -> Path:
    """Make a folder that was not there; its name has a number where the name is taken."""
    parent.mkdir(mode=0o700, exist_ok=True)
    for number in itertools.count(1):
        folder = parent / (name if number == 1 else f"{name}.{number}")
        with suppress(FileExistsError):
            folder.mkdir(mode=0o700)
            return folder
    raise InvariantBroken("there is no end of numbers")


def document(lost: Lost) -> dict[str, object]:
    """Return a lost record as a JSON document: its LSN, what it was, and its fields."""
    command = lost.command
    if command is None:
        return {"lsn": lost.lsn, "command": None}
    fields = {name: getattr(command, name) for name in command.__struct_fields__}
    return {"lsn": lost.lsn, "command": type(command).__name__, **msgspec.to_builtins(fields)}
