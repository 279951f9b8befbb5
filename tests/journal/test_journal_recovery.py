"""Every row of both decision tables, and what is done about it."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest
from journals import SIZE, Journal, read, segments_in

from finomw.errors import JournalDamaged
from finomw.journal.format import START
from finomw.journal.recovery import (
    BASE_TABLE,
    END_TABLE,
    START_TABLE,
    BaseFacts,
    Behind,
    Boot,
    EndFacts,
    Lmdb,
    Outcome,
    Place,
    StartFacts,
    compare,
    decide_base,
    decide_start,
    has_record,
    judge_end,
    missing_segment,
    settle_end,
    zero_behind,
)
from finomw.journal.segment import Segments

EVERY_START = [StartFacts(*facts) for facts in itertools.product([True, False], Boot, Place, Lmdb)]


def test_every_start_has_a_row_and_belief_is_the_exception() -> None:
    gone_on = [facts for facts in EVERY_START if decide_start(facts) is Outcome.GO_ON]
    assert gone_on == [StartFacts(False, Boot.SAME, Place.SAME, Lmdb.MATCHES)]


@pytest.mark.parametrize(("row", "outcome"), START_TABLE)
def test_each_row_of_the_first_table_decides_something(row: StartFacts, outcome: Outcome) -> None:
    def fits(facts: StartFacts) -> bool:
        return all(cell in (None, fact) for cell, fact in zip(row, facts, strict=True))

    mine = [facts for facts in EVERY_START if fits(facts)]
    assert mine
    assert {decide_start(facts) for facts in mine} == {outcome}


@pytest.mark.parametrize("facts", list(itertools.product([True, False], repeat=3)))
def test_a_rebuild_needs_every_segment_and_a_beginning(facts: tuple[bool, bool, bool]) -> None:
    whole, reaches, broken = facts
    expected = Outcome.REFUSE
    if whole and reaches:
        expected = Outcome.REPORT if broken else Outcome.RECOVER
    assert decide_base(BaseFacts(*facts)) is expected
    assert len(BASE_TABLE) == 2


def test_every_end_has_a_row() -> None:
    assert set(END_TABLE) == {EndFacts(*f) for f in itertools.product(Behind, [True, False])}


def test_the_worse_outcome_counts() -> None:
    order = [Outcome.GO_ON, Outcome.RECOVER, Outcome.REPORT, Outcome.REFUSE]
    for better, worse in itertools.combinations(order, 2):
        assert better.worse(worse) is worse
        assert worse.worse(better) is worse


@pytest.mark.parametrize(
    ("bases", "missing"),
    [([], None), ([0], None), ([10, 20, 30], None), ([0, 20], 10), ([10, 20, 50], 30)],
)
def test_a_segment_is_missing_only_between_others(bases: list[int], missing: int | None) -> None:
    assert missing_segment(bases, 10) == missing


def settled(segments: Segments, watermark: int = 0) -> Behind:
    _, reader = read(segments)
    return settle_end(segments, reader, watermark).behind


def test_zeros_behind_the_end_are_the_end(journal: Journal) -> None:
    journal.append(b"one")
    journal.writer.prepare_next(journal.tail)
    assert settled(journal.segments) is Behind.ZEROS
    assert settled(journal.segments, journal.tail.end) is Behind.ZEROS


@pytest.mark.parametrize("kept", [1, 8, 16, 31, 40, 200])
def test_a_torn_tail_is_cut_and_zeroed(journal: Journal, kept: int) -> None:
    journal.append(b"one")
    end = journal.tail.end
    journal.ghost(b"x" * 300)
    file = journal.segments.at(0).file
    file.store(end + kept, bytes(400))
    file.store(end, b"\x01")
    assert settled(journal.segments, end) is Behind.BYTES
    assert bytes(journal.segments.at(0).rest(end)) == bytes(SIZE - end)
    assert settled(journal.segments, end) is Behind.ZEROS


def test_a_torn_tail_is_cut_in_later_segments_too(journal: Journal) -> None:
    journal.fill(left=64)
    end = journal.tail.end
    journal.append(b"x" * 100)
    journal.append(b"y" * 100)
    first = journal.segments.at(SIZE)
    first.file.store(4096 + 40, b"z")
    assert settled(journal.segments, end) is Behind.RECORDS
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
    assert settled(journal.segments, end) is Behind.ZEROS


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
    assert settled(journal.segments, end) is Behind.BYTES


def test_records_behind_a_gap_are_cut_unless_they_are_known_durable(journal: Journal) -> None:
    journal.append(b"one")
    end = journal.tail.end
    journal.append(b"two")
    journal.append(b"three")
    journal.segments.at(0).file.store(end + 33, b"?")
    before = journal.segments.at(0).file.load(0, SIZE)
    judged = judge_end(journal.segments, read(journal.segments)[1].tail, end)
    assert judged == (Outcome.REPORT, Behind.RECORDS, end)
    assert judge_end(journal.segments, read(journal.segments)[1].tail, end + 8) == (
        Outcome.REFUSE,
        Behind.RECORDS,
        end + 8,
    )
    assert journal.segments.at(0).file.load(0, SIZE) == before
    assert settled(journal.segments, end) is Behind.RECORDS
    assert bytes(journal.segments.at(0).rest(end)) == bytes(SIZE - end)


def test_the_state_s_tail_is_compared_with_the_record_it_names(journal: Journal) -> None:
    segments = journal.segments
    assert compare(segments, START, 0) is Lmdb.MATCHES
    journal.append(b"one")
    tail = journal.tail
    journal.append(b"two")
    assert compare(segments, tail, 0) is Lmdb.MATCHES
    assert compare(segments, journal.tail, journal.tail.end) is Lmdb.MATCHES
    assert compare(segments, tail, journal.tail.end) is Lmdb.OLDER
    assert compare(segments, START, journal.tail.end) is Lmdb.OLDER
    assert compare(segments, tail._replace(crc=tail.crc ^ 1), 0) is Lmdb.NEWER
    assert compare(segments, tail._replace(end=tail.end + 8), 0) is Lmdb.NEWER
    assert not has_record(segments, tail._replace(lsn=tail.lsn + 8))
    assert not has_record(segments, tail._replace(lsn=9 * SIZE + 4096))


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
