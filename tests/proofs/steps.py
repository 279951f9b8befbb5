"""Every named step of a worker's life, as a place at which a proof can stop it for good.

A step is reached by wrapping a function of the package, in the victim's own process only. There the
victim says so over a pipe and stands still, in the middle of whatever it does, with every lock it
has, until it is killed: alone, or together with all the others.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from enum import Enum
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import workload

from finomw.engine import engine, opening, records, replay, sweep
from finomw.engine.apply import Apply
from finomw.journal import flush, recovery
from finomw.journal import workers as worker_room
from finomw.journal.control import Control, Slot
from finomw.journal.files import Files, MappedFile
from finomw.journal.flush import Flusher
from finomw.journal.format import ALIGNMENT
from finomw.journal.segment import Segment
from finomw.journal.workers import Workers
from finomw.journal.writer import Writer
from finomw.store.env import Environment, Transaction

Hit = Callable[[], None]


class Needs(Enum):
    """What has to be so for a step to be reached."""

    LOAD = "a worker under load"
    ROLL = "a worker that gets to a segment's end"
    SEGMENT = "a worker that makes a segment"
    DEAD = "a worker that finds a dead one"
    ALONE = "a process that opens the directory alone"
    GHOST = "a process that opens it alone, behind a record that was not committed"
    REBUILD = "a process that opens it alone, and does not believe the state"
    CHECKPOINT = "a worker that makes checkpoints"


class Step(NamedTuple):
    """A named step: how to hook it."""

    name: str
    needs: Needs
    install: Callable[[Hit], None]


class Park:
    """Stands still at the ``nth`` hit, and says so by a byte."""

    def __init__(self, pipe: int, nth: int) -> None:
        self._pipe = pipe
        self._left = nth

    def __call__(self) -> None:
        """Count a hit."""
        self._left -= 1
        if self._left == 0:
            os.write(self._pipe, b"!")
            while True:
                signal.pause()


def _before(owner: type | ModuleType, name: str) -> Callable[[Hit], None]:
    def install(hit: Hit) -> None:
        function = getattr(owner, name)

        def wrapped(*args: Any, **named: Any) -> Any:
            hit()
            return function(*args, **named)

        setattr(owner, name, wrapped)

    return install


def _after(owner: type | ModuleType, name: str) -> Callable[[Hit], None]:
    def install(hit: Hit) -> None:
        function = getattr(owner, name)

        def wrapped(*args: Any, **named: Any) -> Any:
            done = function(*args, **named)
            hit()
            return done

        setattr(owner, name, wrapped)

    return install


def _within_write(begun: bool) -> Callable[[Hit], None]:
    """Stop in the write transaction: just begun, or with everything done but the commit."""

    def install(hit: Hit) -> None:
        enter, leave = Transaction.__enter__, Transaction.__exit__

        def entered(transaction: Transaction) -> Any:
            txn = enter(transaction)
            if transaction._write and begun:
                hit()
            return txn

        def left(transaction: Transaction, *error: Any) -> None:
            if transaction._write and not begun and error[0] is None:
                hit()
            leave(transaction, *error)

        Transaction.__enter__ = entered  # type: ignore[method-assign]
        Transaction.__exit__ = left  # type: ignore[method-assign]

    return install


def _unlink(suffix: str, after: bool) -> Callable[[Hit], None]:
    """Stop at the removal of a file of this kind."""

    def install(hit: Hit) -> None:
        unlink = Files.unlink

        def wrapped(files: Files, path: Path) -> None:
            if path.suffix == suffix and not after:
                hit()
            unlink(files, path)
            if path.suffix == suffix and after:
                hit()

        Files.unlink = wrapped  # type: ignore[method-assign]

    return install


def _store_half(hit: Hit) -> None:
    """Stop between the halves of a record's bytes: its first word is still zero."""

    def store(segment: Segment, lsn: int, record: bytes) -> None:
        offset = lsn - segment.base
        half = len(record) // 2 // ALIGNMENT * ALIGNMENT
        segment.file.store(offset + ALIGNMENT, record[ALIGNMENT:half])
        hit()
        segment.file.store(offset + half, record[half:])
        segment.file.store_word(offset, int.from_bytes(record[:ALIGNMENT], "little"))

    Segment.store = store  # type: ignore[method-assign]


def _zero_half(hit: Hit) -> None:
    def zero(segment: Segment, lsn: int, length: int) -> None:
        offset = lsn - segment.base
        segment.file.store_word(offset, 0)
        hit()
        segment.file.store(offset + ALIGNMENT, bytes(length - ALIGNMENT))

    Segment.zero = zero  # type: ignore[method-assign]


def _restore_half(hit: Hit) -> None:
    """Stop in the healing: half of what may have been lost is stored again."""
    restore = Segment.restore

    def halved(segment: Segment, lsn: int, end: int) -> None:
        middle = (max(lsn, segment.base) + min(end, segment.end)) // 2
        restore(segment, lsn, middle)
        hit()
        restore(segment, middle, end)

    Segment.restore = halved  # type: ignore[method-assign]


def _slot_word(word: int, nonzero: bool) -> Callable[[Hit], None]:
    """Stop after a word of a slot was stored."""

    def install(hit: Hit) -> None:
        store = Slot._set

        def wrapped(slot: Slot, at: int, value: int) -> None:
            store(slot, at, value)
            if at == word and bool(value) is nonzero:
                hit()

        Slot._set = wrapped  # type: ignore[method-assign]

    return install


def _claim_word(place: int) -> Callable[[Hit], None]:
    """Stop in the claim of a slot after its first ``place`` words."""

    def install(hit: Hit) -> None:
        claim, store = Slot.claim, Slot._set
        left = [0]

        def claimed(slot: Slot, *args: Any) -> None:
            left[0] = place
            claim(slot, *args)

        def wrapped(slot: Slot, at: int, value: int) -> None:
            store(slot, at, value)
            left[0] -= 1
            if left[0] == 0:
                hit()

        Slot.claim = claimed  # type: ignore[method-assign]
        Slot._set = wrapped  # type: ignore[method-assign]

    return install


def _reset_half(hit: Hit) -> None:
    """Stop in the reset of the control file before its magic is there again."""
    reset, store_word = Control.reset, MappedFile.store_word
    resetting = [False]

    def begun(*args: Any, **named: Any) -> None:
        resetting[0] = True
        reset(*args, **named)
        resetting[0] = False

    def wrapped(file: MappedFile, offset: int, value: int) -> None:
        if resetting[0] and offset == 0 and value:
            hit()
        store_word(file, offset, value)

    Control.reset = begun  # type: ignore[method-assign]
    MappedFile.store_word = wrapped  # type: ignore[method-assign]


STEPS = (
    Step("before the transaction begins", Needs.LOAD, _before(Environment, "write")),
    Step("after the transaction began", Needs.LOAD, _within_write(begun=True)),
    Step("after the command was applied", Needs.LOAD, _after(Apply, "__call__")),
    Step("after the body was encoded", Needs.LOAD, _after(records, "encode")),
    Step("after the record was encoded", Needs.LOAD, _after(Writer, "encode")),
    Step("after half of the record was stored", Needs.LOAD, _store_half),
    Step("after the record was stored", Needs.LOAD, _after(Writer, "store")),
    Step("before the commit", Needs.LOAD, _within_write(begun=False)),
    Step("after the commit", Needs.LOAD, _after(engine.Engine, "_transact")),
    Step("before a flush", Needs.LOAD, _before(Flusher, "flush")),
    Step("before healing", Needs.LOAD, _before(flush, "heal")),
    Step("after the flush mark was set", Needs.LOAD, _slot_word(4, nonzero=True)),
    Step("before fdatasync", Needs.LOAD, _before(MappedFile, "flush")),
    Step("after fdatasync", Needs.LOAD, _after(MappedFile, "flush")),
    Step("after the flush mark was cleared", Needs.LOAD, _slot_word(4, nonzero=False)),
    Step("before publishing", Needs.LOAD, _before(Slot, "publish")),
    Step("after publishing", Needs.LOAD, _after(Slot, "publish")),
    Step("after the write mark was set", Needs.LOAD, _slot_word(5, nonzero=True)),
    Step("before the client sees it", Needs.LOAD, _before(workload.Seen, "tell")),
    Step("before a ghost is withdrawn", Needs.ROLL, _before(Segment, "withdraw")),
    Step("after a ghost was withdrawn", Needs.ROLL, _after(Segment, "withdraw")),
    Step("before a segment is made", Needs.SEGMENT, _before(Files, "allocate")),
    Step("after a segment was allocated", Needs.SEGMENT, _after(os, "posix_fallocate")),
    Step("before a segment is on disk", Needs.SEGMENT, _before(os, "fsync")),
    Step("before a segment has its name", Needs.SEGMENT, _before(os, "link")),
    Step("after a segment has its name", Needs.SEGMENT, _after(os, "link")),
    Step("after a segment was made", Needs.SEGMENT, _after(Files, "allocate")),
    Step("after a worker has its lock", Needs.DEAD, _after(Workers, "lock")),
    Step("before a slot is claimed", Needs.DEAD, _before(Slot, "claim")),
    *(
        Step(f"after {place} words of a claimed slot", Needs.DEAD, _claim_word(place))
        for place in range(1, 7)
    ),
    Step("after a slot was added", Needs.DEAD, _after(Control, "add_slot")),
    Step("half way through healing", Needs.DEAD, _restore_half),
    Step("after a dead worker was healed", Needs.DEAD, _after(worker_room, "heal")),
    Step("before a dead worker's hold ends", Needs.DEAD, _before(sweep, "_end")),
    Step("after a dead worker's hold ended", Needs.DEAD, _after(sweep, "_end")),
    Step("before a dead worker is forgotten", Needs.DEAD, _before(Workers, "forget")),
    Step("after a dead worker's slot was freed", Needs.DEAD, _after(Slot, "free")),
    Step("after a dead worker was forgotten", Needs.DEAD, _after(Workers, "forget")),
    Step("before recovery", Needs.ALONE, _before(opening, "_recover")),
    Step("after recovery", Needs.ALONE, _after(opening, "_recover")),
    Step("before what is behind the tail is zeroed", Needs.ALONE, _before(recovery, "zero_behind")),
    Step("half way through zeroing", Needs.GHOST, _zero_half),
    Step("before the control file is reset", Needs.ALONE, _before(Control, "reset")),
    Step("half way through the reset", Needs.ALONE, _reset_half),
    Step("after the control file was reset", Needs.ALONE, _after(Control, "reset")),
    Step("after distrust", Needs.REBUILD, _after(Control, "distrust")),
    Step("after the start was judged", Needs.REBUILD, _after(opening, "analyse")),
    Step("before the old state goes", Needs.REBUILD, _before(opening, "set_aside")),
    Step("after the old state went", Needs.REBUILD, _after(opening, "set_aside")),
    Step("in the middle of a replay", Needs.REBUILD, _before(replay, "_redo")),
    Step("after a replay", Needs.REBUILD, _after(opening, "replay")),
    Step("before the journal's end is settled", Needs.REBUILD, _before(recovery, "settle_end")),
    Step("after the journal's end was settled", Needs.REBUILD, _after(recovery, "settle_end")),
    Step("before a rebuilt state is used", Needs.REBUILD, _before(Control, "reset")),
    Step("before a checkpoint is copied", Needs.CHECKPOINT, _before(Files, "fill")),
    Step("after a checkpoint was copied", Needs.CHECKPOINT, _after(Files, "fill")),
    Step("after a checkpoint has its footer", Needs.CHECKPOINT, _after(Files, "append")),
    Step("before a checkpoint has its name", Needs.CHECKPOINT, _before(Files, "rename")),
    Step("after a checkpoint has its name", Needs.CHECKPOINT, _after(os, "rename")),
    Step("before an old checkpoint goes", Needs.CHECKPOINT, _unlink(".mdb", after=False)),
    Step("after an old checkpoint went", Needs.CHECKPOINT, _unlink(".mdb", after=True)),
    Step("before an old segment goes", Needs.CHECKPOINT, _unlink(".seg", after=False)),
    Step("after an old segment went", Needs.CHECKPOINT, _unlink(".seg", after=True)),
)
