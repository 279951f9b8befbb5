"""How many segments are mapped: one for who reads, what may need a flush for who writes."""

from __future__ import annotations

import gc
from contextlib import closing
from pathlib import Path

import pytest
from journals import SIZE, Journal, read, segments_in

from finomw.errors import JournalDamaged
from finomw.journal.files import Files, MappedFile
from finomw.journal.format import START
from finomw.journal.reader import Reader, read_at
from finomw.journal.recovery import judge_end, zero_behind
from finomw.journal.segment import MissingSegment, Window


class CountingFile(MappedFile):
    def close(self) -> None:
        CountingFiles.mapped.discard(id(self))
        super().close()


class CountingFiles(Files):
    """Counts what is mapped now, and the most that ever was."""

    mapped: set[int] = set()  # noqa: RUF012

    def __init__(self) -> None:
        self.most = 0
        self.mapped.clear()

    def map(self, path: Path, size: int) -> MappedFile:
        file = CountingFile(path, size)
        self.mapped.add(id(file))
        self.most = max(self.most, len(self.mapped))
        return file


@pytest.fixture
def long(tmp_path: Path) -> Journal:
    """Make a journal of a dozen segments."""
    journal = Journal(tmp_path)
    while journal.tail.end < 12 * SIZE:
        journal.append(b"x" * 8_000)
    journal.close()
    return journal


def test_reading_maps_one_segment_at_a_time_and_none_afterwards(
    tmp_path: Path, long: Journal
) -> None:
    files = CountingFiles()
    segments = segments_in(tmp_path, files)
    records, reader = read(segments)
    assert len(records) == long.tail.number
    assert reader.tail == long.tail
    assert judge_end(segments, reader.tail, 0).durable == 0
    zero_behind(segments, reader.tail.end)
    assert read_at(segments, records[5].lsn) == records[5]
    assert (files.most, len(files.mapped)) == (1, 0)


def test_a_reader_that_is_left_in_the_middle_lets_go(tmp_path: Path, long: Journal) -> None:
    files = CountingFiles()
    reader = Reader(segments_in(tmp_path, files), START)
    for record in reader:
        if record.lsn > 3 * SIZE:
            break
    gc.collect()
    assert len(files.mapped) == 0
    rest = list(reader)
    assert reader.tail == long.tail
    assert rest[0].lsn > 3 * SIZE


def test_a_window_raises_as_the_segments_do_and_closes(tmp_path: Path, long: Journal) -> None:
    files = CountingFiles()
    with closing(Window(segments_in(tmp_path, files))) as window:
        assert window.at(SIZE).base == SIZE
        assert window.at(SIZE) is window.at(SIZE)
        with pytest.raises(MissingSegment):
            window.at(99 * SIZE)
        assert len(files.mapped) == 0
        (tmp_path / f"{2 * SIZE:016x}.seg").write_bytes(b"short")
        with pytest.raises(JournalDamaged, match="cut off"):
            window.at(2 * SIZE)
        window.at(0)
    assert len(files.mapped) == 0


def test_what_is_wholly_durable_is_let_go_of_but_for_the_last(tmp_path: Path) -> None:
    journal = Journal(tmp_path)
    journal.fill(left=0)
    assert journal.tail.end == SIZE
    journal.segments.let_go(journal.tail.end)
    assert list(journal.segments._opened) == [0]
    journal.append(b"next")
    journal.segments.let_go(SIZE)
    assert list(journal.segments._opened) == [0, SIZE]
    journal.segments.let_go(journal.tail.end)
    assert list(journal.segments._opened) == [SIZE]
    journal.append(b"more")
    assert len(read(journal.segments)[0]) == journal.tail.number
    journal.close()


def test_names_that_are_no_segments_are_passed_over(tmp_path: Path, long: Journal) -> None:
    for name in ("x.seg", f"{0:016x}.seg.1234.draft", f"{5:015x}.seg", "notes"):
        (tmp_path / name).touch()
    assert segments_in(tmp_path).bases() == [base * SIZE for base in range(13)]
