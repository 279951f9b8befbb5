"""The control file: what the processes of one node tell each other through shared memory.

A header page, then one slot of 64 bytes a process that writes. All values are aligned unsigned
64-bit words, each stored and loaded by one instruction. The file need not survive anything: a
process that is alone makes it anew from what the disk says. Words of the header::

     0  magic                  4, 5  device and inode of the state directory
     1  version                6     failure flag: a flush failed, nobody may charge
     2, 3  boot id             7     durable LSN when the file was reset
                               8     slots in use (a high-water mark)
                               9     clean stop: the tail's end that the last one to close left
                              10     1 where the stop before this run was clean

Words of a slot::

     0  worker id, 0 when free       3  watermark: durable LSN this worker has published
     1  process id                   4  flush mark: LSN it is flushing up to, else 0
     2  process start time           5  write mark: not 0 while it may hold the write lock

The durable LSN is the maximum of all watermarks; each has one writer, so it never goes back. The
header's last 64 bytes are a slot too: that of whoever opens the directory under the start lock.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from finomw import limits
from finomw.errors import DirectoryError
from finomw.journal.files import Files
from finomw.types import Lsn, WorkerId

VERSION = 2
_MAGIC = int.from_bytes(b"finoctrl", "little")
_SLOT = 64
_SIZE = limits.PAGE + limits.SLOTS * _SLOT
_WORD = 8
_OPENER = -1
"""The index of the slot that lies before all others, at the header's end."""


class Epoch(NamedTuple):
    """Under which the control file and the page cache can be believed."""

    boot: bytes
    device: int
    inode: int


class Slot:
    """One process's words."""

    __slots__ = ("_at", "_file", "index")

    def __init__(self, control: Control, index: int) -> None:
        self._file = control.file
        self._at = limits.PAGE + index * _SLOT
        self.index = index

    def _get(self, word: int) -> int:
        return self._file.load_word(self._at + word * _WORD)

    def _set(self, word: int, value: int) -> None:
        self._file.store_word(self._at + word * _WORD, value)

    @property
    def worker(self) -> WorkerId:
        """The id of the worker that owns the slot, 0 when it is free."""
        return WorkerId(self._get(0))

    @property
    def pid(self) -> int:
        """The owner's process id."""
        return self._get(1)

    @property
    def started(self) -> int:
        """When the owner's process started, in clock ticks since boot."""
        return self._get(2)

    @property
    def write_mark(self) -> int:
        """When the owner was about to take the write lock (a monotonic time); 0: it is done."""
        return self._get(5)

    @property
    def flush_mark(self) -> Lsn:
        """The LSN that the owner is flushing up to, or 0."""
        return self._get(4)

    @flush_mark.setter
    def flush_mark(self, lsn: Lsn) -> None:
        self._set(4, lsn)

    def publish(self, lsn: Lsn) -> None:
        """Say that everything before ``lsn`` is durable."""
        self._set(3, lsn)

    def mark_write(self, at: int) -> None:
        """Say that the owner is about to take the write lock (a monotonic time), or 0: done."""
        self._set(5, at)

    def claim(self, worker: WorkerId, pid: int, started: int, durable: Lsn) -> None:
        """Take the slot over. The maximum may stand here, so it is stored again first."""
        self._set(3, durable)
        self._set(4, 0)
        self._set(5, 0)
        self._set(1, pid)
        self._set(2, started)
        self._set(0, worker)

    def free(self) -> None:
        """Give the slot back; its watermark stays."""
        self._set(0, 0)


class Control:
    """The mapped control file."""

    def __init__(self, files: Files, path: Path) -> None:
        if not files.exists(path):
            files.allocate(path, _SIZE, b"")
        self.file = files.map(path, _SIZE)
        version = self.file.load_word(_WORD)
        if version > VERSION:
            self.file.close()
            raise DirectoryError(f"{path}: version {version} is newer than this finomw ({VERSION})")

    def epoch(self) -> Epoch | None:
        """Return under which epoch the file was reset, ``None`` when it never was."""
        if self.file.load_word(0) != _MAGIC:
            return None
        load = self.file.load_word
        return Epoch(self.file.load(2 * _WORD, 16), load(4 * _WORD), load(5 * _WORD))

    def distrust(self) -> None:
        """Make the next start rebuild the state, should this one not get to its end.

        The watermark stays: what was durable must be found then too.
        """
        self.file.store(2 * _WORD, bytes(16))

    def demand(self, durable: Lsn) -> None:
        """Make the next start look for everything before an LSN, and be refused without it."""
        self.file.store_word(7 * _WORD, durable)

    def reset(self, epoch: Epoch, durable: Lsn, *, clean: bool = False) -> None:
        """Begin anew: no slots, no failure, everything before ``durable`` is on disk.

        ``clean`` says whether the stop before was clean.
        """
        self.file.store_word(0, 0)
        self.file.store(_WORD, bytes(_SIZE - _WORD))
        self.file.store_word(_WORD, VERSION)
        self.file.store(2 * _WORD, epoch.boot)
        self.file.store_word(4 * _WORD, epoch.device)
        self.file.store_word(5 * _WORD, epoch.inode)
        self.file.store_word(7 * _WORD, durable)
        self.file.store_word(10 * _WORD, int(clean))
        self.file.store_word(0, _MAGIC)

    @property
    def clean_stop(self) -> Lsn:
        """The end of the journal that a clean stop left, 0 without one; every start clears it."""
        return self.file.load_word(9 * _WORD)

    def stop_clean(self, end: Lsn) -> None:
        """Say that nobody is left, everything is flushed, and the journal ends here."""
        self.file.store_word(9 * _WORD, end)

    @property
    def started_clean(self) -> bool:
        """Whether the stop before this run was clean."""
        return self.file.load_word(10 * _WORD) != 0

    @property
    def failed(self) -> bool:
        """Whether a flush failed somewhere: nobody may charge until a restart."""
        return self.file.load_word(6 * _WORD) != 0

    def fail(self) -> None:
        """Set the failure flag, for every process."""
        self.file.store_word(6 * _WORD, 1)

    def durable(self) -> Lsn:
        """Return the durable LSN: the highest watermark of all."""
        load = self.file.load_word
        highest = load(7 * _WORD)
        first = limits.PAGE + 3 * _WORD
        for at in range(first, first + self._slots_used() * _SLOT, _SLOT):
            mark = load(at)
            if mark > highest:
                highest = mark
        return highest

    def slots(self) -> list[Slot]:
        """Return the slots that are or were in use."""
        return [Slot(self, index) for index in range(self._slots_used())]

    def opener(self) -> Slot:
        """Return the slot of who opens the directory, under the start lock: no worker's yet."""
        return Slot(self, _OPENER)

    def add_slot(self) -> Slot:
        """Return a slot never used before; raises `DirectoryError` when there is none."""
        index = self.file.load_word(8 * _WORD)
        if index >= limits.SLOTS:
            raise DirectoryError(f"more than {limits.SLOTS} processes write to this node directory")
        self.file.store_word(8 * _WORD, index + 1)
        return Slot(self, index)

    def _slots_used(self) -> int:
        """Return how many slots are or were in use; raises `DirectoryError` for a damaged file."""
        used = self.file.load_word(8 * _WORD)
        if used > limits.SLOTS:
            raise DirectoryError(
                f"{self.file.path}: damaged: it says that {used} slots of {limits.SLOTS} are in "
                "use; stop every process that uses this directory, then move the file away"
            )
        return used

    def close(self) -> None:
        """Unmap."""
        self.file.close()
