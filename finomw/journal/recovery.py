"""What a start does with what it finds: decision tables, as comments and as data.

A process that holds ``node.lock`` exclusively is alone and decides. The first table says whether
LMDB and the page cache may be believed:

    epoch   failure  LMDB's tail                            outcome
    ------  -------  -------------------------------------  -----------------------------------
    same    clear    matches the journal, not behind the    go on: zero what lies past the tail
                     durable LSN
    -       -        anything else                          rebuild LMDB from the journal

The epoch is the machine's boot and the state directory's device and inode. "Matches" means that
the journal has a record with the LSN and the CRC that LMDB remembers. The second table says what
the end of the journal means when LMDB is rebuilt:

    behind the last record  known durable beyond it         outcome
    ----------------------  ------------------------------  -----------------------------------
    zeros                   no                              end: nothing to do
    anything else           no                              cut: a torn tail, zero it
    -                       yes                             refuse: what was durable is damaged

Known durable is the highest of the control file's watermark and the stamps of all records,
also of those that lie behind the end. Nothing is ever removed to make a start succeed.
"""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple

from finomw.errors import JournalDamaged
from finomw.journal.format import ALIGNMENT, HEADER_SIZE, Tail, decode_record
from finomw.journal.reader import Reader, read_at
from finomw.journal.segment import Segment, Segments
from finomw.types import Lsn


class Start(Enum):
    """What a lone process does with LMDB."""

    GO_ON = "go on"
    REBUILD = "rebuild"


class StartFacts(NamedTuple):
    """What a lone process found."""

    same_epoch: bool
    failed: bool
    tail_matches: bool


START_TABLE: dict[StartFacts, Start] = {
    StartFacts(same_epoch=True, failed=False, tail_matches=True): Start.GO_ON,
}
"""Facts that are not listed mean `Start.REBUILD`: belief is the exception."""


class End(Enum):
    """What the end of the journal means."""

    CLEAN = "end"
    TORN = "cut"
    DAMAGED = "refuse"


class EndFacts(NamedTuple):
    """What lies at the end of the readable journal."""

    zeros: bool
    durable_beyond: bool


END_TABLE: dict[EndFacts, End] = {
    EndFacts(zeros=True, durable_beyond=False): End.CLEAN,
    EndFacts(zeros=False, durable_beyond=False): End.TORN,
    EndFacts(zeros=True, durable_beyond=True): End.DAMAGED,
    EndFacts(zeros=False, durable_beyond=True): End.DAMAGED,
}


def decide_start(facts: StartFacts) -> Start:
    """Look the facts up in the first table."""
    return START_TABLE.get(facts, Start.REBUILD)


def tail_matches(segments: Segments, tail: Tail, durable: Lsn) -> bool:
    """Say whether the journal has LMDB's last record, and LMDB is not behind what is durable."""
    if tail.end < durable:
        return False
    if tail.number == 0:
        return True
    record = read_at(segments, tail.lsn)
    return record is not None and (record.end, record.crc) == (tail.end, tail.crc)


def settle_end(segments: Segments, reader: Reader, watermark: Lsn) -> End:
    """Decide what the end of the journal means, and zero a torn tail.

    ``reader`` has been read to its end. Raises `JournalDamaged` where something that is known
    durable cannot be read. What was zeroed is durable when the caller has flushed the journal.
    """
    tail = reader.tail
    behind = _behind(segments, tail.end)
    stamp = max([watermark, reader.stamp, *(_highest_stamp(*place) for place in behind)])
    zeros = not any(_has_bytes(*place) for place in behind)
    end = END_TABLE[EndFacts(zeros=zeros, durable_beyond=stamp > tail.end)]
    if end is End.DAMAGED:
        path = segments.path(segments.base_of(tail.end - 1))
        raise JournalDamaged(
            str(path),
            tail.end,
            f"no valid record here, but everything up to LSN {stamp} was on disk",
            "restore the file from a backup; nothing was changed",
        )
    if end is End.TORN:
        zero_behind(segments, tail.end)
    return end


def zero_behind(segments: Segments, end: Lsn) -> None:
    """Zero everything behind ``end``, in all segments, and flush it."""
    for segment, lsn in _behind(segments, end):
        if _has_bytes(segment, lsn):
            segment.zero(lsn, segment.end - lsn)
            segment.file.flush()


def _behind(segments: Segments, end: Lsn) -> list[tuple[Segment, Lsn]]:
    """Return where bytes behind ``end`` may lie: the rest of its segment, and later segments."""
    bases = [base for base in segments.bases() if base + segments.size > end]
    return [(segments.at(base), max(end, base + HEADER_SIZE)) for base in bases]


def _has_bytes(segment: Segment, lsn: Lsn) -> bool:
    rest = bytes(segment.rest(lsn))
    return rest.count(0) != len(rest)


def _highest_stamp(segment: Segment, lsn: Lsn) -> Lsn:
    """Return the highest durable LSN named by any valid record from ``lsn`` on, or 0.

    Every aligned place whose second word is its own LSN may be a record; its CRC decides.
    """
    if not _has_bytes(segment, lsn):
        return 0
    rest = segment.rest(lsn)
    highest = 0
    for index, word in enumerate(rest.cast("Q")):
        at = lsn + (index - 1) * ALIGNMENT
        if word == at and index:
            record = decode_record(rest[at - lsn :], segment.seed, at, None)
            highest = max(highest, record.durable if record else 0)
    return highest
