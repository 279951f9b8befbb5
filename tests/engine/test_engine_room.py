"""Without room, new calls are refused and calls under way end; with room again, all goes on."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import nodes
import pytest
from nodes import ALICE, SEGMENT
from processes import Child, Pipe

from finomw import limits
from finomw.engine import charge, customers, grants, records
from finomw.engine.engine import Engine
from finomw.engine.reserve import Reserve
from finomw.engine.verify import verify
from finomw.errors import RecordingFailed
from finomw.journal.files import Files
from finomw.journal.format import record_size
from finomw.money.account import After
from finomw.testing.files import FaultyFiles
from finomw.types import HoldId, Refusal, UsageStatus

NO_SEGMENT = "no room for the next segment: No space left"
METERS = {f"m{number:063}": limits.COUNT_MAX for number in range(limits.METERS_MAX)}
NOTE = "n" * limits.NOTE_BYTES


def with_money(path: Path, files: Files | None = None, state: int = nodes.STATE) -> Engine:
    engine = nodes.open_node(nodes.make(path, state), files)
    customers.add_customer(engine, ALICE, nodes.PLAN)
    grants.grant(engine, ALICE, 10**12, "test", "first")
    return engine


def hold_until_refused(engine: Engine, match: str) -> list[charge.Held]:
    """Hold and do not end, until there is no room."""
    held: list[charge.Held] = []

    def hold() -> None:
        while True:
            held.append(nodes.held(engine, 1))

    with pytest.raises(RecordingFailed, match=match):
        hold()
    return held


def refuse_top_ups(engine: Engine, match: str) -> None:
    """Top up until that is refused too, at the latest where it would use an ending's room."""

    def top_up() -> None:
        for number in range(1_000):
            grants.grant(engine, ALICE, 1, "top-up", str(number))

    with pytest.raises(RecordingFailed, match=match):
        top_up()


def end_at_length(engine: Engine, held: charge.Held) -> None:
    """Start and settle a hold with the longest records that there can be."""
    charge.start(engine, held)
    charge.settle(engine, held.hold, 1, METERS, UsageStatus.KNOWN, NOTE)


def no_growth(monkeypatch: pytest.MonkeyPatch, error: int = errno.ENOSPC) -> None:
    """Let only the state find no room: segments are allocated by another name."""
    allocate = os.posix_fallocate

    def refuse(fd: int, offset: int, length: int) -> None:
        if os.readlink(f"/proc/self/fd/{fd}").endswith("data.mdb"):
            raise OSError(error, os.strerror(error))
        allocate(fd, offset, length)

    monkeypatch.setattr(os, "posix_fallocate", refuse)


def test_the_longest_ending_fits_what_is_kept_for_it() -> None:
    hold = HoldId(f"{'f' * 8}-{2**64 - 1}-{2**64 - 1}")
    at, most = limits.INSTANT_MAX, limits.MICROS_MAX
    after = After(-most, most, at, most, most)
    start = records.encode(records.Start(at, hold), None)
    settle = records.Settle(
        at, hold, limits.AMOUNT_MAX, METERS, UsageStatus.PARTIAL, NOTE,
        dict.fromkeys(METERS, limits.MICROS_MAX), whole=True,
    )  # fmt: skip
    release = records.Release(at, hold, NOTE)
    endings = [len(records.encode(command, after)) for command in (settle, release)]
    longest = record_size(len(start), 0) + record_size(max(endings), 0)
    assert 3_000 < longest <= limits.ENDING_BYTES_MAX


@pytest.mark.parametrize("error", [errno.ENOSPC, errno.EDQUOT, errno.EROFS])
def test_without_another_segment_every_open_hold_can_still_end(tmp_path: Path, error: int) -> None:
    files = FaultyFiles()
    engine = with_money(tmp_path / "node", files)
    files.fail("allocate", for_good=True, error=error)
    held = hold_until_refused(engine, f"no room for the next segment: {os.strerror(error)}")
    assert len(held) > 10
    refuse_top_ups(engine, os.strerror(error))
    given = customers.get_account(engine, ALICE).credited_total
    for each in held:
        end_at_length(engine, each)
    engine.flush()
    assert verify(engine).faults == ()
    assert verify(engine).open_holds == 0
    assert customers.get_account(engine, ALICE).balance == given - len(held)
    files.mend()
    nodes.settle(engine, nodes.held(engine, 5).hold, 5)
    nodes.rebuilt(engine, tmp_path / "node").close()


def test_a_state_without_room_lets_every_open_hold_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = with_money(tmp_path / "node", state=limits.STATE_SIZE_MIN * 4)
    no_growth(monkeypatch)
    held = hold_until_refused(engine, r"data\.mdb: no room for a state of \d+ bytes: No space")
    assert len(held) > 20
    refuse_top_ups(engine, "no room for a state")
    # Also while somebody reads, so that no page that was freed is used again.
    with engine.store.read():
        for each in held:
            end_at_length(engine, each)
    assert engine.health().space.state_size == limits.STATE_SIZE_MIN * 4
    assert verify(engine).faults == ()
    assert verify(engine).open_holds == 0
    monkeypatch.undo()
    more = [nodes.held(engine, 1) for _ in range(2 * len(held))]
    assert engine.health().space.open_holds == len(more)
    assert engine.health().space.state_size > limits.STATE_SIZE_MIN * 4
    assert verify(engine).faults == ()
    engine.close()


def test_an_ending_makes_room_where_the_reserve_was_not_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = with_money(tmp_path / "node", state=limits.STATE_SIZE_MIN)
    monkeypatch.setattr(Reserve, "check", lambda *_: None)
    held = [nodes.held(engine, 1) for _ in range(500)]
    for each in held:
        end_at_length(engine, each)
    assert engine.health().space.state_size > limits.STATE_SIZE_MIN
    assert verify(engine).faults == ()
    engine.close()


def test_an_ending_of_uncommon_length_uses_no_reserve(tmp_path: Path) -> None:
    files = FaultyFiles()
    engine = with_money(tmp_path / "node", files)
    files.fail("allocate", for_good=True, error=errno.ENOSPC)
    held = hold_until_refused(engine, NO_SEGMENT)
    counts = {f"meter_{number}": number for number in range(1_000)}
    with pytest.raises(RecordingFailed, match=NO_SEGMENT):
        charge.settle(engine, held[0].hold, 1, counts, UsageStatus.KNOWN)
    for each in held:
        end_at_length(engine, each)
    assert verify(engine).faults == ()
    engine.close()


def test_a_worker_that_opens_on_a_full_disk_ends_what_a_crash_left(tmp_path: Path) -> None:
    path = tmp_path / "node"
    files = FaultyFiles()
    engine = with_money(path, files)
    files.fail("allocate", for_good=True, error=errno.ENOSPC)
    held = hold_until_refused(engine, NO_SEGMENT)
    engine.flush()
    nodes.drop(engine)
    full = FaultyFiles()
    full.fail("allocate", for_good=True, error=errno.ENOSPC)
    again = nodes.open_node(path, full)
    for each in held:
        charge.release(again, each.hold)
    assert verify(again).open_holds == 0
    assert customers.get_account(again, ALICE).balance == 10**12
    again.close()


def test_segments_are_ready_for_twice_the_endings(tmp_path: Path) -> None:
    engine = with_money(tmp_path / "node")
    for _ in range(60):
        nodes.held(engine, 1)
    engine.prepare_next_segment()
    ahead = engine.segments.bases()[-1] + SEGMENT - engine.tail()
    assert ahead > 2 * 60 * limits.ENDING_BYTES_MAX
    made = engine.segments.bases()
    engine.prepare_next_segment()
    assert engine.segments.bases() == made
    engine.close()


def test_the_state_grows_ahead_of_need(tmp_path: Path) -> None:
    engine = with_money(tmp_path / "node", state=limits.STATE_SIZE_MIN)
    engine.grow_ahead()
    assert engine.health().space.state_size == limits.STATE_SIZE_MIN
    nodes.fill_to(engine, 4 * SEGMENT)
    engine.grow_ahead()
    space = engine.health().space
    assert space.state_used < space.state_size * 3 // 4
    engine.close()


def test_health_says_when_space_is_low(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = with_money(tmp_path / "node")
    nodes.held(engine, 1)
    space = engine.health().space
    assert (space.open_holds, space.state_size, space.low) == (1, nodes.STATE, False)
    assert 0 < space.state_used < space.state_size
    wanted = limits.LOW_SPACE_SEGMENTS * SEGMENT + nodes.STATE
    monkeypatch.setattr(limits, "LOW_SPACE_SEGMENTS", (space.disk_free + wanted) // SEGMENT * 2)
    assert engine.health().space.low
    engine.close()


def _holds_many(pipe: Pipe, path: Path, count: int) -> None:
    engine = nodes.open_node(path)
    for _ in range(count):
        pipe.send(None)
        pipe.recv()
        held = [nodes.held(engine, 1) for _ in range(40)]
        for each in held:
            nodes.settle(engine, each.hold, 1)
    engine.close()


def test_two_processes_go_on_while_each_lets_the_state_grow(tmp_path: Path) -> None:
    path = tmp_path / "node"
    engine = with_money(path, state=limits.STATE_SIZE_MIN)
    child = Child(_holds_many, path, 6)
    held: list[charge.Held | Refusal] = []
    for turn in range(6):
        child.receive()
        held += [nodes.held(engine, 1) for _ in range(20 * turn)]
        child.send()
    child.finish()
    assert engine.health().space.state_size > limits.STATE_SIZE_MIN
    assert customers.get_account(engine, ALICE).balance == 10**12 - 6 * 40 - len(held)
    assert verify(engine).faults == ()
    nodes.rebuilt(engine, path).close()


def test_a_growing_process_that_is_killed_leaves_a_state_that_opens(tmp_path: Path) -> None:
    path = tmp_path / "node"
    engine = with_money(path)
    engine.close()
    os.truncate(path / "state" / "data.mdb", 8 * limits.MIB)
    (path / "journal" / "0000000000030000.seg.0123456789abcdef.draft").write_bytes(bytes(100))
    again = nodes.open_node(path)
    status = (path / "state" / "data.mdb").stat()
    assert again.health().space.state_size == status.st_size == 8 * limits.MIB
    assert status.st_blocks * 512 >= status.st_size
    assert [name for name in os.listdir(path / "journal") if name.endswith("draft")] == []
    nodes.settle(again, nodes.held(again, 1).hold, 1)
    assert verify(again).faults == ()
    again.close()
