"""A failed flush for real: ext4 on a loop device whose backing file has no room left.

The blocks of the journal that are still to be written are taken out of the backing file, and the
tmpfs under it is filled: so a flush fails like one on a thin-provisioned volume that is full. The
kernel then calls the lost pages clean and still shows what was stored. No worker may acknowledge
anything more, nobody may join, and a start must say what is on the disk: which is proved by looking
again after an unmount.
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import random
import signal
import struct
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from proving import Folder, ProofFailed, folder, main, options, until

# isort: split

import nodes
import workload
from kills import Life
from mounts import Mount, loop_ext4, small_tmpfs
from witness import Conserved, Sightings, check, retry_grants
from workload import Place, Seen, open_node

from finomw import limits
from finomw.engine.sweep import sweep
from finomw.errors import FlushFailed, RecordingFailed

TMPFS = 26 * limits.MIB
DISK = 24 * limits.MIB
STATE = 2 * limits.MIB
WORKERS = 3
workload.CHECKPOINT_EVERY = workload.PREPARE_EVERY = 10**9
"""Never: what finds no room for a new file fails too, but that is not final, nor this proof's."""
FIEMAP = 0xC020660B
PUNCH_AND_KEEP_SIZE = 3

_libc = ctypes.CDLL(None, use_errno=True)
_libc.fallocate.argtypes = (ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64)


@contextmanager
def one_page_at_a_time(mount: Mount) -> Iterator[None]:
    """Have the loop device write no more than a page at once.

    It takes it for a success when the backing file takes the first part of a longer write only:
    then the device would lie, which no journal survives, and which is not what is proved here.
    """
    setting = Path("/sys/block") / Path(mount.device).name / "queue" / "max_sectors_kb"
    before = setting.read_text()
    setting.write_text(str(limits.PAGE // limits.KIB))
    try:
        yield
    finally:
        setting.write_text(before)


class Full(Life):
    """A node on an ext4 whose backing file lies on a small tmpfs."""

    def __init__(self, case: Folder, tmpfs: Mount, mount: Mount) -> None:
        self.mount = mount
        [self.image] = tmpfs.path.glob("*/image")
        self.filler = tmpfs.path / "filler"
        super().__init__(case)

    def make(self) -> None:
        """Make the node."""
        self.place = Place(self.mount.path / "node", self.case.path / "seen")
        self.child(workload.make, self.place, STATE).result()

    def take_blocks(self) -> int:
        """Take the blocks out of the backing file that the journal will need; return the bytes."""
        os.sync()
        taken = 0
        image = os.open(self.image, os.O_RDWR)
        # Everything else has its room, ext4's own journal too: mkfs has given back what was free.
        os.posix_fallocate(image, 0, DISK)
        for segment in sorted((self.place.node / "journal").glob("*.seg")):
            used = segment.read_bytes().rstrip(b"\0")
            first = -(-len(used) // limits.PAGE)
            at, length = extent_at(segment, first * limits.PAGE)
            if _libc.fallocate(image, PUNCH_AND_KEEP_SIZE, at, length):
                raise OSError(ctypes.get_errno(), "a hole cannot be punched")
            taken += length
        os.close(image)
        return taken

    def fill(self) -> None:
        """Leave no room under the disk."""
        with self.filler.open("wb", buffering=0) as filler:
            for size in (limits.MIB, limits.PAGE):
                try:
                    while filler.write(bytes(size)) == size:
                        pass
                except OSError:
                    continue

    def remount(self) -> None:
        """Mount again: what is read then comes from the disk."""
        path = bytes(self.mount.path)
        until(lambda: _libc.umount(path) == 0, "the file system is unmounted")
        self.mount.mount()


def extent_at(path: Path, offset: int) -> tuple[int, int]:
    """Return where on its device a file goes on from ``offset``, and for how many bytes."""
    fd = os.open(path, os.O_RDONLY)
    try:
        asked = struct.pack("<QQIIII", offset, limits.SEGMENT_SIZE_MIN, 0, 0, 1, 0) + bytes(56)
        logical, start, length = struct.unpack_from("<QQQ", fcntl.ioctl(fd, FIEMAP, asked), 32)
    finally:
        os.close(fd)
    skipped = offset - logical
    return start + skipped, length - skipped


def work_until_failed(place: Place) -> None:
    """Be a worker; say when nothing can be recorded any more, and stay."""
    try:
        workload.work(place)
    except RecordingFailed:
        Seen(place).tell("failed", str(os.getpid()), 0)
        while True:
            signal.pause()


def open_must_fail(place: Place) -> bool:
    """Try to open; say whether that failed as it must."""
    try:
        open_node(place)
    except FlushFailed:
        return True
    return False


def restart(place: Place) -> tuple[Conserved, dict[str, object]]:
    """Open alone and compare; return what there was, and the whole state."""
    engine = open_node(place)
    sweep(engine)
    retry_grants(engine, place.seen)
    found = check(engine, place.seen)
    state = nodes.dump(engine)
    engine.flush()
    # As a crash would leave it: nothing is written by closing.
    nodes.drop(engine)
    return found, state


def look_again(place: Place) -> dict[str, object]:
    """Open what is on the disk; return the whole state."""
    place.node.joinpath("control").unlink()
    engine = open_node(place)
    return nodes.dump(engine)


def drop_cache(node: Path) -> None:
    """Have the kernel forget the pages that it calls clean."""
    for segment in (node / "journal").glob("*.seg"):
        fd = os.open(segment, os.O_RDONLY)
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(fd)


def one_case(life: Full, figures: Counter[str]) -> None:
    """Let a flush fail under load, and see what everybody does."""
    rng = life.case.random
    life.children = [life.child(work_until_failed, life.place) for _ in range(WORKERS)]
    life.progress(rng.randrange(100, 3_000))
    for child in life.children:
        os.kill(child.pid, signal.SIGSTOP)
        os.waitpid(child.pid, os.WUNTRACED)
    life.case.note(f"blocks for {life.take_blocks()} bytes taken")
    life.fill()
    for child in life.children:
        os.kill(child.pid, signal.SIGCONT)
    with life.alive_or_explain():
        until(lambda: life.place.seen.read_text().count("failed ") == WORKERS, "all have failed")
    lines = life.place.seen.read_text().splitlines()
    first = next(at for at, line in enumerate(lines) if line.startswith("failed "))
    later = [line for line in lines[first:] if not line.startswith("failed ")]
    # Who had just flushed well, when another failed, may still tell of that: once.
    if len(later) >= WORKERS:
        raise ProofFailed(f"told after a flush had failed: {later}")
    if not life.child(open_must_fail, life.place).result():
        raise ProofFailed("a process could join after a flush had failed")
    life.kill(life.children)
    # A start has to write what it cannot vouch for: on the full disk that fails, if there is any.
    failed = life.child(open_must_fail, life.place).result()
    life.case.note(f"a start on the full disk {'fails' if failed else 'finds nothing to write'}")
    figures["starts that failed"] += failed
    life.filler.unlink()
    if rng.random() < 0.5:
        life.case.note("the cache is dropped before the start")
        drop_cache(life.place.node)
        figures["cache dropped"] += 1
    found, state = life.child(restart, life.place).result()
    life.remount()
    if life.child(look_again, life.place).result() != state:
        raise ProofFailed("the disk says something else than the start did")
    figures["failed flushes"] += 1
    figures["seen"] += Sightings(life.place.seen).count
    figures["entries"] += found.entries


def proof() -> dict[str, object]:
    """Fail so many times, each on a disk of its own."""
    chosen = options(__doc__, 3)
    began = time.monotonic()
    figures: Counter[str] = Counter()
    rng = random.Random(chosen.seed)
    for _ in range(chosen.count):
        with folder("fsyncgate", str(rng.random())) as case, small_tmpfs(TMPFS) as tmpfs:
            before, tempfile.tempdir = tempfile.tempdir, str(tmpfs.path)
            try:
                with loop_ext4(DISK, limits.PAGE) as mount, one_page_at_a_time(mount):
                    one_case(Full(case, tmpfs, mount), figures)
            finally:
                tempfile.tempdir = before
    return {**figures, "seed": chosen.seed, "seconds": round(time.monotonic() - began)}


if __name__ == "__main__":
    main(proof)
