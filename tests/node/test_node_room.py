"""The housekeeper makes room ahead, says when it gets low, and sweeps also without."""

from __future__ import annotations

import errno
import logging
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from finomw import limits
from finomw.engine import customers, grants
from finomw.engine.directory import create
from finomw.engine.engine import Engine
from finomw.engine.policy import BelowZero
from finomw.node import housekeeper
from finomw.node.housekeeper import Housekeeper
from finomw.testing.clock import ManualClock
from finomw.testing.files import FaultyFiles
from finomw.types import CustomerId, PlanName

ALICE = CustomerId("alice")


@pytest.fixture
def files() -> FaultyFiles:
    return FaultyFiles()


@pytest.fixture
def engine(tmp_path: Path, files: FaultyFiles) -> Iterator[Engine]:
    create(tmp_path / "node", limits.SEGMENT_SIZE_MIN, limits.STATE_SIZE_MIN)
    engine = Engine(tmp_path / "node", ManualClock(), files, BelowZero())
    customers.add_customer(engine, ALICE, PlanName("default"))
    yield engine
    engine.close()


@pytest.fixture
def keeper(engine: Engine) -> Iterator[Housekeeper]:
    keeper = Housekeeper(engine)
    yield keeper
    keeper.stop()


def test_low_space_is_said_once_and_so_is_its_end(
    keeper: Housekeeper, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    disk = os.statvfs("/")
    wanted = limits.LOW_SPACE_SEGMENTS * limits.SEGMENT_SIZE_MIN + limits.STATE_SIZE_MIN

    def free(size: int) -> None:
        blocks = size // disk.f_frsize
        fields = list(disk)[:10]
        fields[4] = blocks
        monkeypatch.setattr(os, "statvfs", lambda _: os.statvfs_result(fields))

    with caplog.at_level(logging.INFO, "finomw"):
        for size in (wanted, wanted - limits.PAGE, limits.PAGE, wanted, wanted):
            free(size)
            keeper.round()
    said = [(record.levelname, record.getMessage().split(": ")[1]) for record in caplog.records]
    assert said == [("WARNING", "low space"), ("INFO", "enough space again")]


def test_the_state_grows_before_anybody_needs_it(keeper: Housekeeper, engine: Engine) -> None:
    keeper.round()
    assert engine.health().space.state_size == limits.STATE_SIZE_MIN
    for number in range(2_000):
        grants.grant(engine, ALICE, 1, "test", str(number))
    keeper.round()
    space = engine.health().space
    assert space.state_size - space.state_used >= space.state_size // 4


def test_without_room_ahead_holds_are_swept_all_the_same(
    keeper: Housekeeper,
    files: FaultyFiles,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    swept: list[Engine] = []
    monkeypatch.setattr(housekeeper, "sweep", lambda engine: swept.append(engine) or 0)
    files.fail("allocate", for_good=True, error=errno.ENOSPC)
    engine = keeper._engine
    number = 0
    while engine.tail() < limits.SEGMENT_SIZE_MIN:
        number += 1
        grants.grant(engine, ALICE, 1, "fill", str(number))
    with caplog.at_level(logging.ERROR, "finomw"):
        keeper.round()
        keeper.round()
    assert swept.count(engine) == 2
    said = [record.getMessage() for record in caplog.records]
    journal = engine.directory.journal
    assert said == [f"housekeeper: no room ahead: {journal}: No space left on device"]
    files.mend()
    keeper.round()
    assert engine.segments.exists(2 * limits.SEGMENT_SIZE_MIN)


def test_who_does_not_keep_house_follows_what_another_process_allocated(engine: Engine) -> None:
    data = engine.directory.state / "data.mdb"
    with data.open("ab") as file:
        os.posix_fallocate(file.fileno(), 0, 2 * limits.STATE_SIZE_MIN)
    keeper = Housekeeper(engine)
    keeper._follow()
    assert engine.health().space.state_size == 2 * limits.STATE_SIZE_MIN
    keeper.stop()
