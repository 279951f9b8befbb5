"""The clean stop: who says it, who clears it, and what the next start makes of it."""

from __future__ import annotations

import logging
from pathlib import Path

import nodes
import pytest
from nodes import ALICE
from processes import Child, Pipe

from finomw.engine import customers
from finomw.engine.engine import Engine, close_engine, health, open_engine
from finomw.engine.sweep import sweep
from finomw.journal.control import Control
from finomw.journal.files import Files
from finomw.journal.locks import FileLock
from finomw.types import HoldState


def clean_stop(path: Path) -> int:
    control = Control(Files(), path / "control")
    try:
        return control.clean_stop
    finally:
        control.close()


def start(path: Path, caplog: pytest.LogCaptureFixture) -> tuple[bool, list[str]]:
    """Start and stop a node; return whether the stop before was clean, and what was logged."""
    caplog.clear()
    with caplog.at_level(logging.INFO, "finomw"):
        engine = nodes.open_node(path)
    clean = engine.health().clean_start
    engine.close()
    return clean, caplog.messages


def test_the_last_to_close_says_where_the_journal_ends_and_a_start_clears_it(
    path: Path, engine: Engine, caplog: pytest.LogCaptureFixture
) -> None:
    nodes.settle(engine, nodes.held(engine, 1).hold, 1)
    assert clean_stop(path) == 0
    end = engine.tail()
    engine.close()
    assert clean_stop(path) == end
    again = nodes.open_node(path)
    assert clean_stop(path) == 0
    assert again.health().clean_start
    again.close()
    assert start(path, caplog) == (True, [])


def test_a_kill_is_no_clean_stop_and_told_once(
    path: Path, engine: Engine, caplog: pytest.LogCaptureFixture
) -> None:
    nodes.settle(engine, nodes.held(engine, 1).hold, 1)
    engine.flush()
    end = engine.tail()
    nodes.drop(engine)
    text = f"{path}: the last stop was not clean; the state is whole up to LSN {end}"
    assert start(path, caplog) == (False, [text])
    assert start(path, caplog) == (True, [])


def in_another_process(pipe: Pipe, path: Path) -> None:
    engine = nodes.open_node(path)
    nodes.settle(engine, nodes.held(engine, 1).hold, 1)
    pipe.send(engine.health().clean_start)
    pipe.recv()
    engine.close()


def test_only_the_last_of_several_processes_says_it(path: Path, engine: Engine) -> None:
    child = Child(in_another_process, path)
    assert child.receive() is engine.health().clean_start
    child.send()
    child.finish()
    assert clean_stop(path) == 0
    end = engine.tail()
    engine.close()
    assert clean_stop(path) == end


def test_nobody_speaks_for_a_killed_writer_until_its_holds_have_ended(
    path: Path, engine: Engine
) -> None:
    left = nodes.held(engine, 1).hold
    engine.flush()
    nodes.drop(engine)
    for _ in range(2):
        reader = nodes.open_node(path)
        reader.close()
        assert clean_stop(path) == 0
    writer = nodes.open_node(path)
    assert sweep(writer) == 1
    assert nodes.hold_row(writer, left).state is HoldState.RELEASED
    end = writer.flush()
    writer.close()
    assert clean_stop(path) == end


def test_a_killed_neighbour_is_no_clean_stop(path: Path, engine: Engine) -> None:
    child = Child(in_another_process, path)
    child.receive()
    child.kill()
    engine.close()
    assert clean_stop(path) == 0


def test_a_failed_flush_is_no_clean_stop(path: Path, engine: Engine) -> None:
    engine.flush()
    engine.control.fail()
    engine.close()
    assert clean_stop(path) == 0


def test_who_cannot_get_the_start_lock_soon_closes_all_the_same(
    path: Path, engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("finomw.engine.opening.CLOSING_SECONDS", 0)
    lock = FileLock(path / "start.lock")
    lock.exclusive()
    engine.close()
    lock.close()
    assert clean_stop(path) == 0
    again = nodes.open_node(path)
    assert customers.get_account(again, ALICE).balance == 1000
    again.close()


def test_a_process_can_ask_for_the_health_of_what_it_has_open(path: Path) -> None:
    assert health(path / "nowhere") is None
    assert health(path) is None
    shared = open_engine(path)
    try:
        customers.add_customer(shared, ALICE, nodes.PLAN)
        nodes.held(shared, 0)
        seen = health(path)
        assert seen is not None
        assert (seen.failed, seen.worker, seen.space.open_holds) == (False, shared.worker, 1)
        assert seen.tail == shared.tail()
    finally:
        close_engine(shared)
    assert health(path) is None
