"""A node on a simulated disk: real engines, flushers and recovery, some real LMDB, no real disk.

Journal and control file lie on the simulated disk; LMDB and the lock files, which no power cut
concerns, in a real directory in memory. All engines share one LMDB environment, as processes share
its file; whoever dies in a transaction aborts it.
"""

from __future__ import annotations

import multiprocessing
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from random import Random
from typing import NamedTuple
from unittest import mock

from crew import Crew

from finomw.engine import engine as engine_module
from finomw.engine.directory import FORMAT_VERSION, NodeDirectory, NodeFile
from finomw.engine.engine import Engine
from finomw.engine.opening import Opened, open_directory
from finomw.engine.policy import BelowZero
from finomw.journal import recovery
from finomw.journal.control import Control, Epoch
from finomw.journal.files import Files
from finomw.journal.format import START, StoredRecord, Tail
from finomw.journal.reader import Reader
from finomw.journal.segment import Segments
from finomw.journal.writer import Encoded, Writer
from finomw.store.env import Txn
from finomw.testing.clock import ManualClock
from finomw.testing.disk import SimulatedDisk
from finomw.types import Lsn

FORKS = multiprocessing.get_context("forkserver")
# Forked from a server that has the imports done and no threads: quick, and safe to fork.
FORKS.set_forkserver_preload(["finomw.engine.checkpoint", "finomw.testing.calls"])

STATE_SIZE = 1 << 22
NODE_ID = "ab" * 16


class SimulatedDirectory(NodeDirectory):
    """Paths of a node whose journal and control are simulated; ``boot`` is the machine's."""

    def __init__(self, home: Path, segment_size: int, boot: int = 1) -> None:
        super().__init__(home, NodeFile(FORMAT_VERSION, NODE_ID, 1, segment_size, STATE_SIZE))
        self.boot = boot

    def epoch(self) -> Epoch:
        return Epoch(self.boot.to_bytes(16, "little"), 1, 1)


class NodeDisk(SimulatedDisk):
    """A simulated disk; the files of checkpoints are real, as LMDB wants, and durable at once."""

    def fill(self, path: Path, write: Callable[[int], None]) -> None:
        self.step("fill", path)
        Files().fill(path, write)

    def append(self, path: Path, data: bytes) -> None:
        self.step("append", path)
        Files().append(path, data)

    def rename(self, source: Path, target: Path) -> None:
        self.step("rename", target)
        Files().rename(source, target)
        self.published(target)
        self.step("renamed", target)

    def unlink(self, path: Path) -> None:
        self.step("unlink", path)
        Files().unlink(path)

    published: Callable[[Path], None] = staticmethod(lambda path: None)


class Found(NamedTuple):
    """What recovery makes of an image."""

    records: list[StoredRecord]
    tail: Tail
    torn: bool


@contextmanager
def home() -> Iterator[Path]:
    """Make a directory in memory for LMDB and locks."""
    memory = Path("/dev/shm")
    path = Path(tempfile.mkdtemp(prefix="finomw-proof-", dir=memory if memory.is_dir() else None))
    try:
        yield path
    finally:
        shutil.rmtree(path)


def make_home(path: Path) -> Path:
    for folder in ("state", "workers", "checkpoints", "journal"):
        (path / folder).mkdir(parents=True)
    return path


@contextmanager
def deterministic(salts: Random) -> Iterator[None]:
    """Let salts and process ids be the seed's."""
    with (
        mock.patch.object(os, "urandom", salts.randbytes),
        mock.patch.object(os, "getpid", return_value=1),
    ):
        yield


def watermark(disk: SimulatedDisk, directory: NodeDirectory) -> Lsn:
    """Return what a start takes the control file's word for."""
    if not disk.exists(directory.control):
        return 0
    control = Control(disk, directory.control)
    return control.durable() if control.epoch() is not None else 0


def read_back(disk: SimulatedDisk, directory: NodeDirectory, start: Tail = START) -> Found:
    """Do what a start does with the journal alone: read it, and settle its end."""
    segments = directory.segments(disk)
    mark = watermark(disk, directory)
    reader = Reader(segments, start)
    records = list(reader)
    end = recovery.settle_end(segments, reader, mark)
    return Found(records, reader.tail, end.behind is not recovery.Behind.ZEROS)


def recover_journal(disk: SimulatedDisk, directory: NodeDirectory) -> Found:
    """Do all that a start does with the journal and the control file."""
    mark = watermark(disk, directory)
    control = Control(disk, directory.control)
    control.distrust()
    found = read_back(disk, directory)
    segments = directory.segments(disk)
    recovery.store_again(segments, mark, found.tail.end)
    control.reset(directory.epoch(), found.tail.end)
    return found


class WatchedWriter(Writer):
    """A writer that says what it stores, and gives some records an attachment."""

    def __init__(
        self, segments: Segments, attach: Callable[[], bytes], stored: Callable[[Encoded], None]
    ) -> None:
        super().__init__(segments)
        self._attach = attach
        self._stored = stored

    def encode(self, tail: Tail, durable: Lsn, body: bytes, attachment: bytes = b"") -> Encoded:
        return super().encode(tail, durable, body, attachment or self._attach())

    def store(self, record: Encoded) -> None:
        self._stored(record)
        super().store(record)


class Machine:
    """One boot of the node: the directory opened once, engines on it, and what they committed."""

    def __init__(self, disk: SimulatedDisk, directory: SimulatedDirectory, crew: Crew) -> None:
        self.disk = disk
        self.directory = directory
        self.crew = crew
        self.clock = ManualClock()
        self.committed: Callable[[Encoded], None] = lambda record: None
        self.stored: Callable[[Encoded], None] = lambda record: None
        self.attach: Callable[[], bytes] = bytes
        self._pending: Encoded | None = None
        self._opened = open_directory(directory, disk, BelowZero())
        self._write = self._opened.store.write
        self._opened.store.write = self._watched_write

    @property
    def opened(self) -> Opened:
        return self._opened

    @contextmanager
    def _watched_write(self) -> Iterator[Txn]:
        """Take LMDB's lock as simulated processes can, and note what is committed."""
        self.crew.take("write")
        try:
            self._pending = None
            with self._write() as txn:
                yield txn
                self.disk.step("commit", self.directory.state)
            if self._pending is not None:
                self.committed(self._pending)
        finally:
            self.crew.give_back("write")

    def _note(self, record: Encoded) -> None:
        self._pending = record
        self.stored(record)

    def engine(self) -> Engine:
        """Open an engine as another process would: its own mappings, its own locks."""
        engine = engine_on(
            self._opened._replace(
                segments=self.directory.segments(self.disk),
                control=Control(self.disk, self.directory.control),
            ),
            self.clock,
        )
        engine._writer = WatchedWriter(engine.segments, self.attach, self._note)
        return engine

    def close(self) -> None:
        """Let go of LMDB and the node."""
        self._opened.close()


def engine_on(opened: Opened, clock: ManualClock) -> Engine:
    """Construct an engine on a directory that is open already."""
    with mock.patch.multiple(
        engine_module,
        find=lambda path: opened.directory,
        open_directory=lambda *_: opened,
        Watchdog=lambda *_: mock.Mock(),
    ):
        return Engine(opened.directory.path, clock, Files(), BelowZero())


def leave(engine: Engine) -> None:
    """Free what the system frees of a killed process, but for what others share here."""
    if engine._worker is not None:
        engine._worker[1].close()
    engine._closed = True


def drop(engine: Engine) -> None:
    """Let go of a real engine as the system does of a killed process: nothing is flushed."""
    leave(engine)
    engine._watchdog.stop()
    engine._opened.close()


@contextmanager
def opened_image(disk: SimulatedDisk, of: SimulatedDirectory) -> Iterator[Engine]:
    """Open an image of a directory as a machine that has just booted does."""
    with home() as path, ExitStack() as undo:
        directory = SimulatedDirectory(make_home(path), of.node.segment_size, of.boot + 1)
        directory.journal, directory.control = of.journal, of.control
        for checkpoint in of.checkpoints.iterdir():
            shutil.copy(checkpoint, directory.checkpoints)
        opened = open_directory(directory, disk, BelowZero())
        engine = engine_on(opened, ManualClock())
        undo.callback(engine.close)
        yield engine
