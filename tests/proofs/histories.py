"""Histories: what several workers do to one node, with kills, failed flushes and restarts.

Everything is drawn from a seed, the parameters too: sizes, boundaries, how often processes take
turns, die, and what the disk writes whole. At any step images of what the disk could hold are
taken and judged.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from random import Random

import judges
import worlds
from crew import Crew, Process
from judges import Broken
from swarm import Tally, Tune, draw

from finomw import limits
from finomw.engine import charge, records
from finomw.engine.checkpoint import make_checkpoint
from finomw.engine.engine import Engine
from finomw.engine.keys import hash_token
from finomw.engine.sweep import sweep
from finomw.errors import JournalDamaged, NotFound, RecordingFailed
from finomw.journal import recovery
from finomw.journal.format import START, Tail, record_size
from finomw.money.account import After
from finomw.store.env import Txn
from finomw.testing.disk import SECTOR, SimulatedDisk, Version
from finomw.types import (
    CustomerId,
    HoldId,
    OnCrash,
    PlanName,
    Refusal,
    RouteName,
    UsageStatus,
)

CUSTOMERS = [CustomerId("ann"), CustomerId("bob")]
KEY = hash_token("fino_proof")
BUFFER = 50
BOOKS_EACH = 6
"""How many recovered journals of one history are opened, replayed and swept."""


class History:
    """One history of one node, played from a seed."""

    def __init__(
        self, seed: int, images: int, old_life: dict[str, bytes] | None, tune: Tune
    ) -> None:
        self.seed = seed
        self.rng = Random(f"history {seed}")
        self.parameters = tune(draw(self.rng))
        self.tally = Tally(histories=1)
        self.truth = judges.Truth()
        self.log: list[str] = []
        self.directory: worlds.SimulatedDirectory
        self.disk: SimulatedDisk = worlds.NodeDisk(self.parameters.unit, self._tearing())
        self.disk.published = self._published
        if old_life is not None:
            lives = old_life
            self.disk.old_life = lambda path: lives.get(path.name, b"")
        self._salts = Random(f"salts {seed} {old_life is None}")
        self.dice = Random(f"images {seed}")
        self._images = images
        self._moments = 0
        self._judged: set[tuple[int, int]] = set()
        self._grants: list[records.Grant] = []
        self._given = 0
        self._failed = False
        self._untold = False
        self._lossless = False
        self._machine: worlds.Machine | None = None
        self._crew = Crew(self.rng, self.parameters.switching)
        self.last_image: SimulatedDisk | None = None

    def _tearing(self) -> Random | None:
        return Random(f"tearing {self.seed}") if self.parameters.tearing else None

    def play(self) -> Tally:
        """Play the history; raises `Broken`."""
        with worlds.deterministic(self._salts), worlds.home() as home:
            self.directory = worlds.SimulatedDirectory(
                worlds.make_home(home), self.parameters.segment_size
            )
            segments = self.directory.segments(self.disk)
            segments.create(0)
            segments.create(self.parameters.segment_size)
            self.disk.step = self._step
            self._boot()
            for _ in range(self.parameters.restarts):
                self._restart()
                self._boot()
        return self.tally._replace(records=len(self.truth.committed))

    def journal(self) -> dict[str, bytes]:
        """Return the journal's files, for a later life to be made of."""
        segments = self.directory.segments(self.disk)
        paths = [segments.path(base) for base in segments.bases()]
        return {path.name: self.disk.read(path) for path in paths}

    def _boot(self) -> None:
        """Open the node and let workers work until enough is recorded, or all are gone."""
        self._crew = Crew(self.rng, self.parameters.switching)
        with ExitStack() as undo:
            machine = worlds.Machine(self.disk, self.directory, self._crew)
            undo.callback(machine.close)
            self._machine = machine
            self._go_on(machine)
            machine.committed = self.truth.commit
            machine.stored = self.truth.store
            machine.attach = self._attachment
            self._failed = False
            self._enough = len(self.truth.committed) + self.parameters.records
            for _ in range(self.parameters.workers):
                self._crew.start(self._work)
            self._crew.run()
        self._machine = None

    def _restart(self) -> None:
        """Start again after everybody died: on what processes see, or on what the disk has."""
        truth = self.truth
        truth.durable = max(truth.durable, worlds.watermark(self.disk, self.directory))
        self._lossless = not self._failed and self.rng.random() < 0.5
        if self._lossless or self.rng.random() < 0.5:
            self.log.append("everybody is killed")
            if self._failed and self.rng.random() < 0.5:
                self.disk.evict(self.rng)
            return
        self.log.append("the power is cut")
        self._lossless = False
        self.disk, _ = self.disk.image(self.picker(self.rng))
        self.disk.published = self._published
        if self.rng.random() < 0.5:
            self.disk.remove(self.directory.control)
        self.directory.boot += 1
        found = self.read(self.disk.image(newest)[0]).records
        truth.judge(found)
        truth.recovered(found)
        truth.durable = found[-1].end if found else 0
        self.disk.tearing = self._tearing()
        self.disk.step = self._step

    def _go_on(self, machine: worlds.Machine) -> None:
        """Take what a start has recovered for the truth; its state must be at the same place.

        Where only processes died, nothing that was committed may be missing.
        """
        found = self.read(self.disk.image(newest)[0])
        if self._lossless:
            self.truth.durable = self.truth.committed[-1].end if self.truth.committed else 0
        self.truth.judge(found.records)
        self.truth.recovered(found.records)
        if machine.opened.store.tail() != found.tail:
            raise Broken(f"the state is at {machine.opened.store.tail()}, the log at {found.tail}")

    def _work(self, process: Process) -> None:
        """Be a worker until it dies, cannot record, or enough is recorded."""
        assert self._machine is not None
        engine = self._machine.engine()
        holds: list[tuple[HoldId, int]] = []
        try:
            self._crew.take("start")
            try:
                worker = engine.worker
            finally:
                self._crew.give_back("start")
            while len(self.truth.committed) < self._enough:
                self._act(engine, holds)
            self.log.append(f"worker {worker} stops")
        except RecordingFailed as error:
            self._failed = True
            self.log.append(f"a worker cannot record: {error}")
        finally:
            worlds.leave(engine)
            if process.dead and not self._crew.ending:
                self._crew.start(self._work)

    def _act(self, engine: Engine, holds: list[tuple[HoldId, int]]) -> None:
        """Do one thing."""
        rng, kind = self.rng, self.rng.random()
        if kind < self.parameters.flushing:
            self.log.append(f"worker {engine.worker} flushes {engine.flush()}")
        elif kind < self.parameters.flushing + 0.03:
            sweep(engine)
        elif kind < self.parameters.flushing + 0.06:
            engine.prepare_next_segment()
        elif kind < self.parameters.flushing + 0.06 + self.parameters.checkpointing:
            self._checkpoint(engine)
        elif holds and rng.random() < 0.5:
            self._end(engine, *holds.pop(rng.randrange(len(holds))))
        elif rng.random() >= self.parameters.holding:
            self._grant(engine)
        else:
            self._hold(engine, holds)

    def _grant(self, engine: Engine) -> None:
        """Give credit, sometimes again, in a record that may end at a boundary."""
        rng, customer = self.rng, self.rng.choice(CUSTOMERS)
        given = rng.choice(self._grants) if self._grants and rng.random() < 0.15 else None
        self._given += 1
        number = self._given
        align = rng.random() < self.parameters.aligning
        boundary = rng.choice([SECTOR, limits.PAGE, self.parameters.segment_size])
        short_of = rng.choice([0, 0, 0, 104, 208])
        note = "n" * rng.randint(0, self.parameters.note_max)
        made: list[records.Grant] = []

        def decide(txn: Txn) -> records.AnyCommand:
            now = engine.clock.now()
            to = customer if given is None else given.customer
            if engine.store.accounts.get(txn, to) is None:
                return records.AddCustomer(now, to, PlanName("default"), "", None)
            if given is not None:
                return given
            command = records.Grant(now, customer, 100 + number, "proof", f"{number}", note)
            if align:
                room = -engine.store.meta.tail(txn).end % boundary
                command = _padded(command, room - short_of)
            made.append(command)
            return command

        done = engine.decide(decide)
        self._grants += made[-1:]
        self.log.append(f"worker {engine.worker} grants {customer}: {done}")

    def _hold(self, engine: Engine, holds: list[tuple[HoldId, int]]) -> None:
        rng = self.rng
        amount = rng.randint(0, 120)
        flat = rng.random() < 0.3
        request = charge.HoldRequest(
            rng.choice(CUSTOMERS),
            KEY,
            RouteName("r" * rng.randint(1, 1 + self.parameters.note_max)),
            amount,
            {"x": amount},
            BUFFER,
            rng.choice(list(OnCrash)),
            "v1",
            settle=(lambda counts, used: amount) if flat else None,
        )
        done = charge.hold(engine, request)
        self.log.append(f"worker {engine.worker} holds {amount}: {done}")
        if isinstance(done, Refusal):
            return
        holds.append((done.hold, amount))
        if not flat and rng.random() < 0.3:
            charge.start(engine, done)

    def _end(self, engine: Engine, hold: HoldId, amount: int) -> None:
        """Settle or release an own hold, which nobody else may have ended."""
        rng = self.rng
        note = "s" * rng.randint(0, self.parameters.note_max)
        if rng.random() < 0.3:
            command: records.AnyCommand = records.Release(engine.clock.now(), hold, note)
        else:
            used, known = rng.randint(0, amount + 20), UsageStatus.KNOWN
            command = records.Settle(engine.clock.now(), hold, used, {"x": used}, known, note)
        try:
            done = engine.execute(command)
        except NotFound as error:
            raise Broken(f"a living worker's hold was ended: {error}") from error
        self.log.append(f"worker {engine.worker} ends {hold}: {done}")

    def _checkpoint(self, engine: Engine) -> None:
        """Make a checkpoint; one process at a time does."""
        self._crew.take("checkpoint")
        try:
            made = make_checkpoint(engine)
        finally:
            self._crew.give_back("checkpoint")
        self.log.append(f"worker {engine.worker} made {made.path.name}")

    def _published(self, path: Path) -> None:
        """Note that a start may go on from this checkpoint: the journal must reach it."""
        self.truth.durable = max(self.truth.durable, int(path.stem, 16))

    def _attachment(self) -> bytes:
        if self.rng.random() < self.parameters.attaching:
            return self.rng.randbytes(self.rng.randint(1, 900))
        return b""

    def _step(self, kind: str, path: Path) -> None:
        """Before every operation: take images, die, or let others run."""
        process = self._crew.current
        if process is not None and process.dead:
            self._crew.step()
        if self._images and self.dice.random() < 0.08:
            self._take_images(kind)
        if process is None:
            return
        # Dying where a record is stored and not committed, or a file named, but not for good.
        dying = {"commit": self.parameters.halfway, "sync": self.parameters.unnamed}
        if self.rng.random() < dying.get(kind, self.parameters.dying):
            self.log.append(f"killed at {kind} of {path.name}")
            self.tally = self.tally._replace(killed=self.tally.killed + 1)
            self._crew.kill()
        if kind == "flush" and self.rng.random() < self.parameters.failing:
            self.log.append("the disk refuses a flush")
            self.disk.fail_flush()
            self._failed = self._untold = True
        if kind == "flushed" and self._untold:
            self._untold = False
            if self.rng.random() < 0.5:
                self.log.append("killed when told of a failed flush")
                self._crew.kill()
        if self._failed and self.rng.random() < 0.02:
            self.disk.evict(self.rng)
        self._crew.step()

    def _take_images(self, kind: str) -> None:
        """Judge some of what a power cut now could leave."""
        truth = self.truth
        truth.durable = max(truth.durable, worlds.watermark(self.disk, self.directory))
        step, self.disk.step = self.disk.step, let_pass
        try:
            tried: set[tuple[int, ...]] = set()
            for _ in range(self._images):
                image, picked = self.disk.image(self.picker(self.dice))
                if picked in tried:
                    continue
                tried.add(picked)
                if self.dice.random() < 0.5:
                    image.remove(self.directory.control)
                self.last_image = image
                self.judge_image(image, kind)
        finally:
            self.disk.step = step

    def judge_image(self, image: SimulatedDisk, kind: str) -> None:
        start = self.truth.checkpoint(self.dice)
        found = self.read(image, start)
        ghosts = self.truth.judge(found.records, start)
        count = self.tally
        self.tally = count._replace(
            images=count.images + 1,
            ghosts=count.ghosts + ghosts,
            torn=count.torn + found.torn,
        )
        journal = (found.tail.lsn, found.tail.crc)
        if journal not in self._judged and len(self._judged) < BOOKS_EACH:
            self._judged.add(journal)
            self.tally = self.tally._replace(books=count.books + 1)
            judges.judge_books(image, self.directory)

    def read(self, image: SimulatedDisk, start: Tail = START) -> worlds.Found:
        if not recovery.has_record(self.directory.segments(image), start):
            raise Broken(f"the record at LSN {start.lsn}, which was durable, is lost")
        try:
            return worlds.read_back(image, self.directory, start)
        except JournalDamaged as error:
            raise Broken(f"the journal is refused: {error}") from error

    def picker(self, dice: Random) -> Callable[[list[Version]], int]:
        """Return a way to pick versions: any, the oldest or the newest, or mostly one of these."""
        way = dice.randrange(4)
        if way == 0:
            return lambda versions: dice.randrange(len(versions))
        if way == 1:
            return lambda versions: dice.choice((0, len(versions) - 1))
        mostly, rare = (0, -1) if way == 2 else (-1, 0)
        return lambda versions: (mostly if dice.random() < 0.8 else rare) % len(versions)


def _padded(command: records.Grant, room: int) -> records.Grant:
    """Lengthen a note so that the record takes ``room`` bytes, where that is possible."""
    result = After(2**20, 2**20, None)
    note = 0
    while note < limits.NOTE_BYTES:
        padded = records.Grant(
            command.at,
            command.customer,
            command.amount,
            command.source,
            command.source_id,
            "n" * note,
        )
        size = record_size(len(records.encode(padded, result)), 0)
        if size >= room:
            return padded
        note += max(1, room - size)
    return command


def newest(versions: list[Version]) -> int:
    return len(versions) - 1


def let_pass(kind: str, path: Path) -> None:
    """Let operations on images pass."""


def play(seed: int, images: int, keep: Path, tune: Tune = lambda drawn: drawn) -> Tally:
    """Play the history of a seed with up to so many images a moment.

    ``tune`` may change its parameters. What broke is kept in ``keep``: the image and the history.
    Raises `Broken`.
    """
    old_life = None
    first = History(seed, 0, None, tune)
    if first.parameters.recycled:
        keeping(first, keep, first.play)
        old_life = first.journal()
    history = History(seed, images, old_life, tune)
    return keeping(history, keep, history.play)


def keeping(history: History, keep: Path, play: Callable[[], Tally]) -> Tally:
    """Play, and keep the image and the history of what breaks; raises `Broken` with the seed."""
    try:
        return play()
    except Exception as error:
        _keep(history, keep, error)
        raise Broken(f"seed {history.seed}: {error!r}; the image is in {keep}") from error


def _keep(history: History, keep: Path, error: Exception) -> None:
    """Write down what is needed to look at it."""
    keep.mkdir(parents=True, exist_ok=True)
    story = [f"seed {history.seed}", str(history.parameters), *history.log, repr(error)]
    (keep / "history.txt").write_text("\n".join(story) + "\n")
    image, journal = history.last_image, history.directory.journal
    for name in image.names(journal) if image else ():
        (keep / name).write_bytes(image.read(journal / name))
