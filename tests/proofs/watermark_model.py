"""The watermark protocol between processes, as a model that is explored completely.

Two workers and a process that opens the directory later append and flush. Every step stands for
what ``journal/flush.py``, ``journal/workers.py`` and the engine do between two moments at which
another process can see a difference; between any two of them others go on, for as long as they
like (so a process may be stopped anywhere), or the process is killed. The disk may refuse a page,
and the kernel may let go of clean pages. It behaves as Linux does since 4.13: pages that a failed
write lost count as clean, and the error is told once to every descriptor that was open then; to a
later one only if nobody was told yet.

Everything that can be reached is looked at. The durable watermark never passes what is on disk;
nobody whose flush ended after the failure flag was set publishes; and from every state without a
failure, whoever lives makes its record durable by itself, wherever the others are stopped.
"""

from __future__ import annotations

import argparse
import gc
import time
from collections import deque
from collections.abc import Iterator
from typing import NamedTuple

_SOLO_MAX = 64


class Page(NamedTuple):
    """The page of one record: as processes see it, as the disk has it, and what the kernel does."""

    seen: bool = False
    disk: bool = False
    dirty: bool = False
    writing: bool = False


class Process(NamedTuple):
    """A process: what it does next (``at``), its slot, and the locals of ``Flusher.flush``."""

    at: str = "idle"
    alive: bool = True
    worker: bool = True
    """Not one that opened the directory later."""
    slot: bool = True
    watermark: int = 0
    mark: int = 0
    opened: bool = False
    told: int = 0
    vouched: bool = False
    mine: int = 0
    committed: int = 0
    durable: int = 0
    heals: tuple[int, ...] = ()
    waits: int = 0
    """A bit for each page."""
    flag_was_set: bool = False


class State(NamedTuple):
    """Everything that a step can depend on."""

    processes: tuple[Process, ...]
    pages: tuple[Page, ...]
    committed: int = 0
    flag: bool = False
    errors: int = 0
    anybody_told: bool = True
    losses: int = 0
    kills: int = 0
    evictions: int = 0

    @property
    def durable(self) -> int:
        return max(process.watermark for process in self.processes)


class Rules(NamedTuple):
    """The protocol; a mutant leaves one rule out."""

    flush_before_publish: bool = True
    tail_read_before_flush: bool = True
    flag_checked_again: bool = True
    flag_set: bool = True
    healed: bool = True
    marked: bool = True
    opened_before_looking: bool = True
    new_descriptors_heal: bool = True
    healing_verified: bool = True


class Budget(NamedTuple):
    """How much may go wrong in one run."""

    losses: int = 1
    kills: int = 1
    evictions: int = 1


PAIR = (Process(), Process())
"""Two workers."""
OPENING = (Process(), Process(at="join", worker=False, slot=False))
"""A worker, and a process that opens the directory meanwhile and claims a slot."""
TRIO = (*PAIR, OPENING[1])


class Violated(Exception):
    """The protocol breaks a promise; the message is the way there."""


Step = tuple[str, State]


class Model:
    """The steps of all processes and of the kernel."""

    def __init__(self, rules: Rules, budget: Budget) -> None:
        self.rules = rules
        self.budget = budget

    def steps(self, state: State) -> Iterator[Step]:
        """Yield every step that can be next, with the state after it."""
        yield from self.kernel(state)
        for index, process in enumerate(state.processes):
            if not process.alive:
                continue
            for name, after in self.process(state, index):
                yield f"{index} {name}", after
            if state.kills < self.budget.kills and process.at not in ("idle", "join", "refused"):
                yield f"{index} is killed", _kill(state, index)

    def kernel(self, state: State) -> Iterator[Step]:
        """Lose pages, or let go of them. They are written as late as `fdatasync` lets them be."""
        for index, page in enumerate(state.pages):
            if page.writing or page.dirty:
                if state.losses < self.budget.losses:
                    yield f"page {index} is lost", _lost(state, index)
            elif page.seen != page.disk and state.evictions < self.budget.evictions:
                gone = _page(state, index, page._replace(seen=page.disk))
                yield f"page {index} is evicted", gone._replace(evictions=state.evictions + 1)

    def process(self, state: State, index: int) -> Iterator[Step]:
        """Do what one process does next."""
        process = state.processes[index]
        if process.at == "idle":
            if not process.mine and not state.flag:
                yield "begins to append", _go(state, index, "append")
            if state.durable < state.committed:
                yield "begins to flush", _go(state, index, "tail")
        else:
            step = getattr(self, f"_{process.at}")(state, index, process)
            if step is not None:
                yield process.at, step

    def _join(self, state: State, index: int, process: Process) -> State:
        """`open_directory`: a later process refuses while the flag is set."""
        return _go(state, index, "refused" if state.flag else "idle")

    def _refused(self, state: State, index: int, process: Process) -> None:
        """Charge no more."""

    def _append(self, state: State, index: int, process: Process) -> State:
        """`Engine._transact`, under the write lock; a process without a slot claims one next."""
        state = _open(state, index)
        page = state.pages[state.committed]
        state = _page(state, state.committed, page._replace(seen=True, dirty=True))
        committed = state.committed + 1
        at = "idle" if process.slot else "claim"
        return _go(state._replace(committed=committed), index, at, mine=committed)

    def _claim(self, state: State, index: int, process: Process) -> State:
        """`Workers.claim_slot`: heals, then takes the slot with the maximum in it."""
        for other in _dead_marked(state) if self.rules.healed else ():
            if self._is_gone(state, state.durable, state.committed):
                return _go(state, index, "fail")
            state = self._restored(state, other, state.committed)
        return _go(state, index, "idle", slot=True, mark=0, watermark=state.durable)

    def _tail(self, state: State, index: int, process: Process) -> State:
        """Read the committed tail and the watermark."""
        durable = state.durable
        if state.committed <= durable:
            return _go(state, index, "idle")
        state = _go(state, index, "look", committed=state.committed, durable=durable)
        return _open(state, index) if self.rules.opened_before_looking else state

    def _look(self, state: State, index: int, process: Process) -> State:
        """Look, in `heal`, for flushes that were cut off, or failed before we had a descriptor."""
        heals = _dead_marked(state) if self.rules.healed else ()
        if self.rules.healed and self.rules.new_descriptors_heal and not process.vouched:
            others = enumerate(state.processes)
            heals = tuple(other for other, p in others if other != index and p.slot and p.mark)
        return _go(state, index, "heal", heals=heals)

    def _heal(self, state: State, index: int, process: Process) -> State:
        """Store again what may have been lost, then look at the flag."""
        if not process.heals:
            return _go(state, index, "check")
        other, *rest = process.heals
        healed = self._restored(state, other, process.committed)
        if self._is_gone(state, process.durable, process.committed):
            return _go(state, index, "fail")
        return _go(healed, index, "heal", heals=tuple(rest))

    def _is_gone(self, state: State, durable: int, committed: int) -> bool:
        """Say, with `reaches`, whether something that is to be stored again has left memory."""
        seen = all(page.seen for page in state.pages[durable:committed])
        return self.rules.healing_verified and not seen

    def _restored(self, state: State, other: int, committed: int) -> State:
        """`Segment.restore` of all behind the watermark; a dead flusher's mark is cleared."""
        end = max(committed, state.processes[other].mark)
        for index in range(state.durable, end):
            state = _page(state, index, state.pages[index]._replace(dirty=True))
        if not state.processes[other].alive:
            return _go(state, other, state.processes[other].at, mark=0)
        return state

    def _check(self, state: State, index: int, process: Process) -> State:
        """Open the segment, at the latest; read the failure flag."""
        state = _open(state, index)
        if state.flag:
            return _go(state, index, "refused")
        return _go(state, index, "mark" if self.rules.flush_before_publish else "publish")

    def _mark(self, state: State, index: int, process: Process) -> State:
        """Set the flush mark: from here on a death says that something may be lost."""
        mark = process.committed if self.rules.marked else 0
        return _go(state, index, "begin", mark=mark)

    def _begin(self, state: State, index: int, process: Process) -> State:
        """`fdatasync` begins: it writes what is dirty, and waits also for what others write."""
        for at, page in enumerate(state.pages):
            if page.dirty and page.writing:
                state = _written(state, at)  # it waits for this before it writes the page anew
            if page.dirty:
                state = _page(state, at, state.pages[at]._replace(dirty=False, writing=True))
        waits = sum(1 << at for at, page in enumerate(state.pages) if page.writing)
        return _go(state, index, "end", waits=waits)

    def _end(self, state: State, index: int, process: Process) -> State:
        """`fdatasync` returns, with an error if there is one this descriptor was not told of."""
        for at in range(len(state.pages)):
            if process.waits >> at & 1:
                state = _written(state, at)
        failed = state.errors != process.told
        return _go(
            state._replace(anybody_told=True),
            index,
            "fail" if failed else "unmark",
            told=state.errors,
            flag_was_set=state.flag,
        )

    def _fail(self, state: State, index: int, process: Process) -> State:
        """Set the failure flag, before the mark goes."""
        return _go(state._replace(flag=state.flag or self.rules.flag_set), index, "clear")

    def _clear(self, state: State, index: int, process: Process) -> State:
        return _go(state, index, "refused", mark=0)

    def _unmark(self, state: State, index: int, process: Process) -> State:
        return _go(state, index, "again", mark=0)

    def _again(self, state: State, index: int, process: Process) -> State:
        """Read the failure flag again."""
        if state.flag and self.rules.flag_checked_again:
            return _go(state, index, "refused")
        return _go(state, index, "publish")

    def _publish(self, state: State, index: int, process: Process) -> State:
        """Move the watermark to what was committed before the flush."""
        if process.flag_was_set:
            raise Violated("a flush that ended after the failure flag was set is published")
        lsn = process.committed if self.rules.tail_read_before_flush else state.committed
        after = "idle" if self.rules.flush_before_publish else "begin"
        return _go(state, index, after, watermark=lsn, vouched=True)


def check(state: State) -> None:
    """Raise `Violated` where the watermark has passed what is on disk."""
    if not all(page.disk for page in state.pages[: state.durable]):
        raise Violated(f"the watermark {state.durable} passes what is on disk")


class Solos:
    """Which states one process gets its record to the disk from while all others stand still."""

    def __init__(self, model: Model) -> None:
        self._model = model
        self._fine: set[tuple[State, int]] = set()

    def check(self, state: State, index: int) -> None:
        """Raise `Violated` where the others block a process."""
        path: list[tuple[State, int]] = []
        while state.durable < state.processes[index].mine and (state, index) not in self._fine:
            path.append((state, index))
            following = list(self._model.process(state, index))
            if not following or len(path) > _SOLO_MAX:
                raise Violated(f"process {index} is blocked by the others")
            state = following[-1][1]
        self._fine.update(path)


class Explored(NamedTuple):
    """How much there was."""

    states: int
    steps: int
    solos: int

    def plus(self, other: Explored) -> Explored:
        return Explored(*(mine + theirs for mine, theirs in zip(self, other, strict=True)))


def explore(processes: tuple[Process, ...], rules: Rules, budget: Budget) -> Explored:
    """Look at every state; raises `Violated` with the shortest way to a broken one."""
    gc.disable()  # nothing here is garbage before the end
    try:
        return _explore(Model(rules, budget), State(processes, (Page(),) * len(processes)))
    finally:
        gc.enable()


def _explore(model: Model, start: State) -> Explored:
    came: dict[State, tuple[State, str] | None] = {start: None}
    waiting = deque([start])
    solos, steps, checked = Solos(model), 0, 0
    while waiting:
        state = waiting.popleft()
        try:
            check(state)
            for index, process in enumerate(state.processes):
                fine = process.alive and process.slot and not state.losses and not state.flag
                if fine and process.mine > state.durable:
                    solos.check(state, index)
                    checked += 1
            for name, after in model.steps(state):
                steps += 1
                after = _canonical(after)
                if after not in came:
                    came[after] = (state, name)
                    waiting.append(after)
        except Violated as violated:
            raise Violated(f"{violated}: {'; '.join(_way(came, state))}") from None
    return Explored(len(came), steps, checked)


def _canonical(state: State) -> State:
    """Return the one of two states that differ only in which of the two workers is which."""
    first, second, *late = state.processes
    if first <= second or not second.worker:
        return state
    swapped = (1, 0, 2)
    processes = tuple(
        process._replace(heals=tuple(swapped[other] for other in process.heals))
        for process in (second, first, *late)
    )
    return state._replace(processes=processes)


def _way(came: dict[State, tuple[State, str] | None], state: State) -> list[str]:
    names = []
    while (before := came[state]) is not None:
        state, name = before
        names.append(name)
    return names[::-1]


def _go(state: State, index: int, at: str, **changed: object) -> State:
    """Move a process to its next step."""
    processes = list(state.processes)
    processes[index] = processes[index]._replace(at=at, **changed)  # type: ignore[arg-type]
    if at in ("idle", "refused"):
        # What a flush remembered is forgotten: fewer states.
        processes[index] = processes[index]._replace(
            committed=0, durable=0, heals=(), flag_was_set=False
        )
    return state._replace(processes=tuple(processes))


def _page(state: State, index: int, page: Page) -> State:
    pages = list(state.pages)
    pages[index] = page
    return state._replace(pages=tuple(pages))


def _open(state: State, index: int) -> State:
    """Open a descriptor: it will be told of errors from now on, or that nobody was told of."""
    process = state.processes[index]
    if process.opened:
        return state
    told = state.errors if state.anybody_told else state.errors - 1
    return _go(state, index, process.at, opened=True, told=told)


def _kill(state: State, index: int) -> State:
    state = state._replace(kills=state.kills + 1)
    processes = list(state.processes)
    processes[index] = processes[index]._replace(alive=False, waits=0, heals=())
    return state._replace(processes=tuple(processes))


def _written(state: State, index: int) -> State:
    page = state.pages[index]
    return _done(_page(state, index, page._replace(disk=page.seen, writing=False)), index)


def _lost(state: State, index: int) -> State:
    page = state.pages[index]
    # What was stored since the write began is still dirty.
    lost = page._replace(writing=False) if page.writing else page._replace(dirty=False)
    state = _done(_page(state, index, lost), index)
    return state._replace(errors=state.errors + 1, anybody_told=False, losses=state.losses + 1)


def _done(state: State, index: int) -> State:
    """Nobody waits for a page any more."""
    page = 1 << index
    processes = tuple(
        process._replace(waits=process.waits & ~page) if process.waits & page else process
        for process in state.processes
    )
    return state._replace(processes=processes)


def _dead_marked(state: State) -> tuple[int, ...]:
    """Return whose flush was cut off by their death."""
    return tuple(
        index
        for index, process in enumerate(state.processes)
        if process.slot and process.mark and not process.alive
    )


def figures(explored: Explored, seconds: float) -> str:
    """Say what was explored, in one line."""
    return (
        f"watermark model: {explored.states:,} states, {explored.steps:,} steps; "
        f"{explored.solos:,} times a process went on alone; 0 violations; {seconds:.0f} s"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    for field, default in Budget()._asdict().items():
        parser.add_argument(f"--{field}", type=int, default=default, help="how many")
    budget = Budget(**vars(parser.parse_args()))
    began = time.monotonic()
    print(figures(explore(TRIO, Rules(), budget), time.monotonic() - began))


if __name__ == "__main__":
    main()
