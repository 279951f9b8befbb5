"""Every file operation of a node's whole life fails in turn: the N-th, N = 1, 2, … until none does.

Once and for good, with each error that a disk gives; afterwards the fault is mended and the node
starts again, from the page cache or, after a power cut, from what had been flushed. Whatever the
fault: one clear error, nothing half done, nothing acknowledged that is lost, nothing done twice.

    python tests/proofs/faults.py --count 10000 [--seed S]

tries one fault for each operation (those alone with ``--count 0``), then the others, then pairs.
"""

from __future__ import annotations

import errno
import itertools
import logging
import os
import random
import shutil
import signal
import tempfile
import traceback
from collections import Counter
from collections.abc import Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import NamedTuple

from lives import Life, live
from proving import ProofFailed, main, options
from system_calls import CALLS, SHORT, SystemCalls

from finomw.testing.files import FaultyFiles

FILE_KINDS = ("allocate", "map", "flush", "write", "rename", "unlink", "sync", "list")
SYSTEM_KINDS = (*CALLS, "mmap", "lmdb.open")
ERRORS = (errno.EIO, errno.ENOSPC, errno.EDQUOT)
PATIENCE_SECONDS = 20


class Fault(NamedTuple):
    """Which operation fails, and what comes after."""

    kind: str
    at: int
    error: int
    for_good: bool
    power_cut: bool

    def __str__(self) -> str:
        error = errno.errorcode.get(self.error, "short")
        how = "for good" if self.for_good else "once"
        after = "power cut" if self.power_cut else "restart"
        return f"{self.kind} {self.at} fails {how} with {error}, then a {after}"


class Outcome(NamedTuple):
    """What a life with faults came to: ``failure`` is empty where all was well."""

    failure: str
    told: frozenset[str]


class Hung(BaseException):
    """A life did not end."""


def memory() -> Path | None:
    """Return where files are quick: in memory, if there is such a place."""
    path = Path("/dev/shm")
    return path if path.is_dir() else None


def count_operations() -> Counter[str]:
    """Return how many operations of each kind a life without faults has."""
    files, calls = FaultyFiles(), SystemCalls()
    home = Path(tempfile.mkdtemp(prefix="finomw-faults-", dir=memory()))
    with calls.installed():
        life = Life(home / "node", files)
        live(life)
    shutil.rmtree(home)
    assert life.errors == []
    return files.counts + calls.counts


def every_fault(kind: str, at: int) -> Iterator[Fault]:
    """Yield the ``at``-th operation of a kind with each error, once and for good, and both ends."""
    for error, for_good, cut in itertools.product(
        (*ERRORS, SHORT) if kind == "pwrite" else ERRORS, (False, True), (False, True)
    ):
        yield Fault(kind, at, error, for_good, cut)


def in_order(counts: Counter[str], dice: random.Random) -> Iterator[tuple[Fault, ...]]:
    """Yield one fault for each operation of a life, then all the others, then pairs, for ever."""
    kinds = (*FILE_KINDS, *SYSTEM_KINDS)
    first, others = [], []
    for kind in kinds:
        for at in range(1, counts[kind] + 1):
            faults = list(every_fault(kind, at))
            dice.shuffle(faults)
            first.append(faults[0])
            others += faults[1:]
    dice.shuffle(others)
    every = first + others
    yield from ((fault,) for fault in every)
    while True:
        yield dice.choice(every), dice.choice(every)


def suffer(faults: tuple[Fault, ...]) -> Outcome:
    """Live with these faults, mend them, start again, and compare."""
    home = Path(tempfile.mkdtemp(prefix="finomw-faults-", dir=memory()))
    files, calls = FaultyFiles(), SystemCalls()
    life = Life(home / "node", files)
    failure = ""
    with calls.installed():
        for kind, at, error, for_good, _ in faults:
            (files if kind in FILE_KINDS else calls).fail(kind, at, for_good=for_good, error=error)
        signal.setitimer(signal.ITIMER_REAL, PATIENCE_SECONDS)
        try:
            live(life)
            files.mend()
            calls.mend()
            start_again(life, any(fault.power_cut for fault in faults))
        except (Exception, Hung):  # noqa: BLE001 - any other error than ours is what is looked for
            failure = traceback.format_exc()
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
    try:
        life.kill()
    finally:
        if failure:
            (home / "history.txt").write_text(_history(life, faults) + failure)
            failure = f"{'; '.join(map(str, faults))}: kept in {home}\n{failure}"
        else:
            shutil.rmtree(home)
    return Outcome(failure, frozenset(type(error).__name__ for error in life.errors))


def start_again(life: Life, power_cut: bool) -> None:
    """Start on a disk that works: all that was said is there, once, and the node goes on."""
    files = life.files
    assert isinstance(files, FaultyFiles)
    refused = len(life.errors)
    life.kill()
    if power_cut:
        files.power_cut()
    if not (life.path / "node.json").exists():
        assert life.acknowledged == 0
        assert not life.path.exists(), "half a node directory"
        life.make()
    for _ in range(2):
        life.open()
        assert life.errors[refused:] == [], life.errors[refused:]
        life.keep_house()
        life.meet(f"carol{life.acknowledged}", 40)
        life.call(f"carol{life.acknowledged - 2}", 30, 20, "y" * 9_000)
        life.close()
        assert life.errors[refused:] == [], life.errors[refused:]
        (life.path / "control").unlink()
    drafts = [str(path) for path in life.path.parent.rglob("*.draft")]
    assert drafts == [], f"left behind: {drafts}"


def _history(life: Life, faults: tuple[Fault, ...]) -> str:
    lines = [*map(str, faults), *(f"{type(e).__name__}: {e}" for e in life.errors)]
    lines.append(f"{len(life.kept) - 1} records, {life.acknowledged} acknowledged")
    return "\n".join(lines) + "\n\n"


def _prepare() -> None:
    """Make ready a process that only suffers."""
    logging.disable(logging.CRITICAL)

    def hung(*_: object) -> None:
        raise Hung

    signal.signal(signal.SIGALRM, hung)


def suffer_all(faults: Iterable[tuple[Fault, ...]]) -> dict[str, object]:
    """Live with each of these; return the figures. Raises `ProofFailed`."""
    lives = 0
    told: Counter[str] = Counter()
    failures = []
    context = get_context("forkserver")
    with ProcessPoolExecutor(os.cpu_count(), context, _prepare) as pool:
        for outcome in pool.map(suffer, faults, chunksize=8):
            lives += 1
            told.update(outcome.told or {"nothing"})
            if outcome.failure:
                failures.append(outcome.failure)
    if failures:
        raise ProofFailed("\n\n".join([f"{len(failures)} of {lives} lives", *failures]))
    return {"lives with faults": lives, "told": dict(sorted(told.items()))}


def proof() -> dict[str, object]:
    """Try ``--count`` faults."""
    chosen = options(__doc__, 10_000)
    counts = count_operations()
    faults = in_order(counts, random.Random(chosen.seed))
    figures: dict[str, object] = {"operations of a life": counts.total()}
    return figures | suffer_all(itertools.islice(faults, chosen.count or counts.total()))


if __name__ == "__main__":
    main(proof)
