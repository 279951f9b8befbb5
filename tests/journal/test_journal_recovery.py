"""Every row of both decision tables, and what is done about it."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest
from journals import SIZE, Journal, read, segments_in

from finomw.errors import JournalDamaged
from finomw.journal.format import START
from finomw.journal.recovery import (
    END_TABLE,
    START_TABLE,
    End,
    EndFacts,
    Start,
    StartFacts,
    decide_start,
    settle_end,
    tail_matches,
    zero_behind,
)
from finomw.journal.segment import Segments


@pytest.mark.parametrize("facts", list(itertools.product([True, False], repeat=3)))
def test_the_state_is_believed_in_one_case_only(facts: tuple[bool, bool, bool]) -> None:
    expected = Start.GO_ON if facts == (True, False, True) else Start.REBUILD
    assert decide_start(StartFacts(*facts)) is expected


def test_the_tables_are_complete() -> None:
    assert set(END_TABLE) == {EndFacts(*f) for f in itertools.product([True, False], repeat=2)}
    assert len(START_TABLE) == 1


def settled(segments: Segments, watermark: int = 0) -> End:
    _, reader = read(segments)
    return settle_end(segments, reader, watermark)


def test_zeros_behind_the_end_are_the_end(journal: Journal) -> None:
    journal.append(b"one")
    journal.writer.prepare_next(journal.tail)
    assert settled(journal.segments) is End.CLEAN
    assert settled(journal.segments, journal.tail.end) is End.CLEAN


@pytest.mark.parametrize("kept", [1, 8, 16, 31, 40, 200])
def test_a_torn_tail_is_cut_and_zeroed(journal: Journal, kept: int) -> None:
    journal.append(b"one")
    end = journal.tail.end
    journal.ghost(b"x" * 300)
    file = journal.segments.at(0).file
    file.store(end + kept, bytes(400))
    file.store(end, b"\x01")
    assert settled(journal.segments, end) is End.TORN
    assert bytes(journal.segments.at(0).rest(end)) == bytes(SIZE - end)
    assert settled(journal.segments, end) is End.CLEAN


def test_a_torn_tail_is_cut_in_later_segments_too(journal: Journal) -> None:
    journal.fill(left=64)
    end = journal.tail.end
    journal.append(b"x" * 100)
    journal.append(b"y" * 100)
    first = journal.segments.at(SIZE)
    first.file.store(4096 + 40, b"z")
    assert settled(journal.segments, end) is End.TORN
    assert read(journal.segments)[1].tail.end == end
    assert bytes(first.rest(SIZE + 4096)) == bytes(SIZE - 4096)


def test_damage_below_the_watermark_is_refused_and_nothing_changes(journal: Journal) -> None:
    journal.append(b"one")
    end = journal.tail.end
    journal.append(b"two")
    durable = journal.tail.end
    file = journal.segments.at(0).file
    file.store(end + 33, b"?")
    before = file.path.read_bytes()
    with pytest.raises(JournalDamaged, match=rf"up to LSN {durable} was on disk") as caught:
        settled(journal.segments, durable)
    assert caught.value.path == str(journal.segments.path(0))
    assert caught.value.lsn == end
    assert file.path.read_bytes() == before


def test_damage_below_a_stamp_is_refused_though_the_watermark_is_lost(journal: Journal) -> None:
    journal.append(b"one")
    end = journal.tail.end
    journal.append(b"two")
    journal.durable = journal.tail.end
    journal.append(b"three")
    file = journal.segments.at(0).file
    file.store(end + 33, b"?")
    before = file.path.read_bytes()
    with pytest.raises(JournalDamaged, match=rf"up to LSN {journal.durable} was on disk"):
        settled(journal.segments)
    assert file.path.read_bytes() == before


def test_durable_records_that_became_zeros_are_refused(journal: Journal) -> None:
    journal.append(b"one")
    end = journal.tail.end
    journal.append(b"two")
    journal.segments.at(0).file.store(end, bytes(200))
    with pytest.raises(JournalDamaged):
        settled(journal.segments, journal.tail.end)
    assert settled(journal.segments, end) is End.CLEAN


def test_a_stamp_in_a_later_segment_speaks_too(journal: Journal) -> None:
    journal.fill(left=0)
    journal.durable = journal.tail.end
    journal.append(b"next")
    damaged = journal.tail.end - 40 - SIZE
    journal.segments.at(0).file.store(SIZE - 8, b"?")
    assert damaged > 0
    with pytest.raises(JournalDamaged) as caught:
        settled(journal.segments)
    assert caught.value.path == str(journal.segments.path(0))


def test_a_body_that_quotes_an_lsn_is_no_record(journal: Journal) -> None:
    journal.append(b"one")
    end = journal.tail.end
    journal.ghost(b"".join((end + at).to_bytes(8, "little") for at in range(0, 400, 8)))
    journal.segments.at(0).file.store(end + 4, b"????")
    assert settled(journal.segments, end) is End.TORN


def test_the_state_s_tail_matches_the_record_it_names(journal: Journal) -> None:
    assert tail_matches(journal.segments, START, 0)
    journal.append(b"one")
    tail = journal.tail
    journal.append(b"two")
    assert tail_matches(journal.segments, tail, 0)
    assert tail_matches(journal.segments, journal.tail, journal.tail.end)
    assert not tail_matches(journal.segments, tail, journal.tail.end)
    assert not tail_matches(journal.segments, START, journal.tail.end)
    assert not tail_matches(journal.segments, tail._replace(crc=tail.crc ^ 1), 0)
    assert not tail_matches(journal.segments, tail._replace(end=tail.end + 8), 0)
    assert not tail_matches(journal.segments, tail._replace(lsn=tail.lsn + 8), 0)
    assert not tail_matches(journal.segments, tail._replace(lsn=9 * SIZE + 4096), 0)


def test_what_lies_behind_the_tail_is_zeroed_and_headers_stay(
    journal: Journal, tmp_path: Path
) -> None:
    journal.fill(left=64)
    tail = journal.tail
    journal.append(b"x" * 500)
    zero_behind(journal.segments, tail.end)
    records, reader = read(segments_in(tmp_path))
    assert reader.tail == tail
    assert len(records) == tail.number
    zero_behind(journal.segments, tail.end)
    assert journal.segments.at(SIZE).header.base == SIZE
