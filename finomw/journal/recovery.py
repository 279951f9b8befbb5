"""What a start does with what it finds: decision tables, as comments and as data.

A process that holds ``node.lock`` exclusively is alone and decides. Outcomes, from good to bad: go
on, recover, recover and report (one WARNING with the numbers), refuse (an error that names file,
LSN and what to do). Nothing is ever removed to make a start succeed.

The first table says whether LMDB and the page cache may be believed; the first row that fits
decides::

    failure  boot     state directory  LMDB's tail                  outcome
    -------  -------  ---------------  ---------------------------  ------------------
    set      -        -                -                            recover and report
    clear    other    -                -                            recover
    clear    unknown  -                -                            recover
    clear    same     missing          -                            recover
    clear    same     another          -                            recover
    clear    same     same             LMDB cannot be read          recover and report
    clear    same     same             older than what is durable   recover and report
    clear    same     same             newer than the journal       recover and report
    clear    same     same             matches the journal          go on

A boot is unknown where the control file is new, or a rebuild was interrupted. Another state
directory has another device or inode. A tail matches when the journal has a record with the LSN
and the CRC that LMDB remembers, and it is not behind the durable LSN. To go on is to zero what lies
past the tail; to recover is to rebuild LMDB from the newest good checkpoint and the journal behind
it. The second table says from what::

    segments           checkpoint                   journal reaches     outcome
    -----------------  ---------------------------  ------------------  ------------------
    one is missing     -                            -                   refuse
    one after another  the newest                   back to its tail    recover
    one after another  an older, broken ones above  back to its tail    recover and report
    one after another  none, but no broken ones     back to LSN 0       recover
    one after another  none, all are broken         back to LSN 0       recover and report
    one after another  -                            not so far back     refuse

A segment that is cut off, of another node, of a later incarnation or of an earlier one than those
before it, and a newer format of anything (journal, ``node.json``, control file, checkpoint) are
refused where they are met. The third table
says what the end of the journal means::

    behind the last record       known durable beyond it  outcome
    ---------------------------  -----------------------  --------------------------------------
    zeros                        no                       recover
    other bytes                  no                       recover and report: a torn tail is cut
    records, behind a gap        no                       recover and report: they are cut
    -                            yes                      refuse: what was durable is damaged

Known durable is the highest of the control file's watermark, the checkpoint's tail, and the stamps
of all records, also of those that lie behind the end. The worst of the three outcomes counts.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from enum import Enum
from typing import NamedTuple

from finomw.errors import InvariantBroken, JournalDamaged
from finomw.journal.format import ALIGNMENT, HEADER_SIZE, StoredRecord, Tail, decode_record
from finomw.journal.reader import Reader, reaches, read_at
from finomw.journal.segment import Segment, Segments, Window
from finomw.types import Lsn


class Outcome(Enum):
    """What a lone process does; a later one is worse."""

    GO_ON = "go on"
    RECOVER = "recover"
    REPORT = "recover and report"
    REFUSE = "refuse"

    def worse(self, other: Outcome) -> Outcome:
        """Return the worse one of two."""
        order = list(Outcome)
        return max(self, other, key=order.index)


class Boot(Enum):
    """Under which start of the machine the control file was reset."""

    SAME = "the same"
    OTHER = "the machine was started anew"
    UNKNOWN = "the control file is new, or a rebuild was interrupted"


class Place(Enum):
    """Whether the state directory is the one that the control file names."""

    SAME = "the same"
    ANOTHER = "the state directory is another one"
    MISSING = "the state is missing"


class Lmdb(Enum):
    """How LMDB's tail relates to the journal."""

    MATCHES = "the state is up to date"
    OLDER = "the state is older than what is durable"
    NEWER = "the state is newer than the journal"
    UNREADABLE = "the state cannot be read"


class StartFacts(NamedTuple):
    """What a lone process found; in a row of the table ``None`` is anything."""

    failed: bool | None
    boot: Boot | None
    place: Place | None
    lmdb: Lmdb | None


START_TABLE: tuple[tuple[StartFacts, Outcome], ...] = (
    (StartFacts(True, None, None, None), Outcome.REPORT),
    (StartFacts(False, Boot.OTHER, None, None), Outcome.RECOVER),
    (StartFacts(False, Boot.UNKNOWN, None, None), Outcome.RECOVER),
    (StartFacts(False, Boot.SAME, Place.MISSING, None), Outcome.RECOVER),
    (StartFacts(False, Boot.SAME, Place.ANOTHER, None), Outcome.RECOVER),
    (StartFacts(False, Boot.SAME, Place.SAME, Lmdb.UNREADABLE), Outcome.REPORT),
    (StartFacts(False, Boot.SAME, Place.SAME, Lmdb.OLDER), Outcome.REPORT),
    (StartFacts(False, Boot.SAME, Place.SAME, Lmdb.NEWER), Outcome.REPORT),
    (StartFacts(False, Boot.SAME, Place.SAME, Lmdb.MATCHES), Outcome.GO_ON),
)


class BaseFacts(NamedTuple):
    """From what the state can be rebuilt: whole journal files, how far back, what is broken."""

    whole: bool
    reaches: bool
    broken: bool


BASE_TABLE: dict[BaseFacts, Outcome] = {
    BaseFacts(whole=True, reaches=True, broken=False): Outcome.RECOVER,
    BaseFacts(whole=True, reaches=True, broken=True): Outcome.REPORT,
}
"""Facts that are not listed mean `Outcome.REFUSE`."""


class Behind(Enum):
    """What lies behind the last record that can be read."""

    ZEROS = "end"
    BYTES = "torn tail cut"
    RECORDS = "records behind a gap cut"


class EndFacts(NamedTuple):
    """What lies at the end of the readable journal."""

    behind: Behind
    durable_beyond: bool


END_TABLE: dict[EndFacts, Outcome] = {
    EndFacts(Behind.ZEROS, durable_beyond=False): Outcome.RECOVER,
    EndFacts(Behind.BYTES, durable_beyond=False): Outcome.REPORT,
    EndFacts(Behind.RECORDS, durable_beyond=False): Outcome.REPORT,
    EndFacts(Behind.ZEROS, durable_beyond=True): Outcome.REFUSE,
    EndFacts(Behind.BYTES, durable_beyond=True): Outcome.REFUSE,
    EndFacts(Behind.RECORDS, durable_beyond=True): Outcome.REFUSE,
}


class JournalEnd(NamedTuple):
    """The readable journal's end: what it means, and the highest LSN that is known durable."""

    outcome: Outcome
    behind: Behind
    durable: Lsn


def decide_start(facts: StartFacts) -> Outcome:
    """Look the facts up in the first table."""
    for row, outcome in START_TABLE:
        if all(cell in (None, fact) for cell, fact in zip(row, facts, strict=True)):
            return outcome
    raise InvariantBroken(f"the table of starts has no row for {facts}")


def decide_base(facts: BaseFacts) -> Outcome:
    """Look the facts up in the second table."""
    return BASE_TABLE.get(facts, Outcome.REFUSE)


def has_record(segments: Segments, tail: Tail) -> bool:
    """Say whether the journal has the record that a tail names."""
    if tail.number == 0:
        return True
    record = read_at(segments, tail.lsn)
    return record is not None and (record.end, record.crc) == (tail.end, tail.crc)


def compare(segments: Segments, tail: Tail, durable: Lsn) -> Lmdb:
    """Say how LMDB's tail relates to the journal and to what is known durable."""
    if tail.end < durable:
        return Lmdb.OLDER
    # What no flush has vouched for may have left memory, also from the middle.
    whole = has_record(segments, tail) and reaches(segments, max(durable, HEADER_SIZE), tail.end)
    return Lmdb.MATCHES if whole else Lmdb.NEWER


def missing_segment(bases: list[Lsn], size: int) -> Lsn | None:
    """Return the first base that is missing between others: they are made, and pruned, in order."""
    present = set(bases)
    between = range(min(bases, default=0), max(bases, default=0), size)
    return next((base for base in between if base not in present), None)


def judge_end(segments: Segments, tail: Tail, known: Lsn) -> JournalEnd:
    """Say what the end of the journal means; changes nothing.

    ``tail`` is the last record that can be read, ``known`` what is known durable so far.
    """
    found, stamp = Behind.ZEROS, known
    with closing(Window(segments)) as window:
        for base, lsn in behind(segments, tail.end):
            segment = window.at(base)
            if not has_bytes(segment, lsn):
                continue
            stamps = [record.durable for record in records_from(segment, lsn)]
            if stamps:
                found, stamp = Behind.RECORDS, max(stamp, *stamps)
            elif found is Behind.ZEROS:
                found = Behind.BYTES
    outcome = END_TABLE[EndFacts(found, durable_beyond=stamp > tail.end)]
    return JournalEnd(outcome, found, stamp)


def settle_end(segments: Segments, reader: Reader, watermark: Lsn) -> JournalEnd:
    """Decide what the end of the journal means, and zero what is cut.

    ``reader`` has been read to its end. Raises `JournalDamaged` where something that is known
    durable cannot be read. What was zeroed is durable afterwards.
    """
    end = judge_end(segments, reader.tail, max(watermark, reader.stamp))
    if end.outcome is Outcome.REFUSE:
        raise damaged_end(segments, reader.tail.end, end.durable)
    if end.outcome is Outcome.REPORT:
        zero_behind(segments, reader.tail.end)
    return end


def damaged_end(segments: Segments, end: Lsn, durable: Lsn, hint: str = "") -> JournalDamaged:
    """Return the refusal of a journal that ends before what is known durable.

    ``hint`` is for where accepting the loss would not leave everything before ``end``.
    """
    path = segments.path(segments.base_of(end - 1))
    what = f"no valid record here, but everything up to LSN {durable} was on disk"
    hint = f"restore the file from a backup, {hint or give_up(end)}"
    return JournalDamaged(str(path), end, what, hint)


def give_up(end: Lsn | None) -> str:
    """Return what to do where nothing else helps: part with what follows an LSN, if it is known."""
    if end is None:
        return "or see `finomw recover --dry-run` for what can be given up; nothing was changed"
    return (
        f"or give up what follows with `finomw recover --accept-loss-after {end}` "
        "(`finomw recover --dry-run` says what that is); nothing was changed"
    )


def check_behind(segments: Segments, end: Lsn) -> None:
    """Raise as `Window.at` where a segment behind ``end`` is none that belongs there."""
    with closing(Window(segments)) as window:
        for base, _ in behind(segments, end):
            window.at(base)


def zero_behind(segments: Segments, end: Lsn) -> None:
    """Zero everything behind ``end``, in all segments, and flush it."""
    with closing(Window(segments)) as window:
        for base, lsn in behind(segments, end):
            segment = window.at(base)
            if has_bytes(segment, lsn):
                segment.zero(lsn, segment.end - lsn)
                segment.file.flush()


def store_again(segments: Segments, durable: Lsn, end: Lsn) -> None:
    """Store what no flush has vouched for onto itself, and flush it; raises `OSError`.

    It was perhaps read from memory only: an earlier flush may have failed and left the lost pages
    marked clean.
    """
    with closing(Window(segments)) as window:
        for base in segments.covering(durable, end):
            segment = window.at(base)
            segment.restore(durable, end)
            segment.file.flush()


def behind(segments: Segments, end: Lsn) -> list[tuple[Lsn, Lsn]]:
    """Return where bytes behind ``end`` may lie: in its segment, and in later ones.

    Each place is a segment's base, and the first LSN in it.
    """
    bases = [base for base in segments.bases() if base + segments.size > end]
    return [(base, max(end, base + HEADER_SIZE)) for base in bases]


def has_bytes(segment: Segment, lsn: Lsn) -> bool:
    """Say whether anything but zeros lies behind an LSN."""
    rest = bytes(segment.rest(lsn))
    return rest.count(0) != len(rest)


def records_from(segment: Segment, lsn: Lsn) -> Iterator[StoredRecord]:
    """Yield all valid records of a segment from ``lsn`` on, whatever they follow.

    Every aligned place whose second word is its own LSN may be a record; its CRC decides.
    """
    rest = segment.rest(lsn)
    for index, word in enumerate(rest.cast("Q")):
        at = lsn + (index - 1) * ALIGNMENT
        if word == at and index:
            record = decode_record(rest[at - lsn :], segment.seed, at, None)
            if record is not None:
                yield record
