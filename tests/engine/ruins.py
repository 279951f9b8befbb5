"""Node directories that a start refuses, each in its own way, and what is known about them."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple
from zlib import crc32

import nodes
from nodes import ALICE, SEGMENT

from finomw import limits
from finomw.engine import customers, grants, records
from finomw.engine.checkpoint import make_checkpoint
from finomw.engine.directory import find
from finomw.errors import JournalDamaged
from finomw.journal.control import Control
from finomw.journal.files import Files
from finomw.journal.format import (
    HEADER_SIZE,
    START,
    StoredRecord,
    decode_segment_header,
    encode_record,
)
from finomw.journal.reader import Reader
from finomw.store.checkpoints import listed


class Ruin(NamedTuple):
    """What a loss comes to: where the journal ends, and the LSNs of the records that are lost.

    ``unread`` are the stretches that are lost without being records.
    """

    end: int
    lost: list[int]
    unread: list[tuple[int, int]]


class Left(NamedTuple):
    """A killed node, after another boot, and all its records; some had checkpoints made behind."""

    path: Path
    records: list[StoredRecord]
    checkpoints: list[int]

    def first_of(self, segment: int) -> StoredRecord:
        return next(record for record in self.records if record.lsn >= segment * SEGMENT)

    def last_of(self, segment: int) -> StoredRecord:
        return [record for record in self.records if record.lsn < (segment + 1) * SEGMENT][-1]

    def lsns(self, start: int) -> list[int]:
        return [record.lsn for record in self.records if record.lsn >= start]


def leave(path: Path, checkpoints: tuple[int, ...] = ()) -> Left:
    """Make a node with records in three segments, and checkpoints at some thousands of bytes."""
    engine = nodes.open_node(nodes.make(path, limits.STATE_SIZE_MIN))
    customers.add_customer(engine, ALICE, nodes.PLAN)
    grants.grant(engine, ALICE, 10**9, "test", "first")
    made = []
    for end in (*checkpoints, 150):
        while engine.tail() < end * 1_000:
            at, name = engine.clock.now(), str(engine.tail())
            engine.execute(records.Grant(at, ALICE, 1, "noted", name, "n" * 900))
            nodes.settle(engine, nodes.held(engine, 100).hold, 70)
            engine.flush()
        if end != 150:
            made.append(make_checkpoint(engine).tail.end)
    engine.prepare_next_segment()
    nodes.held(engine, 5)
    engine.flush()
    nodes.drop(engine)
    new_boot(path)
    return Left(path, all_records(path), made)


def all_records(path: Path) -> list[StoredRecord]:
    """Return the records from the journal's beginning to where it cannot be read any more."""
    records: list[StoredRecord] = []
    with suppress(JournalDamaged):
        records.extend(Reader(find(path).segments(Files()), START))
    return records


def new_boot(path: Path) -> None:
    control = Control(Files(), path / "control")
    epoch = control.epoch()
    assert epoch is not None
    control.file.store(16, bytes(b ^ 1 for b in epoch.boot))
    control.close()


def segment_file(path: Path, number: int) -> Path:
    return path / "journal" / f"{number * SEGMENT:016x}.seg"


def overwrite(path: Path, lsn: int, data: bytes) -> None:
    with segment_file(path, lsn // SEGMENT).open("r+b") as file:
        file.seek(lsn % SEGMENT)
        file.write(data)


def forge(left: Left, at: int, body: bytes) -> None:
    """Replace one record's body by one of the same length; every CRC behind it is right again."""
    seeds = {}
    for number in range(3):
        file = segment_file(left.path, number)
        header = decode_segment_header(file.read_bytes()[:HEADER_SIZE], str(file), number * SEGMENT)
        seeds[number] = crc32(header.salt)
    crc = 0
    for record in left.records:
        content = body if record is left.records[at] else record.body
        assert len(content) == len(record.body)
        seed = seeds[record.lsn // SEGMENT]
        data, crc = encode_record(seed, record.lsn, record.durable, crc, content)
        overwrite(left.path, record.lsn, data)


def forge_result(left: Left, at: int) -> None:
    """Have a record say another balance than its command leaves."""
    command, result = records.decode(left.records[at].body)
    assert result is not None
    forge(left, at, records.encode(command, result._replace(balance=result.balance + 1)))


def damaged_record(left: Left) -> Ruin:
    at = left.records[20]
    overwrite(left.path, at.lsn + 40, b"????")
    return Ruin(at.lsn, left.lsns(at.end), [(at.lsn, at.end)])


def damaged_twice(left: Left) -> Ruin:
    """Damage two records in one segment and one in the next."""
    some = [left.records[20], left.records[22], left.first_of(1)]
    for record in some:
        overwrite(left.path, record.lsn + 40, b"????")
    lost = [lsn for lsn in left.lsns(some[0].end) if lsn not in {r.lsn for r in some}]
    return Ruin(some[0].lsn, lost, [(record.lsn, record.end) for record in some])


def end_is_zeros(left: Left) -> Ruin:
    at = left.records[-3]
    overwrite(left.path, at.lsn, bytes(SEGMENT - at.lsn % SEGMENT))
    return Ruin(at.lsn, [], [])


def end_is_noise(left: Left) -> Ruin:
    at = left.records[-2]
    overwrite(left.path, at.lsn + 3, b"noise" * 20)
    overwrite(left.path, at.lsn + 103, bytes(500))
    return Ruin(at.lsn, [], [(at.lsn, at.lsn + 104)])


def segment_missing(left: Left) -> Ruin:
    segment_file(left.path, 1).unlink()
    return Ruin(left.last_of(0).end, left.lsns(2 * SEGMENT), [])


def segment_foreign(left: Left) -> Ruin:
    other = nodes.make(left.path.with_name("foreign"), limits.STATE_SIZE_MIN)
    shutil.copy(segment_file(other, 1), segment_file(left.path, 1))
    return _without_segment_1(left)


def segment_cut_off(left: Left) -> Ruin:
    os.truncate(segment_file(left.path, 1), SEGMENT - 1)
    return _without_segment_1(left)


def segment_header_damaged(left: Left) -> Ruin:
    overwrite(left.path, SEGMENT + 40, b"????")
    return _without_segment_1(left)


def _without_segment_1(left: Left) -> Ruin:
    unread = (SEGMENT + HEADER_SIZE, 2 * SEGMENT)
    return Ruin(left.last_of(0).end, left.lsns(2 * SEGMENT), [unread])


def replay_differs(left: Left) -> Ruin:
    """Forge a settlement: it charged 71 of the 100 held, says the record, not 70."""
    at = next(
        number
        for number, record in enumerate(left.records)
        if number > 30 and isinstance(records.decode(record.body)[0], records.Settle)
    )
    forge_result(left, at)
    lsn = left.records[at].lsn
    return Ruin(lsn, left.lsns(lsn), [])


def replay_differs_before_damage(left: Left) -> Ruin:
    ruin = replay_differs(left)
    last = left.records[-1]
    overwrite(left.path, last.lsn + 40, b"????")
    return Ruin(ruin.end, ruin.lost[:-1], [(last.lsn, last.end)])


def watermark_beyond(left: Left) -> Ruin:
    control = Control(Files(), left.path / "control")
    control.demand(left.records[-1].end + 8)
    control.close()
    return Ruin(left.records[-1].end, [], [])


def stamps_beyond(left: Left) -> Ruin:
    """Damage a record, and lose the control file: only later records know that it was durable."""
    ruin = damaged_record(left)
    (left.path / "control").unlink()
    return ruin


def hole_without_witness(left: Left) -> Ruin:
    """Miss a segment, and lose the control file and what stood behind."""
    (left.path / "control").unlink()
    for record in left.records:
        if record.lsn >= 2 * SEGMENT:
            overwrite(left.path, record.lsn, bytes(record.end - record.lsn))
    return segment_missing(left)._replace(lost=[])


EVERYWHERE: list[Callable[[Left], Ruin]] = [
    damaged_record,
    damaged_twice,
    end_is_zeros,
    end_is_noise,
    segment_missing,
    segment_foreign,
    segment_cut_off,
    segment_header_damaged,
    replay_differs,
    replay_differs_before_damage,
    watermark_beyond,
    stamps_beyond,
    hole_without_witness,
]
"""Ruins of a node without checkpoints."""


def hole_below_the_checkpoint(left: Left) -> Ruin:
    """Miss a segment for all of which a checkpoint stands: no money is lost with it."""
    segment_file(left.path, 1).unlink()
    assert left.checkpoints[-1] > 2 * SEGMENT
    return Ruin(left.records[-1].end, [], [])


def checkpoint_s_record_damaged(left: Left) -> Ruin:
    """Damage the last record that the newer checkpoint knows; the older one is before it."""
    at = next(record for record in left.records if record.end == left.checkpoints[-1])
    overwrite(left.path, at.lsn + 40, b"????")
    return Ruin(at.lsn, left.lsns(at.end), [(at.lsn, at.end)])


def checkpoint_of_another_life(left: Left) -> Ruin:
    """Bring a checkpoint that knows a record which the journal does not have, under an old name."""
    other = leave(left.path.with_name("life"), (40,))
    twin = find(left.path).node.node, find(other.path).node.node
    [file] = listed(other.path / "checkpoints")
    data = bytearray(file.read_bytes())
    data[-4096 + 16 : -4096 + 32] = bytes.fromhex(twin[0])
    data[-4096 + 12 : -4096 + 16] = bytes(4)
    data[-4096 + 12 : -4096 + 16] = crc32(data[-4096 : -4096 + 112]).to_bytes(4, "little")
    for old in listed(left.path / "checkpoints"):
        old.unlink()
    (left.path / "checkpoints" / file.name).write_bytes(data)
    return Ruin(left.records[-1].end, [], [])


def damage_behind_the_checkpoint(left: Left) -> Ruin:
    at = left.records[-4]
    assert at.lsn > left.checkpoints[-1]
    overwrite(left.path, at.lsn + 40, b"????")
    return Ruin(at.lsn, left.lsns(at.end), [(at.lsn, at.end)])


WITH_CHECKPOINTS: list[Callable[[Left], Ruin]] = [
    hole_below_the_checkpoint,
    checkpoint_s_record_damaged,
    checkpoint_of_another_life,
    damage_behind_the_checkpoint,
]
"""Ruins of a node with two checkpoints, the newer one in the third segment."""

CHECKPOINTS_AT = (40, 140)
