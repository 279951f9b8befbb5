"""A flush that failed before another process had a descriptor: nobody tells that process."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest
from journals import NODE, SIZE

from finomw.errors import FlushFailed
from finomw.journal.control import Control, Epoch
from finomw.journal.flush import Flusher
from finomw.journal.format import HEADER_SIZE, START, Tail
from finomw.journal.reader import Reader, reaches
from finomw.journal.segment import Segments
from finomw.journal.workers import Workers
from finomw.journal.writer import Writer
from finomw.testing.disk import SimulatedDisk, Version
from finomw.types import Lsn, WorkerId

JOURNAL, CONTROL = Path("/node/journal"), Path("/node/control")


class Node:
    """A journal on a simulated disk, with two workers that have their own mappings."""

    def __init__(self, locks: Path) -> None:
        self.disk = SimulatedDisk()
        self.tail = START
        self.control = Control(self.disk, CONTROL)
        self.control.reset(Epoch(b"b" * 16, 1, 1), START.end)
        self.workers = Workers(locks, self.control)
        self.segments().create(0)
        self.held = [self.workers.lock(WorkerId(number)) for number in (1, 2)]

    def segments(self) -> Segments:
        return Segments(self.disk, JOURNAL, SIZE, NODE, 1)

    def flusher(self, number: int) -> Flusher:
        """Make a worker's flusher; its descriptors are opened when it first flushes."""
        segments = self.segments()
        slot = self.workers.claim_slot(WorkerId(number), segments, self.tail.end)
        return Flusher(segments, self.control, slot, self.workers, lambda: self.tail.end)

    def append(self, body: bytes) -> Tail:
        writer = Writer(self.segments())
        record = writer.encode(self.tail, self.control.durable(), body)
        writer.store(record)
        self.tail = record.tail
        return self.tail

    def on_disk(self) -> Lsn:
        """Return how far the journal can be read where the disk has as little as it may."""
        image, _ = self.disk.image(_oldest)
        reader = Reader(Segments(image, JOURNAL, SIZE, NODE, 1), START)
        list(reader)
        return reader.tail.end

    def when_told(self, act: object) -> None:
        """Act once between a flush's failure and what its process does about it."""

        def step(kind: str, path: Path) -> None:
            if kind == "flushed" and path.parent == JOURNAL:
                self.disk.step = lambda kind, path: None
                act()  # type: ignore[operator]

        self.disk.step = step


def _oldest(versions: list[Version]) -> int:
    return 0


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    node = Node(tmp_path)
    yield node
    for lock in node.held:
        lock.close()


def test_a_newer_descriptor_stores_again_what_a_living_worker_s_flush_lost(node: Node) -> None:
    first, second = node.flusher(1), node.flusher(2)
    end = node.append(b"one").end
    node.disk.fail_flush()
    node.when_told(second.flush)
    with pytest.raises(FlushFailed):
        first.flush()
    assert node.control.durable() == end
    assert node.on_disk() == end


def test_what_was_lost_and_left_memory_is_a_failed_flush_for_everyone(node: Node) -> None:
    first, second = node.flusher(1), node.flusher(2)
    node.append(b"one")
    node.disk.fail_flush()
    told: list[str] = []

    def flush_second() -> None:
        node.disk.evict(Random(1))
        assert node.on_disk() == HEADER_SIZE
        with pytest.raises(FlushFailed, match="lost its data"):
            second.flush()
        told.append("second")

    node.disk.evict(Random(1))
    node.when_told(flush_second)
    with pytest.raises(FlushFailed):
        first.flush()
    assert told == ["second"]
    assert node.control.failed
    assert node.control.durable() == START.end


def test_records_reach_from_one_end_to_another_or_not(node: Node) -> None:
    ends = [START.end, *(node.append(body).end for body in (b"one", b"two", b"three"))]
    segments = node.segments()
    assert all(reaches(segments, start, ends[-1]) for start in ends)
    assert reaches(segments, ends[0], ends[1])
    assert not reaches(segments, ends[0], ends[1] + 8)
    segments.at(0).file.store(ends[1] + 32, b"?")
    assert not reaches(segments, ends[0], ends[-1])
    assert reaches(segments, ends[2], ends[-1])


def test_the_next_segment_s_first_record_does_not_hide_that_the_rest_of_one_is_lost(
    node: Node,
) -> None:
    node.segments().create(SIZE)
    tails = [START]
    while tails[-1].lsn < SIZE:
        tails.append(node.append(b"x" * 500))
    ends = [tail.end for tail in tails]
    segments = node.segments()
    assert all(reaches(segments, start, ends[-1]) for start in ends)
    last = tails[-2]  # of the first segment
    segments.at(0).zero(last.lsn, last.end - last.lsn)
    assert [start for start in ends if reaches(segments, start, ends[-1])] == [ends[-1]]


def test_no_record_follows_the_journal_s_beginning_but_its_first(node: Node) -> None:
    node.segments().create(SIZE)
    first = node.append(b"x" * 500)
    while node.tail.lsn < SIZE:
        node.append(b"x" * 500)
    segments = node.segments()
    segments.at(0).zero(first.lsn, SIZE - first.lsn)
    assert not reaches(segments, START.end, node.tail.end)
