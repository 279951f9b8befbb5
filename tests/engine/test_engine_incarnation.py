"""Ids after a restore: a node's later incarnation never gives one out that it may have given."""

from __future__ import annotations

import json
from datetime import timedelta
from pathlib import Path

import nodes
import pytest
from nodes import ALICE, SEGMENT

from finomw.engine import charge, records
from finomw.engine.checkpoint import make_checkpoint
from finomw.engine.engine import Engine
from finomw.engine.verify import verify
from finomw.errors import DirectoryError, InvariantBroken, JournalDamaged
from finomw.store.holds import NOBODY
from finomw.types import HoldId

BASE = 2 << 30


def set_incarnation(path: Path, incarnation: int) -> None:
    file = path / "node.json"
    content = {**json.loads(file.read_text()), "incarnation": incarnation}
    file.write_text(json.dumps(content))


def explicit(engine: Engine) -> HoldId:
    """Make a hold that belongs to no worker."""
    expires = engine.clock.now() + timedelta(hours=1) // timedelta(microseconds=1)
    request = charge.HoldRequest(
        ALICE, nodes.KEY, nodes.ROUTE, 1, {"requests": 1}, 0, nodes.OnCrash.RELEASE, "v1"
    )
    request = request._replace(reservation=charge.Reservation(expires, "job"))
    held = charge.hold(engine, request)
    assert isinstance(held, charge.Held)
    return held.hold


def parts(hold: HoldId) -> tuple[int, int]:
    _, worker, number = hold.split("-")
    return int(worker), int(number)


def test_the_first_incarnation_counts_from_one(path: Path, engine: Engine) -> None:
    assert engine.worker == 1
    assert parts(nodes.held(engine, 1).hold) == (1, 1)
    number = engine.store.tail().number + 1
    assert parts(explicit(engine)) == (NOBODY, number)


def test_a_later_incarnation_gives_out_ids_above_all_of_the_earlier_ones(
    path: Path, engine: Engine
) -> None:
    open_before = nodes.held(engine, 1).hold
    explicit_before = explicit(engine)
    engine.close()
    set_incarnation(path, 2)
    again = nodes.open_node(path)
    assert again.worker == BASE + 1
    assert parts(nodes.held(again, 1).hold) == (BASE + 1, 1)
    made = explicit(again)
    number = again.store.tail().number
    assert parts(made) == (NOBODY, BASE + number)
    assert nodes.hold_row(again, made).resource == "job"
    nodes.settle(again, made, 1)
    nodes.settle(again, explicit_before, 1)
    nodes.settle(again, open_before, 1)
    # The next worker counts on, also after a rebuild.
    clock, before = again.clock, nodes.dump(again)
    nodes.drop(again)
    (path / "control").unlink()
    rebuilt = nodes.open_node(path)
    assert clock.now() == rebuilt.clock.now()
    assert nodes.dump(rebuilt) == before
    assert rebuilt.worker == BASE + 2
    assert verify(rebuilt).faults == ()
    rebuilt.close()


def test_segments_and_checkpoints_of_an_earlier_incarnation_are_read(
    path: Path, engine: Engine
) -> None:
    made = make_checkpoint(engine)
    nodes.fill_to(engine, SEGMENT + 5_000)
    engine.close()
    set_incarnation(path, 2)
    again = nodes.open_node(path)
    nodes.fill_to(again, 2 * SEGMENT + 5_000)
    segments = [again.segments.open(base) for base in again.segments.bases()]
    assert [segment.header.incarnation for segment in segments][-1] == 2
    assert segments[0].header.incarnation == made.incarnation == 1
    for segment in segments:
        segment.close()
    before = nodes.dump(again)
    nodes.drop(again)
    (path / "control").unlink()
    rebuilt = nodes.open_node(path)
    assert nodes.dump(rebuilt) == before
    rebuilt.close()
    set_incarnation(path, 1)
    (path / "control").unlink()
    with pytest.raises(JournalDamaged, match=r"incarnation 2, but node\.json says 1"):
        nodes.open_node(path)


@pytest.mark.parametrize("incarnation", [0, -1, 2**32])
def test_an_incarnation_out_of_range_is_refused(path: Path, incarnation: int) -> None:
    set_incarnation(path, incarnation)
    with pytest.raises(DirectoryError, match=f"incarnation {incarnation} is out of range"):
        nodes.open_node(path)


def test_a_worker_s_id_is_given_out_once(path: Path, engine: Engine) -> None:
    worker = engine.worker
    command = records.OpenWorker(engine.clock.now(), worker, engine.pid)
    with pytest.raises(InvariantBroken, match=f"worker {worker} is not a new one"):
        engine.execute(command)
