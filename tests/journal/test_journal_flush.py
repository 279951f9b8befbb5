"""The group flush: what it publishes, what stops it, what it stores again."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from journals import SIZE, Journal

from finomw.errors import EngineClosed, FlushFailed, RecordingFailed
from finomw.journal.control import Control, Epoch, Slot
from finomw.journal.files import Files
from finomw.journal.flush import Flusher
from finomw.journal.locks import FileLock
from finomw.journal.workers import Workers, heal, start_time
from finomw.testing.files import FaultyFiles
from finomw.types import WorkerId


class Node:
    """A journal with a control file and as many flushers as are asked for."""

    def __init__(self, path: Path) -> None:
        self.files = FaultyFiles()
        (path / "journal").mkdir()
        (path / "workers").mkdir()
        self.journal = Journal(path / "journal", self.files)
        self.control = Control(Files(), path / "control")
        self.control.reset(Epoch(b"b" * 16, 1, 1), self.journal.tail.end)
        self.workers = Workers(path / "workers", self.control)

    def worker(self, number: int) -> tuple[Flusher, Slot, FileLock]:
        worker = WorkerId(number)
        lock = self.workers.lock(worker)
        slot = self.workers.claim_slot(worker, self.journal.segments, self.journal.tail.end)
        flusher = Flusher(
            self.journal.segments, self.control, slot, self.workers, lambda: self.journal.tail.end
        )
        return flusher, slot, lock


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node(tmp_path)


def during_flush(node: Node, action: Callable[[], object]) -> None:
    """Have something happen while the next flush is under way."""
    step = node.files.step

    def first_act(kind: str, path: Path) -> None:
        if kind == "flush":
            node.files.step = step  # type: ignore[method-assign]
            action()
        step(kind, path)

    node.files.step = first_act  # type: ignore[method-assign]


def test_a_flush_publishes_what_was_committed_before_it(node: Node) -> None:
    flusher, slot, _ = node.worker(1)
    node.journal.append(b"one")
    before = node.journal.tail.end
    during_flush(node, lambda: node.journal.append(b"two"))
    assert flusher.flush() == before
    assert node.control.durable() == before < node.journal.tail.end
    assert slot.flush_mark == 0
    assert flusher.flush() == node.journal.tail.end


def test_nothing_new_means_no_flush(node: Node) -> None:
    flusher, _, _ = node.worker(1)
    node.journal.append(b"one")
    flusher.flush()
    flushes = node.files.counts["flush"]
    assert flusher.flush() == node.journal.tail.end
    assert node.files.counts["flush"] == flushes


def test_one_worker_s_flush_serves_the_other(node: Node) -> None:
    (first, _, _), (second, _, _) = node.worker(1), node.worker(2)
    node.journal.append(b"one")
    first.flush()
    flushes = node.files.counts["flush"]
    assert second.flush() == node.journal.tail.end
    assert node.files.counts["flush"] == flushes


def test_a_flush_under_way_is_marked_and_another_may_pass_it(node: Node) -> None:
    (first, slot, _), (second, _, _) = node.worker(1), node.worker(2)
    node.journal.append(b"one")
    seen: list[int] = []

    def pass_it() -> None:
        seen.append(slot.flush_mark)
        node.journal.append(b"two")
        seen.append(second.flush())

    before = node.journal.tail.end
    during_flush(node, pass_it)
    assert first.flush() == before
    assert seen == [before, node.journal.tail.end]
    assert node.control.durable() == node.journal.tail.end


def test_every_segment_between_is_flushed_the_oldest_first(node: Node) -> None:
    flusher, _, _ = node.worker(1)
    node.journal.fill(left=0)
    node.journal.append(b"next")
    flushed: list[str] = []
    step = node.files.step
    node.files.step = lambda kind, path: (flushed.append(path.name), step(kind, path))[1]  # type: ignore[method-assign]
    flusher.flush()
    assert [name for name in flushed if name.endswith(".seg")] == [
        f"{0:016x}.seg",
        f"{SIZE:016x}.seg",
    ]


@pytest.mark.parametrize("at", [1, 2])
def test_a_failed_flush_is_final_for_everyone(node: Node, at: int) -> None:
    (first, slot, _), (second, _, _) = node.worker(1), node.worker(2)
    durable = node.control.durable()
    node.journal.fill(left=0)
    node.journal.append(b"next")
    node.files.fail("flush", at)
    with pytest.raises(FlushFailed, match="Input/output error"):
        first.flush()
    assert node.control.failed
    assert slot.flush_mark == 0
    flushes = node.files.counts["flush"]
    for flusher in (first, second):
        with pytest.raises(FlushFailed, match="until a restart"):
            flusher.flush()
    assert node.files.counts["flush"] == flushes
    assert node.control.durable() == durable


def test_a_failure_elsewhere_during_a_flush_stops_it_from_publishing(node: Node) -> None:
    flusher, _, _ = node.worker(1)
    durable = node.control.durable()
    node.journal.append(b"one")
    during_flush(node, node.control.fail)
    with pytest.raises(FlushFailed):
        flusher.flush()
    assert node.control.durable() == durable


def test_a_flush_that_could_not_begin_is_not_final(node: Node, tmp_path: Path) -> None:
    flusher, _, _ = node.worker(1)
    node.journal.fill(left=0)
    node.journal.segments.create(SIZE)
    node.journal.append(b"next")
    other = Journal(tmp_path / "journal", node.files)
    late = Flusher(
        other.segments, node.control, node.control.slots()[0], node.workers, lambda: SIZE + 5000
    )
    node.files.fail("map", 2, error=24)
    with pytest.raises(RecordingFailed, match="Too many open files") as caught:
        late.flush()
    assert not isinstance(caught.value, FlushFailed)
    assert not node.control.failed
    assert flusher.flush() == node.journal.tail.end


def test_a_lock_that_cannot_be_probed_is_not_final(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    (first, _, _), (_, mark, lock) = node.worker(1), node.worker(2)
    node.journal.append(b"one")
    mark.flush_mark = node.journal.tail.end
    lock.close()

    def no_more(*_: object) -> bool:
        raise OSError(24, "Too many open files")

    monkeypatch.setattr(node.workers, "alive", no_more)
    with pytest.raises(RecordingFailed, match="could not begin"):
        first.flush()
    monkeypatch.undo()
    assert first.flush() == node.journal.tail.end


def lost_pages(node: Node, slot: Slot) -> None:
    """Leave what a worker leaves that dies between a flush's error and telling anybody."""
    slot.flush_mark = node.journal.tail.end
    node.files.fail("flush")
    for segment in node.journal.segments.between(node.control.durable(), node.journal.tail.end):
        with pytest.raises(OSError, match="Input/output"):
            segment.file.flush()
        node.files.fail("flush")
    node.files.mend()


def disk_after_cut(node: Node) -> list[bytes]:
    directory = node.journal.segments.directory
    node.journal.close()
    node.files.power_cut()
    return [path.read_bytes() for path in sorted(directory.iterdir())]


def test_what_a_dead_worker_was_flushing_is_stored_again_before_the_next_flush(node: Node) -> None:
    (survivor, _, _), (_, slot, lock) = node.worker(1), node.worker(2)
    node.journal.fill(left=0)
    node.journal.append(b"the last record of one who died")
    lost_pages(node, slot)
    lock.close()
    survivor.flush()
    assert slot.flush_mark == 0
    written = [node.journal.segments.at(base).file.load(0, SIZE) for base in (0, SIZE)]
    assert disk_after_cut(node) == written


def test_a_dead_worker_s_mark_beyond_what_the_healer_knows_is_healed_too(node: Node) -> None:
    _, slot, lock = node.worker(2)
    known = node.journal.tail.end
    node.journal.append(b"committed after the healer looked")
    lost_pages(node, slot)
    lock.close()
    heal(node.control, node.workers, node.journal.segments, known)
    segment = node.journal.segments.at(0)
    segment.file.flush()
    written = segment.file.load(0, SIZE)
    assert disk_after_cut(node) == [written]


def test_a_living_worker_s_mark_is_left_alone(node: Node) -> None:
    (survivor, _, _), (_, slot, lock) = node.worker(1), node.worker(2)
    node.journal.append(b"one")
    slot.flush_mark = node.journal.tail.end
    survivor.flush()
    assert slot.flush_mark == node.journal.tail.end
    lock.close()


class Interrupted(Exception):
    """What a signal handler raises."""


def test_a_flush_cut_off_by_a_signal_is_stored_again_by_the_same_worker(node: Node) -> None:
    flusher, slot, _ = node.worker(1)
    node.journal.append(b"one")

    def interrupt() -> None:
        lost_pages(node, slot)
        raise Interrupted

    during_flush(node, interrupt)
    with pytest.raises(Interrupted):
        flusher.flush()
    assert slot.flush_mark == node.journal.tail.end
    assert flusher.flush() == node.journal.tail.end
    written = node.journal.segments.at(0).file.load(0, SIZE)
    assert disk_after_cut(node) == [written]


def test_a_closed_flusher_waits_for_the_flush_under_way_and_refuses_the_next(node: Node) -> None:
    flusher, _, _ = node.worker(1)
    node.journal.append(b"one")
    closing = threading.Thread(target=flusher.close)
    alive: list[bool] = []

    def close_meanwhile() -> None:
        closing.start()
        alive.append(closing.is_alive())

    during_flush(node, close_meanwhile)
    assert flusher.flush() == node.journal.tail.end
    closing.join()
    assert alive == [True]
    with pytest.raises(EngineClosed):
        flusher.flush()


def test_slots_are_taken_again_once_their_owner_is_forgotten(node: Node, tmp_path: Path) -> None:
    flusher, slot, lock = node.worker(1)
    node.journal.append(b"one")
    flusher.flush()
    durable = node.control.durable()
    assert node.workers.alive(WorkerId(1))
    lock.close()
    assert not node.workers.alive(WorkerId(1))
    node.workers.forget(WorkerId(1))
    assert list((tmp_path / "workers").iterdir()) == []
    assert not node.workers.alive(WorkerId(1))
    _, again, _ = node.worker(2)
    assert (again.index, again.worker) == (slot.index, 2)
    assert node.control.durable() == durable
    assert node.worker(3)[1].index == slot.index + 1


def test_a_slot_says_which_process_owns_it(node: Node) -> None:
    _, slot, _ = node.worker(5)
    at = 4096 + slot.index * 64
    assert node.control.file.load_word(at + 8) == os.getpid()
    assert node.control.file.load_word(at + 16) == start_time(os.getpid()) > 0


def test_a_forked_child_does_not_keep_its_parent_s_lock(tmp_path: Path) -> None:
    lock = FileLock(tmp_path / "lock")
    lock.exclusive()
    ready, tell = os.pipe()
    child = os.fork()
    if child == 0:
        os.write(tell, b"!")
        signal.pause()
    try:
        assert os.read(ready, 1) == b"!"
        probe = FileLock(tmp_path / "lock")
        assert not probe.try_exclusive()
        lock.close()
        assert probe.try_exclusive()
        probe.close()
        probe.close()
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        os.close(ready)
        os.close(tell)


def test_a_shared_lock_keeps_the_exclusive_one_out(tmp_path: Path) -> None:
    first, second, third = (FileLock(tmp_path / "lock") for _ in range(3))
    first.shared()
    second.shared()
    assert not third.try_exclusive()
    first.close()
    second.close()
    third.exclusive()
    third.close()
