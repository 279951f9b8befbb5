"""The housekeeper's rounds: what is done each second, what each hour, and what trouble does."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from msgspec.structs import replace

from finomw import limits
from finomw.engine import charge, customers, grants, ledger
from finomw.engine.directory import create
from finomw.engine.engine import Engine
from finomw.engine.policy import BelowZero
from finomw.journal.files import Files
from finomw.node import housekeeper
from finomw.node.housekeeper import Housekeeper
from finomw.testing.clock import ManualClock
from finomw.testing.files import FaultyFiles
from finomw.types import CustomerId, EntryKind, KeyHash, OnCrash, PlanName, RouteName

ALICE = CustomerId("alice")
HOUR = 3_600 * 10**6


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def engine(tmp_path: Path, clock: ManualClock) -> Iterator[Engine]:
    engine = open_node(tmp_path / "node", clock, Files())
    yield engine
    engine.close()


def open_node(path: Path, clock: ManualClock, files: Files) -> Engine:
    create(path, limits.SEGMENT_SIZE_MIN, 4 * limits.MIB)
    engine = Engine(path, clock, files, BelowZero())
    customers.add_customer(engine, ALICE, PlanName("default"))
    grants.grant(engine, ALICE, 1000, "test", "first")
    return engine


def fill(engine: Engine, until: int) -> None:
    """Write records until the journal reaches an LSN."""
    number = 0
    while engine.tail() < until:
        number += 1
        grants.grant(engine, ALICE, 1, "fill", str(number))


def test_the_segment_after_the_one_in_use_is_always_there(engine: Engine) -> None:
    keeper = Housekeeper(engine)
    size = limits.SEGMENT_SIZE_MIN
    assert engine.segments.bases() == [0, size]
    fill(engine, size + size // 4)
    keeper.round()
    assert engine.segments.bases() == [0, size, 2 * size]
    keeper.stop()


def test_a_grant_expires_though_its_customer_never_calls(
    engine: Engine, clock: ManualClock
) -> None:
    grants.grant(engine, ALICE, 500, "trial", "1", expires=clock.now() + HOUR)
    keeper = Housekeeper(engine)
    keeper.round()
    assert customers.get_account(engine, ALICE).balance == 1500
    clock.advance(HOUR)
    keeper.round()
    assert customers.get_account(engine, ALICE).balance == 1000
    newest = ledger.ledger(engine, ALICE, 1)[0].entry
    assert (newest.kind, newest.amount, newest.source) == (EntryKind.REFUND, -500, "expiry")
    keeper.stop()


def test_each_hour_accounts_are_compared_with_their_ledgers(
    engine: Engine, clock: ManualClock, caplog: pytest.LogCaptureFixture
) -> None:
    keeper = Housekeeper(engine)
    with engine.store.write() as txn:
        account = engine.store.accounts.need(txn, ALICE)
        engine.store.accounts.put(txn, ALICE, replace(account, balance=1007))
    keeper.round()
    assert engine.health().alerts == 0
    clock.advance(HOUR)
    with caplog.at_level(logging.ERROR, "finomw"):
        keeper.round()
    assert engine.health().alerts == 1
    assert "alice differed from its ledger" in caplog.text
    newest = ledger.ledger(engine, ALICE, 1)[0].entry
    assert (newest.kind, newest.amount) == (EntryKind.ADJUSTMENT, 7)
    assert customers.get_account(engine, ALICE).balance == 1007
    keeper.round()
    assert engine.health().alerts == 1
    keeper.stop()


def test_trouble_is_logged_once_and_tried_again(
    tmp_path: Path, clock: ManualClock, caplog: pytest.LogCaptureFixture
) -> None:
    files = FaultyFiles()
    engine = open_node(tmp_path / "node", clock, files)
    size = limits.SEGMENT_SIZE_MIN
    fill(engine, size + size // 4)
    keeper = Housekeeper(engine)
    files.fail("allocate", for_good=True)
    with caplog.at_level(logging.ERROR, "finomw"):
        keeper.round()
        keeper.round()
    assert len([record for record in caplog.records if "housekeeper" in record.message]) == 1
    assert engine.segments.bases() == [0, size]
    files.mend()
    keeper.round()
    assert engine.segments.bases() == [0, size, 2 * size]
    keeper.stop()
    engine.close()


def test_one_process_keeps_house_and_another_takes_over(engine: Engine) -> None:
    first, second = Housekeeper(engine), Housekeeper(engine)
    assert first._lock.try_exclusive()
    assert not second._lock.try_exclusive()
    first.stop()
    assert second._lock.try_exclusive()
    second.stop()


def test_a_process_that_does_not_keep_house_ends_its_own_holds_all_the_same(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(housekeeper, "PERIOD_SECONDS", 0)
    request = charge.HoldRequest(
        ALICE, KeyHash(b""), RouteName("chat"), 5, {}, 0, OnCrash.RELEASE, "v1"
    )
    held = charge.hold(engine, request)
    assert isinstance(held, charge.Held)
    keeper, other = Housekeeper(engine), Housekeeper(engine)
    assert keeper._lock.try_exclusive()
    ended = threading.Event()
    attempt = other._attempt

    def attempted(work: Callable[[], int]) -> None:
        attempt(work)
        if not customers.get_account(engine, ALICE).held:
            ended.set()

    monkeypatch.setattr(other, "_attempt", attempted)
    other.start()
    assert not ended.is_set()
    charge.abandon(engine, held.hold)
    assert ended.wait(60)
    other.stop()
    keeper.stop()
    assert customers.get_account(engine, ALICE).balance == 1000
