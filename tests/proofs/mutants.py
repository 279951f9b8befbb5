"""Seeded bugs: each breaks one rule of the real code, and the crash images must notice.

A mutant is a patch of a few lines. The histories that hunt it are tuned to where it hurts, and the
code as it is must pass the same ones.
"""

from __future__ import annotations

import logging
import tempfile
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

import histories
from judges import Broken
from swarm import Parameters, Tune

from finomw.engine import checkpoint
from finomw.engine.engine import Engine
from finomw.engine.rules.money import MoneyRules
from finomw.journal import flush, format, reader, segment, workers
from finomw.journal.flush import Flusher
from finomw.journal.segment import Segment, Segments
from finomw.journal.workers import Workers
from finomw.types import Lsn

IMAGES_A_MOMENT = 8
HISTORIES_MAX = 60


class Mutant(NamedTuple):
    """A bug: how to make it, and the histories in which it shows."""

    patch: Callable[[], AbstractContextManager[Any]]
    tune: Tune


def _as_drawn(drawn: Parameters) -> Parameters:
    return drawn


def _failing(drawn: Parameters) -> Parameters:
    return drawn._replace(failing=0.08, restarts=2, workers=3, dying=0.01)


def _aligned(drawn: Parameters) -> Parameters:
    return drawn._replace(
        unit=512, aligning=0.8, halfway=0.2, workers=2, flushing=0.05, records=50, attaching=0.0
    )


def _recycled(drawn: Parameters) -> Parameters:
    return drawn._replace(recycled=True, restarts=1, dying=0.0, halfway=0.0, failing=0.0)


def _rolling(drawn: Parameters) -> Parameters:
    return drawn._replace(
        segment_size=3 * 4096,
        note_max=400,
        dying=0.0,
        halfway=0.3,
        unnamed=0.0,
        aligning=0.7,
        records=60,
    )


def _unnamed(drawn: Parameters) -> Parameters:
    return drawn._replace(
        segment_size=3 * 4096, note_max=1000, dying=0.0, halfway=0.0, unnamed=0.2, holding=0.0
    )


def _checkpointing(drawn: Parameters) -> Parameters:
    return drawn._replace(checkpointing=0.2, workers=3, switching=0.4, dying=0.0, flushing=0.05)


def _acknowledged_before_the_flush() -> AbstractContextManager[Any]:
    real = Flusher.flush

    def flush_after(self: Flusher) -> Lsn:
        self._slot.publish(self._committed())
        return real(self)

    return mock.patch.object(Flusher, "flush", flush_after)


def _acknowledged_what_came_during_the_flush() -> AbstractContextManager[Any]:
    real = Flusher.flush

    def publish_more(self: Flusher) -> Lsn:
        real(self)
        self._slot.publish(self._committed())
        return self._control.durable()

    return mock.patch.object(Flusher, "flush", publish_more)


def _no_chain() -> AbstractContextManager[Any]:
    def unchained(data: memoryview, seed: int, lsn: Lsn, previous: int | None) -> Any:
        return format.decode_record(data, seed, lsn, None)

    return mock.patch.object(reader, "decode_record", unchained)


def _no_salt() -> AbstractContextManager[Any]:
    return mock.patch.object(segment, "crc32", return_value=0)


def _watermark_too_far() -> AbstractContextManager[Any]:
    real = flush.Slot.publish
    return mock.patch.object(flush.Slot, "publish", lambda self, lsn: real(self, lsn + 8))


def _checkpoint_before_the_log() -> AbstractContextManager[Any]:
    real = checkpoint._publish

    def hasty(engine: Engine, draft: Path) -> Any:
        with mock.patch.object(engine, "flush", return_value=2**62):
            return real(engine, draft)

    return mock.patch.object(checkpoint, "_publish", hasty)


def _swept_while_alive() -> AbstractContextManager[Any]:
    return mock.patch.object(Workers, "alive", return_value=False)


def _granted_twice() -> AbstractContextManager[Any]:
    return mock.patch.object(MoneyRules, "_earlier", return_value=None)


def _ghost_left_at_a_segment_s_end() -> AbstractContextManager[Any]:
    return mock.patch.object(Segment, "withdraw")


def _only_the_last_segment_flushed() -> AbstractContextManager[Any]:
    real = Segments.between

    def last(self: Segments, start: Lsn, end: Lsn) -> Any:
        return list(real(self, start, end))[-1:]

    return mock.patch.object(Segments, "between", last)


def _segment_s_name_not_durable() -> AbstractContextManager[Any]:
    return mock.patch.object(Segments, "_open_named", Segments.open)


def _not_healed() -> AbstractContextManager[Any]:
    healed = ExitStack()
    for module in (flush, workers):
        healed.enter_context(mock.patch.object(module, "heal"))
    return healed


def _not_stored_again() -> AbstractContextManager[Any]:
    return mock.patch.object(Segment, "restore")


def _failure_forgotten() -> AbstractContextManager[Any]:
    return mock.patch.object(flush.Control, "fail")


MUTANTS: dict[str, Mutant] = {
    "acknowledged before the flush": Mutant(_acknowledged_before_the_flush, _as_drawn),
    "acknowledged what came after the flush began": Mutant(
        _acknowledged_what_came_during_the_flush, _as_drawn
    ),
    "no chain": Mutant(_no_chain, _aligned),
    "no salt": Mutant(_no_salt, _recycled),
    "watermark moved too far": Mutant(_watermark_too_far, _as_drawn),
    "checkpoint published before the log": Mutant(_checkpoint_before_the_log, _checkpointing),
    "orphan swept while alive": Mutant(_swept_while_alive, _as_drawn),
    "a grant's key applied twice": Mutant(_granted_twice, _as_drawn),
    "ghost left at a segment's end": Mutant(_ghost_left_at_a_segment_s_end, _rolling),
    "only the last segment flushed": Mutant(_only_the_last_segment_flushed, _rolling),
    "segment's name not durable": Mutant(_segment_s_name_not_durable, _unnamed),
    "not healed after a cut-off flush": Mutant(_not_healed, _failing),
    "what a failed flush lost not stored again": Mutant(_not_stored_again, _failing),
    "a failed flush forgotten": Mutant(_failure_forgotten, _failing),
}


class Hunt(NamedTuple):
    """What became of a mutant: how many histories it took, and what was noticed; empty: nothing."""

    name: str
    histories: int
    images: int
    noticed: str


def hunt(name: str, limit: int = HISTORIES_MAX, *, mutated: bool = True) -> Hunt:
    """Play histories until one breaks, or so many have passed."""
    logging.disable(logging.CRITICAL)
    mutant = MUTANTS[name]
    images = 0
    with tempfile.TemporaryDirectory() as keep:
        for seed in range(limit):
            try:
                with mutant.patch() if mutated else mock.patch.dict({}):
                    tally = histories.play(seed, IMAGES_A_MOMENT, Path(keep), mutant.tune)
            except Broken as broken:
                return Hunt(name, seed + 1, images, str(broken))
            images += tally.images
    return Hunt(name, limit, images, "")
