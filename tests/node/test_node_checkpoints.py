"""Checkpoints and pruning by the housekeeper: when, and what trouble does."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path

import pytest

from finomw import limits
from finomw.config.model import Storage
from finomw.engine import customers, grants
from finomw.engine.directory import create
from finomw.engine.engine import Engine
from finomw.engine.policy import BelowZero
from finomw.node.housekeeper import (
    CHECKPOINT_NANOSECONDS,
    CHECKPOINT_RETRY_NANOSECONDS,
    Housekeeper,
)
from finomw.store.checkpoints import listed, newest_end
from finomw.testing.clock import ManualClock
from finomw.testing.files import FaultyFiles
from finomw.types import CustomerId, PlanName

ALICE = CustomerId("alice")
SEGMENT = limits.SEGMENT_SIZE_MIN
STORAGE = Storage(checkpoint_every=2 * SEGMENT, keep=SEGMENT)


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def files() -> FaultyFiles:
    return FaultyFiles()


@pytest.fixture
def engine(tmp_path: Path, clock: ManualClock, files: FaultyFiles) -> Iterator[Engine]:
    create(tmp_path / "node", SEGMENT, 4 * limits.MIB)
    engine = Engine(tmp_path / "node", clock, files, BelowZero())
    customers.add_customer(engine, ALICE, PlanName("default"))
    yield engine
    engine.close()


@pytest.fixture
def keeper(engine: Engine) -> Iterator[Housekeeper]:
    keeper = Housekeeper(engine, STORAGE)
    yield keeper
    keeper.stop()


def fill(engine: Engine, until: int) -> None:
    """Write records until the journal reaches an LSN."""
    while engine.tail() < until:
        grants.grant(engine, ALICE, 1, "fill", str(engine.tail()), note="x" * 1_000)


def checkpoints(engine: Engine) -> int:
    return len(listed(engine.directory.checkpoints))


def hours(count: int) -> int:
    return count * CHECKPOINT_NANOSECONDS // 1_000


def test_enough_journal_makes_a_checkpoint(engine: Engine, keeper: Housekeeper) -> None:
    fill(engine, SEGMENT)
    keeper.tend_journal()
    assert checkpoints(engine) == 0
    fill(engine, 2 * SEGMENT)
    keeper.tend_journal()
    assert newest_end(engine.directory.checkpoints) == engine.tail()
    keeper.tend_journal()
    fill(engine, 3 * SEGMENT)
    keeper.tend_journal()
    assert checkpoints(engine) == 1
    fill(engine, 5 * SEGMENT)
    keeper.tend_journal()
    assert checkpoints(engine) == 2


def test_an_hour_makes_a_checkpoint_if_anything_was_written(
    engine: Engine, keeper: Housekeeper, clock: ManualClock
) -> None:
    clock.advance(hours(1))
    keeper.tend_journal()
    assert newest_end(engine.directory.checkpoints) == engine.tail()
    clock.advance(hours(5))
    keeper.tend_journal()
    assert checkpoints(engine) == 1
    grants.grant(engine, ALICE, 1, "test", "1")
    keeper.tend_journal()
    assert checkpoints(engine) == 2
    grants.grant(engine, ALICE, 1, "test", "2")
    end = newest_end(engine.directory.checkpoints)
    keeper.tend_journal()
    assert newest_end(engine.directory.checkpoints) == end


def test_segments_behind_both_checkpoints_and_what_is_kept_are_pruned(
    engine: Engine, keeper: Housekeeper
) -> None:
    for end in (2, 4):
        fill(engine, end * SEGMENT)
        keeper.tend_journal()
    assert engine.segments.bases()[0] == 2 * SEGMENT
    fill(engine, 8 * SEGMENT)
    keeper.tend_journal()
    assert engine.segments.bases()[0] == 4 * SEGMENT


def test_a_checkpoint_that_fails_is_logged_once_tried_later_and_harms_no_call(
    engine: Engine,
    keeper: Housekeeper,
    clock: ManualClock,
    files: FaultyFiles,
    caplog: pytest.LogCaptureFixture,
) -> None:
    fill(engine, 2 * SEGMENT)
    files.fail("write", for_good=True)
    tries = files.counts["write"]
    with caplog.at_level(logging.ERROR, "finomw"):
        for _ in range(3):
            keeper.tend_journal()
        assert files.counts["write"] == tries + 1
        clock.advance(CHECKPOINT_RETRY_NANOSECONDS // 1_000)
        keeper.tend_journal()
    assert files.counts["write"] == tries + 2
    assert len([line for line in caplog.messages if "a checkpoint cannot be made" in line]) == 1
    keeper.round()
    grants.grant(engine, ALICE, 1, "test", "goes on")
    assert not engine.health().failed
    files.mend()
    clock.advance(CHECKPOINT_RETRY_NANOSECONDS // 1_000)
    keeper.tend_journal()
    assert checkpoints(engine) == 1


def test_a_segment_that_cannot_be_removed_is_tried_again(
    engine: Engine, keeper: Housekeeper, files: FaultyFiles, caplog: pytest.LogCaptureFixture
) -> None:
    fill(engine, 2 * SEGMENT)
    keeper.tend_journal()
    fill(engine, 4 * SEGMENT)
    files.fail("unlink", for_good=True)
    with caplog.at_level(logging.ERROR, "finomw"):
        keeper.tend_journal()
        keeper.tend_journal()
    assert len([line for line in caplog.messages if "cannot be removed" in line]) == 1
    assert engine.segments.bases()[0] == 0
    files.mend()
    keeper.tend_journal()
    assert engine.segments.bases()[0] == 2 * SEGMENT
