"""Power cuts for real: an ext4 on a loop device shut down under workers and their checkpoints.

Before the cut the kernel is made to write random stretches of the node's files, as it may at any
time. The shutdown then throws away whatever was not written. The file system is mounted again, and
a start has to find all that clients saw, under one of: a new boot; a state that was lost with its
memory file system; the same boot, as after a forced unmount. Some starts are cut off as well.
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import random
import shutil
import struct
import time
from collections import Counter
from contextlib import suppress
from typing import Any

from proving import Folder, ProofFailed, folder, main, options, until

# isort: split

import workload
from kills import Life, check_alone
from mounts import Mount, loop_ext4
from workload import Place, open_node

from finomw import limits
from finomw.engine import analysis, directory
from finomw.errors import DirectoryError, RecordingFailed

SHUTDOWN = 0x8004587D
"""``EXT4_IOC_SHUTDOWN``; its argument says whether ext4's own journal is written first."""
LOG_FLUSHED, LOG_LOST = 1, 2
WRITE = 7
"""``sync_file_range``: start writing, and wait for all that is being written."""
DISK = 48 * limits.MIB
STATE = 2 * limits.MIB
CUTS_PER_NODE = 6
WORKERS = (1, 3)
SAME_BOOT = "the same boot"
VARIANTS = ("a new boot", "the state is lost", SAME_BOOT)
SIGBUS = -7

_umount = ctypes.CDLL(None).umount
_sync_file_range = ctypes.CDLL(None).sync_file_range
_sync_file_range.argtypes = (ctypes.c_int, ctypes.c_int64, ctypes.c_int64, ctypes.c_uint)


class Boots:
    """Under which boot the product believes to be; forked children have the parent's."""

    number = 1


def _boot_id() -> bytes:
    return Boots.number.to_bytes(16, "big")


directory.boot_id = analysis.boot_id = _boot_id  # type: ignore[attr-defined]


class Disk(Life):
    """A node on a mounted file system; clients' sightings lie outside."""

    def __init__(self, case: Folder, mount: Mount, lost_state: bool) -> None:
        self.mount = mount
        self.lost_state = lost_state
        super().__init__(case)

    def make(self) -> None:
        """Make the node, its state behind a link where it is to be lost."""
        node = self.mount.path / "node"
        shutil.rmtree(node, ignore_errors=True)
        self.place = Place(node, self.case.path / "seen")
        self.child(workload.make, self.place, STATE).result()
        if self.lost_state:
            self.memory = self.case.path / "state"
            shutil.rmtree(node / "state")
            self.memory.mkdir()
            (node / "state").symlink_to(self.memory)

    def start(self, count: int) -> None:
        self.children += [self.child(work_until_failed, self.place) for _ in range(count)]

    def cut(self, variant: str, figures: Counter[str]) -> None:
        """Cut the power, end what ran, and mount again."""
        self.write_back()
        if variant == SAME_BOOT:
            self.write_believable()
        flag = LOG_LOST if self.case.random.random() < 0.8 else LOG_FLUSHED
        fd = os.open(self.mount.path, os.O_RDONLY | os.O_DIRECTORY)
        try:
            fcntl.ioctl(fd, SHUTDOWN, struct.pack("<I", flag))
        finally:
            os.close(fd)
        for child in self.children:
            child.kill()
        for child in self.children:
            status = child.wait()
            # A store into a page of a dead file system is a SIGBUS; the machine is gone anyway.
            if status not in (0, -9, SIGBUS):
                raise ProofFailed(f"{child.pid} ended with {status}:\n{self.log.read_text()}")
            figures[{0: "saw the flush fail", -9: "cut off", SIGBUS: "SIGBUS"}[status]] += 1
        self.children = []
        # Somebody who is only just gone may keep it busy for a moment.
        path = bytes(self.mount.path)
        until(lambda: _umount(path) == 0, "the file system is unmounted")
        self.mount.mount()
        figures["cuts"] += 1

    def write_back(self) -> None:
        """Have random stretches of the node's files written, as the kernel may."""
        rng = self.case.random
        files = [path for path in self.place.node.rglob("*") if path.suffix in (".seg", ".mdb")]
        files.append(self.place.node / "control")
        for path in rng.sample(files, rng.randint(0, len(files))):
            with suppress(FileNotFoundError), path.open("rb") as file:
                size = os.fstat(file.fileno()).st_size
                for _ in range(rng.randint(1, 3)):
                    start = rng.randrange(max(1, size)) & -limits.PAGE
                    length = rng.choice([1, 2, 8, 64]) * limits.PAGE
                    _sync_file_range(file.fileno(), start, length, WRITE)

    def write_believable(self) -> None:
        """Have the control file written, and many pages of the state, but not all.

        Then the next start finds the boot that it is under, and a state of pages old and new.
        """
        for name, share in (("control", 1.0), ("state/data.mdb", self.case.random.random())):
            with suppress(FileNotFoundError), (self.place.node / name).open("rb") as file:
                for start in range(0, os.fstat(file.fileno()).st_size, limits.PAGE):
                    if self.case.random.random() < share:
                        _sync_file_range(file.fileno(), start, limits.PAGE, WRITE)

    def lose(self, variant: str) -> None:
        """Bring about what a start finds after the cut."""
        if variant == "a new boot":
            Boots.number += 1
        elif variant == "the state is lost":
            shutil.rmtree(self.memory, ignore_errors=True)


def work_until_failed(place: Place) -> str:
    """Be a worker until killed, or until nothing can be recorded any more."""
    try:
        workload.work(place)
    except (RecordingFailed, DirectoryError, OSError) as error:
        return str(error)
    raise AssertionError("a worker ran out of work")


def start_only(place: Place) -> None:
    """Open, and so recover, until cut off."""
    with suppress(RecordingFailed, DirectoryError, OSError):
        open_node(place)


def one_node(disk: Disk, variant: str, workers: int, count: int, figures: Counter[str]) -> None:
    """Cut so many times under load, and compare after each."""
    rng = disk.case.random
    for _ in range(count):
        disk.case.note(f"cut under {workers} workers: {variant}")
        disk.start(workers)
        disk.progress(rng.randrange(1, 1_500 * workers))
        time.sleep(rng.uniform(0, 0.004))
        disk.cut(variant, figures)
        disk.lose(variant)
        while rng.random() < 0.2:
            disk.case.note("cut while it starts")
            disk.children.append(disk.child(start_only, disk.place))
            time.sleep(rng.uniform(0, 0.03))
            disk.cut(variant, figures)
            figures["cuts of a start"] += 1
            disk.lose(variant)
        disk.last = disk.child(check_alone, disk.place, [], rng.random() < 0.2).result()
        figures["compared"] += 1
        figures[variant] += 1
    figures["seen"] += disk.last.seen


def proof() -> dict[str, object]:
    """Cut in every variant in turn, with one worker and with several."""
    chosen = options(__doc__, 100, _add_options)
    variants = [chosen.variant] if chosen.variant else VARIANTS
    began = time.monotonic()
    figures: Counter[str] = Counter()
    rng = random.Random(chosen.seed)
    with loop_ext4(DISK) as mount:
        turn = 0
        while figures["compared"] < chosen.count:
            variant = variants[turn % len(variants)]
            share = min(CUTS_PER_NODE, chosen.count - figures["compared"])
            with folder("cuts", str(rng.random())) as case, _kept_disk(mount, case):
                disk = Disk(case, mount, variant == "the state is lost")
                one_node(disk, variant, WORKERS[turn % 2], share, figures)
            turn += 1
    return {**figures, "seed": chosen.seed, "seconds": round(time.monotonic() - began)}


class _kept_disk:
    """A block after which, when it fails, the node is copied from the disk to the case's folder."""

    def __init__(self, mount: Mount, case: Folder) -> None:
        self._mount = mount
        self._case = case

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is not None:
            # What lies there may not be readable; the case's own failure counts.
            with suppress(OSError):
                shutil.copytree(
                    self._mount.path / "node", self._case.path / "node-as-found", symlinks=True
                )


def _add_options(parser: Any) -> None:
    parser.add_argument("--variant", choices=VARIANTS, help="only this")


if __name__ == "__main__":
    main(proof)
