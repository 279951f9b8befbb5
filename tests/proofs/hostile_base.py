"""The node whose files are going to be damaged, and all that is known about it.

It has several segments, two checkpoints, attachments, open holds, workers of before, and a tail
that no flush has reached. The money after each record is kept, and the bytes of each record.
"""

from __future__ import annotations

import os
import pickle
import random
import shutil
from pathlib import Path
from typing import NamedTuple
from unittest import mock

import nodes
from lives import SEGMENT, STATE, Books, Life, books_of_model

from finomw.engine import charge, customers, keys
from finomw.engine.checkpoint import make_checkpoint
from finomw.engine.directory import create, find
from finomw.engine.engine import Engine
from finomw.journal.control import Control
from finomw.journal.files import Files
from finomw.journal.format import HEADER_SIZE, START
from finomw.journal.reader import Reader
from finomw.types import CustomerId, OnCrash

SEGMENTS = 3
CHECKPOINTS = 2
ATTACHED_EVERY = 5


class Kept(NamedTuple):
    """One record as it was written; ``stamp`` is the durable LSN that it names."""

    lsn: int
    end: int
    data: bytes
    body: bytes
    attachment: bytes
    stamp: int

    @property
    def core(self) -> int:
        """How many of its bytes the chain covers: all but an attachment's own."""
        attached = len(self.attachment)
        return 32 + len(self.body) + (32 if attached else 0)


class Base(NamedTuple):
    """The node and what is known: ``books[n]`` is everybody's money after ``n`` records.

    ``files`` are the bytes of its files but the state's; ``checkpoints`` says, by name, after how
    many records each was made.
    """

    path: Path
    foreign: Path
    books: list[Books]
    records: list[Kept]
    watermark: int
    files: dict[str, bytes]
    checkpoints: dict[str, int]

    @property
    def tail(self) -> int:
        """The LSN behind the last record."""
        return self.records[-1].end

    def histories(self) -> dict[str, set[tuple[int, ...]]]:
        """Return what each customer's sums ever were."""
        found: dict[str, set[tuple[int, ...]]] = {}
        for books in self.books:
            for name, money in books.items():
                found.setdefault(name, set()).add(tuple(money[:5]))
        return found


def segment_name(base: int) -> str:
    """Return the name of a segment's file."""
    return f"{base:016x}.seg"


def build(home: Path, seed: str) -> Base:
    """Make the node, and another one whose files are foreign to it; keep what is known."""
    dice = random.Random(seed)
    life = Life(home / "base", Files())
    with mock.patch.object(os, "urandom", dice.randbytes):
        _live(life, dice)
    watermark = life.engine.durable()
    life.kill()
    books = [books_of_model(pickle.loads(kept)) for kept in life.kept]
    records = _records(life.path)
    assert len(records) == len(books) - 1
    assert records[-2].end > watermark > SEGMENTS * SEGMENT
    create(home / "foreign", SEGMENT, STATE)
    engine = nodes.open_node(home / "foreign")
    customers.add_customer(engine, CustomerId("mallory"), nodes.PLAN)
    for base in range(2 * SEGMENT, (SEGMENTS + 2) * SEGMENT, SEGMENT):
        engine.segments.create(base)
    make_checkpoint(engine)
    engine.close()
    files = {
        str(name): (life.path / name).read_bytes()
        for file in life.path.rglob("*")
        if file.is_file() and (name := file.relative_to(life.path)).parts[0] != "state"
    }
    ends = {record.end: number for number, record in enumerate(records, 1)}
    checkpoints = {
        name: ends[int(Path(name).stem, 16)] for name in files if name.startswith("checkpoints/")
    }
    assert len(checkpoints) == CHECKPOINTS
    return Base(life.path, home / "foreign", books, records, watermark, files, checkpoints)


def _live(life: Life, dice: random.Random) -> None:
    """Fill some segments."""
    assert life.make()
    assert life.open()
    _attach(life.engine, dice)
    life.meet("alice", 500_000)
    life.meet("bob", 90_000)
    life._acknowledged(lambda: keys.create_key(life.engine, nodes.ALICE, "laptop"), lambda _: None)
    checkpoints = 0
    while life.engine.tail() < SEGMENTS * SEGMENT + 3 * HEADER_SIZE:
        _do_something(life, dice)
        if checkpoints < CHECKPOINTS and life.engine.tail() > (checkpoints + 1) * SEGMENT:
            make_checkpoint(life.engine)
            checkpoints += 1
        if not dice.randrange(60):
            life.close()
            assert life.open()
            _attach(life.engine, dice)
            life.keep_house()
    life.flush()
    life.engine.prepare_next_segment()
    for amount in range(6):
        life.hold("alice", 10 + amount, choice="c" * 600)
    assert life.errors == []


def _do_something(life: Life, dice: random.Random) -> None:
    who = dice.choice(["alice", "alice", "bob"])
    amount = dice.randrange(1, 40)
    choice = "x" * dice.randrange(600, 4_000)
    match dice.randrange(8):
        case 0:
            life.give(who, amount, "n" * dice.randrange(1, 900))
        case 1:
            held = life.hold(who, amount, choice=choice, on_crash=OnCrash.SETTLE)
            if held is not None:
                life._acknowledged(
                    lambda: (charge.start(life.engine, charge.Held(held, 0, 0)), life.flush()),
                    lambda _: life.model.start(held),
                )
        case 2:
            held = life.hold(who, amount, choice=choice)
            if held is not None:
                life.release(held)
        case 3:
            customer = CustomerId(who)
            life._acknowledged(
                lambda: customers.set_terms(life.engine, customer, None, 0),
                lambda _: life.model.set_terms(who, None, 0),
            )
        case _:
            life.call(who, amount, dice.randrange(amount + 9), choice)


def _attach(engine: Engine, dice: random.Random) -> None:
    """Let every few records carry an attachment."""
    writer = engine._writer
    encode = writer.encode

    def attaching(tail, durable, body):  # type: ignore[no-untyped-def]
        attached = dice.randbytes(300) if (tail.number + 1) % ATTACHED_EVERY == 0 else b""
        return encode(tail, durable, body, attached)

    writer.encode = attaching  # type: ignore[method-assign]


def _records(path: Path) -> list[Kept]:
    """Read the records as they lie in the files."""
    segments = find(path).segments(Files())
    found = []
    for record in Reader(segments, START):
        base = segments.base_of(record.lsn)
        data = (path / "journal" / segment_name(base)).read_bytes()
        piece = data[record.lsn - base : record.end - base]
        attachment = record.attachment or b""
        found.append(Kept(record.lsn, record.end, piece, record.body, attachment, record.durable))
    segments.close()
    return found


def copy(base: Base, path: Path, same_boot: bool) -> None:
    """Copy the node; ``same_boot`` makes the copy's state one that its control file vouches for."""
    shutil.copytree(base.path, path)
    if same_boot:
        epoch = find(path).epoch()
        control = Control(Files(), path / "control")
        control.file.store(16, epoch.boot)
        control.file.store_word(32, epoch.device)
        control.file.store_word(40, epoch.inode)
        control.close()
