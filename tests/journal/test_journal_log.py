"""Writing across segments and reading it back, with what killed writers left."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from journals import NODE, SIZE, Journal, read, segments_in

from finomw import limits
from finomw.errors import InvalidValue, JournalDamaged, RecordingFailed
from finomw.journal.format import HEADER_SIZE, START, record_size
from finomw.journal.reader import read_at
from finomw.journal.segment import MissingSegment
from finomw.testing.files import FaultyFiles


def bodies(journal: Journal) -> list[bytes]:
    records, reader = read(journal.segments)
    assert reader.tail == journal.tail
    return [record.body for record in records]


def test_an_empty_journal_has_no_records(journal: Journal) -> None:
    assert bodies(journal) == []
    assert journal.tail == START


def test_records_come_back_in_order_with_their_attachments_and_stamps(journal: Journal) -> None:
    journal.append(b"one")
    journal.durable = journal.tail.end
    journal.append(b"two", b"an answer")
    journal.append(b"three")
    records, reader = read(journal.segments)
    assert [(r.body, r.attachment) for r in records] == [
        (b"one", None),
        (b"two", b"an answer"),
        (b"three", None),
    ]
    assert [r.durable for r in records] == [0, records[0].end, records[0].end]
    assert reader.stamp == records[0].end
    assert reader.tail == journal.tail
    assert reader.tail.number == 3


@given(
    sizes=st.lists(
        st.tuples(st.integers(1, limits.RECORD_BODY_MAX), st.integers(0, 20_000)), max_size=20
    )
)
@settings(derandomize=True, max_examples=25, deadline=None)
def test_whatever_sizes_records_have_they_all_come_back(
    tmp_path_factory: pytest.TempPathFactory, sizes: list[tuple[int, int]]
) -> None:
    journal = Journal(tmp_path_factory.mktemp("journal"))
    written = [(bytes([n + 1]) * body, b"a" * more) for n, (body, more) in enumerate(sizes)]
    for body, attachment in written:
        journal.append(body, attachment)
    records, reader = read(journal.segments)
    assert [(r.body, r.attachment or b"") for r in records] == written
    assert reader.tail == journal.tail
    for record in records:
        assert journal.segments.base_of(record.lsn) == journal.segments.base_of(record.end - 1)
    journal.close()


def test_a_record_may_fit_the_segment_exactly_and_the_next_opens_another(journal: Journal) -> None:
    journal.fill(left=64)
    journal.append(b"x" * 32)
    assert journal.tail.end == SIZE
    journal.append(b"next")
    assert journal.tail.lsn == SIZE + HEADER_SIZE
    assert bodies(journal)[-2:] == [b"x" * 32, b"next"]


def test_one_byte_too_many_rolls_over_and_the_rest_stays_zero(journal: Journal) -> None:
    journal.fill(left=64)
    end = journal.tail.end
    journal.append(b"x" * 33)
    assert journal.tail.lsn == SIZE + HEADER_SIZE
    assert bytes(journal.segments.at(0).rest(end)) == bytes(64)
    assert bodies(journal)[-1] == b"x" * 33


def test_a_missing_segment_is_asked_for_and_what_was_stored_stays(journal: Journal) -> None:
    journal.fill(left=0)
    with pytest.raises(MissingSegment) as caught:
        journal.writer.encode(journal.tail, 0, b"more")
    assert caught.value.base == SIZE
    assert bodies(journal)[-1].startswith(b"f")


def test_the_next_segment_is_prepared_once(journal: Journal) -> None:
    journal.append(b"one")
    journal.writer.prepare_next(journal.tail)
    journal.writer.prepare_next(journal.tail)
    assert journal.segments.bases() == [0, SIZE]
    head = journal.segments.path(SIZE).read_bytes()[:128]
    journal.writer.prepare_next(journal.tail)
    journal.segments.at(SIZE)
    journal.segments.create(SIZE)
    assert journal.segments.path(SIZE).read_bytes()[:128] == head
    journal.fill(left=0)
    journal.writer.prepare_next(journal.tail)
    assert journal.segments.bases() == [0, SIZE]


def test_a_record_that_no_segment_can_hold_is_refused(journal: Journal) -> None:
    with pytest.raises(InvalidValue, match="does not fit a segment"):
        journal.append(b"x" * (limits.RECORD_BODY_MAX + 1))
    with pytest.raises(InvalidValue, match="does not fit a segment"):
        journal.append(b"x", b"y" * SIZE)
    assert bodies(journal) == []


def test_a_ghost_is_overwritten_by_a_shorter_record(journal: Journal) -> None:
    journal.append(b"one")
    journal.ghost(b"a ghost that is much longer than what comes in its place" * 9)
    journal.append(b"two")
    assert bodies(journal) == [b"one", b"two"]
    journal.append(b"three")
    assert bodies(journal) == [b"one", b"two", b"three"]


def test_a_ghost_that_fitted_is_taken_out_when_a_bigger_record_rolls_over(
    journal: Journal,
) -> None:
    journal.fill(left=96)
    ghost = journal.ghost(b"fits")
    assert read(journal.segments)[1].tail == ghost
    journal.append(b"x" * 200)
    assert journal.tail.lsn == SIZE + HEADER_SIZE
    assert b"fits" not in bodies(journal)
    assert bodies(journal)[-1] == b"x" * 200
    journal.append(b"after")
    assert bodies(journal)[-1] == b"after"


def test_a_ghost_in_the_next_segment_is_overwritten_where_it_stands(journal: Journal) -> None:
    journal.fill(left=64)
    journal.ghost(b"g" * 500)
    journal.append(b"fits")
    journal.append(b"x" * 40)
    assert bodies(journal)[-2:] == [b"fits", b"x" * 40]


def test_a_blanked_attachment_keeps_the_chain(journal: Journal) -> None:
    lsn = journal.append(b"one", b"an answer to forget")
    journal.append(b"two")
    segment = journal.segments.at(0)
    start = lsn + 32 + 3 + 32
    segment.file.store(start, bytes(4 + len(b"an answer to forget")))
    records, reader = read(journal.segments)
    assert [(r.body, r.attachment) for r in records] == [(b"one", None), (b"two", None)]
    assert reader.tail == journal.tail


def test_a_record_can_be_read_at_its_place_alone(journal: Journal) -> None:
    journal.append(b"one")
    lsn = journal.append(b"two")
    record = read_at(journal.segments, lsn)
    assert record is not None
    assert record.body == b"two"
    assert read_at(journal.segments, lsn + 8) is None
    assert read_at(journal.segments, 5 * SIZE + lsn) is None


class Interrupted(Exception):
    """Stands for a signal's exception."""


def test_a_store_that_is_cut_off_leaves_no_record(
    journal: Journal, monkeypatch: pytest.MonkeyPatch
) -> None:
    journal.append(b"one")
    segment = journal.segments.at(0)
    whole = segment.file.path.read_bytes()
    store = type(segment).store

    def interrupt(self: object, lsn: int, record: bytes) -> None:
        store(segment, lsn, record)
        raise Interrupted

    monkeypatch.setattr(type(segment), "store", interrupt)
    with pytest.raises(Interrupted):
        journal.append(b"two")
    monkeypatch.undo()
    assert segment.file.path.read_bytes() == whole
    journal.append(b"two")
    assert bodies(journal) == [b"one", b"two"]


def test_a_segment_of_another_node_is_damage(journal: Journal, tmp_path: Path) -> None:
    other = segments_in(tmp_path, node=b"m" * 16)
    with pytest.raises(JournalDamaged, match=r"0000\.seg: LSN 0: .*another node"):
        other.at(0)
    assert NODE != b"m" * 16


def test_a_damaged_header_is_damage(journal: Journal, tmp_path: Path) -> None:
    journal.segments.at(0).file.store(40, b"\xff")
    with pytest.raises(JournalDamaged, match="header is damaged"):
        segments_in(tmp_path).at(0)


def test_a_segment_cut_off_is_damage(tmp_path: Path) -> None:
    segments = segments_in(tmp_path)
    segments.create(0)
    segments.path(0).write_bytes(segments.path(0).read_bytes()[:-1])
    with pytest.raises(JournalDamaged, match="cut off") as caught:
        segments.at(0)
    assert (caught.value.path, caught.value.lsn) == (str(segments.path(0)), 0)


def test_a_segment_that_cannot_be_mapped_now_is_no_damage(tmp_path: Path) -> None:
    files = FaultyFiles()
    segments = segments_in(tmp_path, files)
    segments.create(0)
    files.fail("map", error=24)
    with pytest.raises(RecordingFailed, match="Too many open files"):
        segments.at(0)
    assert segments.at(0).base == 0
    segments.close()


def test_the_smallest_record_leaves_no_gap() -> None:
    assert record_size(1, 0) == 40
    assert record_size(8, 0) == 40
    assert record_size(9, 0) == 48
