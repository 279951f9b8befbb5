"""Recovery interrupted: cut at every operation of a recovery, recover again, and find the same.

On images of the simulated disk, where a cut leaves whatever the disk could hold; and on a real
directory, where the process that opens it is killed at each operation of the files seam, with LMDB
half rebuilt.
"""

from __future__ import annotations

import argparse
import itertools
import logging
import os
import secrets
import shutil
import signal
import time
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path
from random import Random
from typing import NamedTuple

import histories
import worlds
from histories import History, newest
from judges import Broken

from finomw import limits
from finomw.engine import charge
from finomw.engine.analysis import dry_run
from finomw.engine.checkpoint import make_checkpoint
from finomw.engine.customers import add_customer
from finomw.engine.directory import create, find
from finomw.engine.engine import Engine
from finomw.engine.grants import grant
from finomw.engine.keys import hash_token
from finomw.engine.policy import BelowZero
from finomw.errors import FinomwError
from finomw.journal.control import Control
from finomw.journal.files import Files
from finomw.journal.recovery import Outcome
from finomw.testing.clock import ManualClock
from finomw.testing.disk import SimulatedDisk
from finomw.testing.fatal import Fatal
from finomw.types import CustomerId, OnCrash, PlanName, RouteName

IMAGES_A_MOMENT = 3
CUTS_A_STEP = 2
BATCH = 4
"""Histories at a time."""


class Tally(NamedTuple):
    """What was tried."""

    recoveries: int = 0
    cuts: int = 0

    def plus(self, other: Tally) -> Tally:
        return Tally(self.recoveries + other.recoveries, self.cuts + other.cuts)


class InterruptedHistory(History):
    """A history whose images are recovered again and again."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed, IMAGES_A_MOMENT, None, lambda drawn: drawn)
        self.interrupted = Tally()

    def judge_image(self, image: SimulatedDisk, kind: str) -> None:
        """Recover an image that has a torn tail, and cut that at every step."""
        if not self.read(image.image(newest)[0]).torn:
            return
        again, _ = image.image(newest)
        expected = self._recover(again)
        again.tearing = Random(f"tearing cuts {self.seed}")
        disk, _ = image.image(newest)

        def cut(step: str, path: Path) -> None:
            resume, disk.step = disk.step, histories.let_pass
            for _ in range(CUTS_A_STEP):
                left, _ = disk.image(self.picker(self.dice))
                self.last_image = left
                found = self._recover(left)
                if found != expected:
                    raise Broken(
                        f"cut at {step} of {path.name}, a recovery ends at {found.tail}, not at "
                        f"{expected.tail}"
                    )
                self.interrupted = self.interrupted.plus(Tally(cuts=1))
            disk.step = resume

        disk.step = cut
        self._recover(disk)
        if self.read(disk.image(newest)[0]).torn:
            raise Broken("a recovery left a torn tail")
        self.interrupted = self.interrupted.plus(Tally(recoveries=1))

    def _recover(self, disk: SimulatedDisk) -> worlds.Found:
        try:
            return worlds.recover_journal(disk, self.directory)._replace(torn=True)
        except FinomwError as error:
            raise Broken(f"an interrupted recovery is refused: {error}") from error


def play(seed: int, keep: Path) -> Tally:
    """Cut recoveries in the history of a seed; raises `Broken`, and keeps what broke."""
    logging.disable(logging.CRITICAL)
    history = InterruptedHistory(seed)
    histories.keeping(history, keep / str(seed), history.play)
    return history.interrupted


def run(seeds: Iterable[int], keep: Path, count: int) -> Tally:
    """Play histories on all processors until there were ``count`` cuts."""
    total, left = Tally(), iter(seeds)
    with worlds.FORKS.Pool() as pool:
        while total.cuts < count:
            for tally in pool.imap(partial(play, keep=keep), itertools.islice(left, BATCH)):
                total = total.plus(tally)
    return total


CUSTOMER = CustomerId("ann")
SEGMENT = limits.SEGMENT_SIZE_MIN


def make_node(path: Path, *, checkpoint: bool) -> None:
    """Make a directory whose last worker died with open holds, and whose tail is torn."""
    create(path, SEGMENT, 1 << 20)
    engine = Engine(path, ManualClock(), Files(), BelowZero())
    add_customer(engine, CUSTOMER, PlanName("default"))
    key = hash_token("fino_proof")
    for number in range(60):
        grant(engine, CUSTOMER, 1000, "proof", f"{number}", "n" * 900)
        request = charge.HoldRequest(
            CUSTOMER, key, RouteName("r"), 7, {"x": 7}, 0, OnCrash.RELEASE, "v1"
        )
        held = charge.hold(engine, request)
        if number % 3 and isinstance(held, charge.Held):
            charge.release(engine, held.hold)
        if checkpoint and number == 30:
            make_checkpoint(engine)
    end = engine.tail()
    worlds.drop(engine)
    with (path / "journal" / f"{end - end % SEGMENT:016x}.seg").open("r+b") as file:
        file.seek(end % SEGMENT)
        file.write(b"torn" * 300)


def dump(path: Path) -> object:
    """Open a directory and return what its state says."""
    engine = Engine(path, ManualClock(), Files(), BelowZero())
    store = engine.store
    with store.read() as txn:
        said = (
            store.meta.tail(txn),
            store.meta.last_worker(txn),
            list(store.accounts.items(txn)),
            list(store.ledger.items(txn)),
            list(store.holds.items(txn)),
            list(store.holds.ended(txn)),
        )
    worlds.drop(engine)
    return said


def _open_until(path: Path, at: int) -> None:
    """Open a directory in this process, and die at an operation."""
    logging.disable(logging.CRITICAL)
    worlds.drop(Engine(path, ManualClock(), Fatal(at), BelowZero()))
    os._exit(0)


def _lose_control(path: Path) -> None:
    (path / "control").unlink()


def _fail(path: Path) -> None:
    control = Control(Files(), path / "control")
    control.fail()
    control.close()


WOUNDS: dict[str, Callable[[Path], None]] = {
    "control lost": _lose_control,
    "flush failed": _fail,
    "state lost": lambda path: shutil.rmtree(path / "state"),
    "nothing": lambda path: None,
}


def _copy(whole: Path, path: Path) -> None:
    """Copy a directory, and let the control file take the copied state for the one it knows."""
    shutil.copytree(whole, path)
    if (path / "control").exists() and (path / "state").exists():
        epoch = find(path).epoch()
        control = Control(Files(), path / "control")
        control.file.store_word(4 * 8, epoch.device)
        control.file.store_word(5 * 8, epoch.inode)
        control.close()


def kill_openings(folder: Path) -> Iterator[str]:
    """Kill the opening of real directories at each operation; yield what each was, once opened.

    Raises `Broken` where what is opened afterwards is not what an opening without a kill finds.
    """
    cases = [(False, wound) for wound in WOUNDS] + [(True, "control lost")]
    for checkpoint, wound in cases:
        whole = folder / f"{wound} {checkpoint}"
        make_node(whole, checkpoint=checkpoint)
        WOUNDS[wound](whole)
        path = folder / "undisturbed"
        _copy(whole, path)
        goes_on = dry_run(path).outcome is Outcome.GO_ON
        if goes_on is not (wound == "nothing"):
            raise Broken(f"{path}: this start does not do what it is here for")
        expected = dump(path)
        shutil.rmtree(path)
        for at in itertools.count(1):
            path = folder / f"{wound} {checkpoint} {at}"
            _copy(whole, path)
            child = worlds.FORKS.Process(target=_open_until, args=(path, at))
            child.start()
            child.join()
            if dump(path) != expected:
                raise Broken(f"{path}: killed at operation {at}, and then opened, it differs")
            shutil.rmtree(path)
            if child.exitcode == 0:
                break
            if child.exitcode != -signal.SIGKILL:
                raise Broken(f"{path}: the opening ended with {child.exitcode}")
            yield f"{wound}, operation {at}"
        shutil.rmtree(whole)


def figures(tally: Tally, kills: int, seconds: float) -> str:
    """Say what was tried, in one line."""
    return (
        f"recovery interrupted: {tally.cuts:,} cuts in {tally.recoveries:,} recoveries of images "
        f"with a torn tail, {kills:,} kills in openings of real directories; each recovered the "
        f"same; {seconds:.0f} s"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=200_000, help="how many cuts")
    parser.add_argument("--seed", type=int, default=secrets.randbelow(2**32), help="the first seed")
    parser.add_argument("--keep", type=Path, default=Path("recovery-cuts"), help="for what breaks")
    options = parser.parse_args()
    logging.disable(logging.CRITICAL)  # each start that recovers says so
    print(f"seeds from {options.seed}", flush=True)
    began = time.monotonic()
    tally = run(itertools.count(options.seed), options.keep, options.count)
    options.keep.mkdir(exist_ok=True)
    kills = sum(1 for _ in kill_openings(options.keep))
    print(figures(tally, kills, time.monotonic() - began))


if __name__ == "__main__":
    main()
