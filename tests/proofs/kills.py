"""SIGKILL: at random under load, at every named step, at every system call; one worker or all.

Each case kills, lets a survivor or a fresh process sweep, and compares what clients saw with the
ledger, to the micro. A share of the cases throws the state away as well, so that the journal alone
has to say the same. `--mode` runs one kind of case; a step or a stop can be named.
"""

from __future__ import annotations

import os
import random
import select
import time
from collections import Counter
from collections.abc import Callable
from typing import Any

from proving import PATIENCE, Child, Folder, ProofFailed, folder, main, options, until

# isort: split

import nodes
import steps as named
import workload
from stepping import Traced, be_traced
from witness import Conserved, Sightings, check, retry_grants
from workload import Place, open_node

from finomw import limits
from finomw.engine.sweep import sweep

STATE = 8 * limits.MIB
KILLS_PER_NODE = 8
COUNTS = (1, 4)
"""Workers of a node, in turn."""
UNDER_LOAD = {
    named.Needs.LOAD,
    named.Needs.ROLL,
    named.Needs.SEGMENT,
    named.Needs.CHECKPOINT,
}
"""Needs of steps that are reached while other workers work."""


class Life:
    """A node directory, its workers, and what their clients saw."""

    def __init__(self, case: Folder) -> None:
        self.case = case
        self.log = case.path / "log"
        self.children: list[Child] = []
        self.keeper: Child | None = None
        """Has the directory open and does nothing."""
        self.figures: Counter[str] = Counter()
        self.make()

    def make(self) -> None:
        """Make the node."""
        self.place = Place(self.case.path / "node", self.case.path / "seen")
        self.child(workload.make, self.place, STATE).result()

    def child(self, function: Callable[..., object], *args: object) -> Child:
        return Child(function, *args, log=self.log)

    def start(self, count: int) -> None:
        """Have this many more workers under load."""
        self.children += [self.child(workload.work, self.place) for _ in range(count)]

    def lines(self) -> int:
        return self.place.seen.stat().st_size if self.place.seen.exists() else 0

    def progress(self, size: int) -> None:
        """Wait until clients have seen that many bytes more; every worker must be running."""
        wanted = self.lines() + size
        with self.alive_or_explain():
            until(lambda: self.lines() >= wanted, "clients see something")

    def alive_or_explain(self) -> Any:
        return _Explained(self.children)

    def kill(self, victims: list[Child]) -> None:
        """Kill these at once, and wait until they are gone."""
        for child in victims:
            child.kill()
        for child in victims:
            if child.wait() != -9:
                raise ProofFailed(f"{child.pid} was not killed:\n{self.log.read_text()}")
        self.children = [child for child in self.children if child not in victims]
        self.figures["kills"] += 1

    def strand(self) -> None:
        """Have a worker die with open holds and in the middle of a flush."""
        if self.child(workload.strand, self.place).wait() != -9:
            raise ProofFailed(self.log.read_text())

    def check(self) -> None:
        """Compare; with nobody alive, sometimes rebuild the state from the journal, and again."""
        for child in self.children:
            child.check_runs() if child.status is not None else None
        alive = [child.pid for child in self.children]
        checker: Callable[..., object] = check_among if alive else check_alone
        by_survivors = bool(set(self.children) - {self.keeper}) and self.case.random.random() < 0.5
        rebuild = not alive and self.case.random.random() < 0.3
        with self.alive_or_explain():
            found = self.child(checker, self.place, alive, by_survivors or rebuild).result()
        self.figures["compared"] += 1
        self.figures["survivors swept"] += by_survivors
        self.figures["rebuilt"] += rebuild
        self.last = Conserved(*found)

    def end(self) -> Counter[str]:
        """Kill what is left and check once more; return what there was."""
        if self.children:
            self.kill(self.children)
            self.figures["kills"] -= 1
            self.check()
        self.figures["seen"] += self.last.seen
        self.figures["entries"] += self.last.entries
        return self.figures


class _Explained:
    """A block in which no worker may end by itself."""

    def __init__(self, children: list[Child]) -> None:
        self._children = children

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is not None:
            for child in self._children:
                child.check_runs()


def check_among(place: Place, alive: list[int], by_survivors: bool) -> Conserved:
    """Join the living; sweep, or wait until they have."""
    engine = open_node(place)
    if by_survivors:
        pids = Sightings(place.seen).workers
        dead = {worker for worker, pid in pids.items() if pid not in alive}

        def dead_hold() -> bool:
            with engine.store.read() as txn:
                return not dead.isdisjoint(engine.store.holds.workers(txn))

        until(lambda: not dead_hold(), "the survivors sweep")
    else:
        sweep(engine)
        retry_grants(engine, place.seen)
    found = check(engine, place.seen, alive)
    engine.close()
    return found


def check_alone(place: Place, _: list[int], rebuild: bool) -> Conserved:
    """Be the first to open again; the journal alone must say what the state says."""
    engine = open_node(place)
    sweep(engine)
    retry_grants(engine, place.seen)
    found = check(engine, place.seen)
    if not rebuild:
        engine.close()
        return found
    before = nodes.dump(engine)
    engine.close()
    place.node.joinpath("control").unlink()
    engine = open_node(place)
    if nodes.dump(engine) != before:
        raise ProofFailed("replay gives another state")
    return check(engine, place.seen)


def at_random(life: Life, workers: int) -> None:
    """Kill one or all at a random moment."""
    rng = life.case.random
    life.start(workers - len(life.children))
    life.progress(rng.randrange(1, 1_000 * workers))
    time.sleep(rng.uniform(0, 0.003))
    one = workers > 1 and rng.random() < 0.6
    victims = [rng.choice(life.children)] if one else life.children
    life.case.note(f"kill {[child.pid for child in victims]} at random")
    life.kill(victims)
    life.check()


def at_step(life: Life, workers: int, step: named.Step, one: bool) -> None:
    """Stop one worker at a step, and kill it there, alone or with all."""
    rng, needs = life.case.random, step.needs
    life.case.note(f"{step.name}: {workers} workers, {'one dies' if one else 'all die'}")
    if life.children:
        life.kill(life.children)
        life.figures["kills"] -= 1
    prepare(life, needs)
    nth = rng.randint(1, 30) if needs is named.Needs.LOAD else 1
    if step.name == "in the middle of a replay":
        nth = rng.randint(1, 7)
    told, tell = os.pipe()
    under_load = needs in UNDER_LOAD
    if under_load:
        life.start(workers - 1)
    victim = life.child(run_victim, life.place, step.name, nth, tell)
    life.children.append(victim)
    os.close(tell)
    with life.alive_or_explain():
        if not select.select([told], [], [], PATIENCE)[0] or not os.read(told, 1):
            victim.check_runs()
            raise ProofFailed(f"the step was not reached: {step.name}")
    os.close(told)
    if not under_load:
        life.start(workers - 1)
        time.sleep(rng.uniform(0, 0.02))
    life.kill([victim] if one else [*life.children])
    if one and workers > 1:
        life.progress(500)
    if life.keeper is not None:
        life.children.append(life.keeper)
    life.check()
    if life.keeper is not None:
        life.kill([life.keeper])
        life.keeper = None
        life.figures["kills"] -= 1
    life.figures["at steps"] += 1


def prepare(life: Life, needs: named.Needs) -> None:
    """Bring about what a step needs."""
    if needs is named.Needs.DEAD:
        # Who opens alone begins the slots anew: somebody has to be there already.
        ready, tell = os.pipe()
        life.keeper = life.child(keep_open, life.place, tell)
        os.close(tell)
        os.read(ready, 1)
        os.close(ready)
        life.strand()
    if needs is named.Needs.GHOST:
        told, tell = os.pipe()
        ghost = life.child(run_victim, life.place, "before the commit", 9, tell)
        os.close(tell)
        os.read(told, 1)
        os.close(told)
        ghost.kill()
        ghost.wait()
    if needs is named.Needs.REBUILD:
        life.place.node.joinpath("control").unlink()


def keep_open(place: Place, tell: int) -> None:
    """Have the directory open, and do nothing, until killed."""
    engine = open_node(place)
    os.write(tell, b"!")
    while True:
        time.sleep(PATIENCE)
        engine.health()


def run_victim(place: Place, step: str, nth: int, tell: int) -> None:
    """Be a worker that stops at a step."""
    [chosen] = [each for each in named.STEPS if each.name == step]
    chosen.install(named.Park(tell, nth))

    also = {
        named.Needs.SEGMENT: lambda engine: engine.segments.create(
            engine.segments.bases()[-1] + engine.segments.size
        ),
        named.Needs.DEAD: sweep,
        named.Needs.CHECKPOINT: workload.checkpoint,
    }
    workload.work(place, *([also[chosen.needs]] if chosen.needs in also else []))


def scenario(place: Place) -> None:
    """Live a worker's life in small, from opening to closing, under a tracer."""
    be_traced()
    engine = open_node(place)
    load = workload.Load(engine, workload.Seen(place))
    for number in range(1, 1 + len(workload.Ends)):
        load.call(number)
    load.owner(workload.REFUND_EVERY)
    sweep(engine)
    engine.segments.create(engine.segments.bases()[-1] + engine.segments.size)
    engine.close()


def count_stops(life: Life) -> int:
    """Return how many stops the scenario has, from a run to its end."""
    child = life.child(scenario, life.place)
    traced = Traced(child.pid)
    traced.run(10**9)
    child.ended(traced.status or 0)
    if traced.status:
        raise ProofFailed(f"the scenario ended with {traced.status}:\n{life.log.read_text()}")
    return traced.stops


def at_stop(life: Life, workers: int, stop: int, one: bool) -> None:
    """Kill at a stop of the scenario, alone or with all."""
    rng = life.case.random
    life.case.note(f"stop {stop}: {workers} workers, {'one dies' if one else 'all die'}")
    if workers == 1 and rng.random() < 0.5:
        life.strand()
    life.start(workers - 1 - len(life.children))
    if life.children:
        life.progress(1)
    child = life.child(scenario, life.place)
    traced = Traced(child.pid)
    reached = traced.run(stop)
    if not reached:
        if traced.status:
            raise ProofFailed(f"the scenario ended with {traced.status}:\n{life.log.read_text()}")
        child.ended(0)
        # Among others, who need no recovery, it has fewer.
        at_stop(life, workers, 1 + stop % traced.stops, one)
        return
    life.children.append(child)
    life.kill([child] if one else [*life.children])
    life.check()
    life.figures["at system calls"] += 1


def random_kills(count: int, seed: str) -> Counter[str]:
    """Kill at random."""
    figures: Counter[str] = Counter()
    for index in range(-(-count // KILLS_PER_NODE)):
        with folder("kills", f"{seed}-random-{index}") as case:
            life = Life(case)
            for _ in range(min(KILLS_PER_NODE, count - index * KILLS_PER_NODE)):
                at_random(life, COUNTS[index % 2])
            figures += life.end()
    return figures


def step_kills(count: int, seed: str, only: str = "") -> Counter[str]:
    """Kill at every named step in turn, in every way."""
    figures: Counter[str] = Counter()
    chosen = [step for step in named.STEPS if only in step.name]
    ways = [(1, False), (4, True), (4, False)]
    plan = [(step, ways[(turn + at) % 3]) for turn in range(3) for at, step in enumerate(chosen)]
    for start in range(0, count, KILLS_PER_NODE):
        with folder("kills", f"{seed}-steps-{start}") as case:
            life = Life(case)
            for at in range(start, min(start + KILLS_PER_NODE, count)):
                step, (workers, one) = plan[at % len(plan)]
                at_step(life, workers, step, one)
            figures += life.end()
    return figures


def stop_kills(count: int, seed: str, only: int = 0) -> Counter[str]:
    """Kill at every stop at a system call; a smaller count goes through them in larger strides."""
    figures: Counter[str] = Counter()
    with folder("kills", f"{seed}-stops") as case:
        stops = count_stops(Life(case))
    stride = max(1.0, stops / count)
    offset = random.Random(seed).random() * stride
    done = 0
    while done < count:
        workers, one = ((1, True), (4, True), (4, False))[done // KILLS_PER_NODE % 3]
        with folder("kills", f"{seed}-stops-{done}") as case:
            life = Life(case)
            for at in range(done, min(done + KILLS_PER_NODE, count)):
                stop = only or 1 + int(offset + at * stride) % stops
                at_stop(life, workers, stop, one)
            figures += life.end()
        done += KILLS_PER_NODE
    figures["stops"] = stops
    return figures


def main_proof() -> dict[str, object]:
    """Run a third of the cases in each mode."""
    chosen = options(__doc__, 300, add_options)
    began = time.monotonic()
    figures: Counter[str] = Counter()
    modes: dict[str, Callable[[int, str], Counter[str]]] = {
        "random": random_kills,
        "steps": lambda count, seed: step_kills(count, seed, chosen.step),
        "stops": lambda count, seed: stop_kills(count, seed, chosen.stop),
    }
    wanted = [chosen.mode] if chosen.mode else list(modes)
    for at, mode in enumerate(wanted):
        share = chosen.count // len(wanted) + (at < chosen.count % len(wanted))
        figures += modes[mode](share, str(chosen.seed))
    return {**figures, "seed": chosen.seed, "seconds": round(time.monotonic() - began)}


def add_options(parser: Any) -> None:
    parser.add_argument("--mode", choices=["random", "steps", "stops"], help="one kind of case")
    parser.add_argument("--step", default="", help="only steps that have this in their name")
    parser.add_argument("--stop", type=int, default=0, help="only this stop of the scenario")


if __name__ == "__main__":
    main(main_proof)
