"""The load under which proofs kill and cut: calls, grants, refunds, as the middleware makes them.

Everything that a worker does follows from its id and a number: what it holds, what it charges, how
the call ends. So whoever reads the ledger later knows what each entry may be, and needs no log of
intentions. What its clients have seen stands in a file outside the node: a line is written, in one
piece, after what it says was durable, and never before.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from enum import IntEnum
from itertools import count
from pathlib import Path
from typing import NamedTuple

from finomw import limits
from finomw.clock import SystemClock
from finomw.engine import charge, customers, grants
from finomw.engine.checkpoint import make_checkpoint, prune
from finomw.engine.directory import create
from finomw.engine.engine import Engine
from finomw.engine.keys import hash_token
from finomw.engine.policy import BelowZero
from finomw.engine.sweep import sweep
from finomw.journal.files import Files
from finomw.types import CustomerId, HoldId, Micros, OnCrash, PlanName, RouteName, UsageStatus

OPENING: Micros = 10**12
CUSTOMERS = tuple(map(CustomerId, ("alice", "bob", "carol")))
SOURCE = "load"
GRANT_EVERY = 4
REFUND_EVERY = 8
SWEEP_EVERY = 12
PREPARE_EVERY = 20
CHECKPOINT_EVERY = 60


class Ends(IntEnum):
    """How a call ends, if nothing cuts it off."""

    SETTLED = 0
    """Settled at its price; a crash releases it."""
    STREAMED = 1
    """Its answer starts first; from then on a crash settles it whole."""
    FLAT = 2
    """Of one price: told when the hold is on disk, because a crash settles it at that price."""
    RELEASED = 3
    KEPT = 4
    """Settled at its price; a crash settles it whole."""


class Call(NamedTuple):
    """What a worker's call with this number is."""

    customer: CustomerId
    ends: Ends
    held: Micros
    price: Micros


def call_of(worker: int, number: int) -> Call:
    """Return what follows from a worker's id and the number of its hold."""
    held = 100 + (worker * 7 + number * 13) % 400
    ends = Ends(number % len(Ends))
    price = held * 2 // 3 + number % 5
    return Call(CUSTOMERS[(worker + number) % 3], ends, price if ends is Ends.FLAT else held, price)


def granted(number: int) -> Micros:
    """Return the amount of a worker's grant with this number."""
    return 1_000 + number


def refunded(number: int) -> Micros:
    """Return how much of it is taken back."""
    return 300 + number % 50


class Place(NamedTuple):
    """A node directory and, outside of it, the file of what clients saw."""

    node: Path
    seen: Path


def make(place: Place, state_size: int) -> None:
    """Make a node with customers who have money."""
    place.seen.touch(0o600)
    create(place.node, limits.SEGMENT_SIZE_MIN, state_size)
    engine = open_node(place)
    for customer in CUSTOMERS:
        customers.add_customer(engine, customer, PlanName("default"))
        grants.grant(engine, customer, OPENING, "opening", "1")
    engine.close()


def open_node(place: Place) -> Engine:
    """Open an engine that nobody shares."""
    return Engine(place.node, SystemClock(), Files(), BelowZero())


class Seen:
    """Where clients' sightings go: lines of a word, a name and an amount."""

    def __init__(self, place: Place) -> None:
        self._fd = os.open(place.seen, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)

    def tell(self, what: str, name: str, amount: Micros) -> None:
        """Have a client see something."""
        os.write(self._fd, f"{what} {name} {amount}\n".encode())


class Load:
    """One worker's load."""

    def __init__(self, engine: Engine, seen: Seen) -> None:
        self.engine = engine
        self.seen = seen
        self.worker = engine.worker
        seen.tell("worker", str(self.worker), os.getpid())

    def call(self, number: int) -> None:
        """Make a worker's call with this number, from hold to what the client sees."""
        engine, seen = self.engine, self.seen
        held, call = self.hold(number)
        if held.amount % 2:
            engine.flush()  # as the group flush that runs while the app works
        if call.ends is Ends.STREAMED:
            self._durable(charge.start(engine, held))
            seen.tell("begun", held.hold, call.held)
        if call.ends is Ends.RELEASED:
            self._durable(charge.release(engine, held.hold).end)
            seen.tell("free", held.hold, 0)
            return
        end = self._settle(held.hold, call.price)
        self._durable(held.end if call.ends is Ends.FLAT else end)
        seen.tell("paid", held.hold, call.price)

    def hold(self, number: int) -> tuple[charge.Held, Call]:
        """Open the hold with this number; the engine counts them too, from one."""
        engine = self.engine
        call = call_of(self.worker, number)
        request = charge.HoldRequest(
            call.customer,
            hash_token("fino_load"),
            RouteName("chat"),
            call.held,
            {"requests": 1},
            0,
            OnCrash.SETTLE if call.ends in (Ends.FLAT, Ends.KEPT) else OnCrash.RELEASE,
            "v1",
            settle=(lambda counts, used: call.price) if call.ends is Ends.FLAT else None,
        )
        held = charge.hold(engine, request)
        if not isinstance(held, charge.Held):
            raise AssertionError(f"a hold was refused: {held}")
        assert held.hold == engine.store.holds.id_of(self.worker, number)
        return held, call

    def _settle(self, hold: HoldId, price: Micros) -> int:
        counts = {"requests": 1}
        return charge.settle(self.engine, hold, price, counts, UsageStatus.KNOWN).end

    def _durable(self, end: int) -> None:
        if self.engine.durable() < end:
            self.engine.flush()

    def owner(self, number: int) -> None:
        """Give credit, and take a part of it back; told when it is on disk."""
        engine, name = self.engine, f"{self.worker}-{number}"
        customer = CUSTOMERS[number % 3]
        if number % GRANT_EVERY == 0:
            grants.grant(engine, customer, granted(number), SOURCE, name)
            self.seen.tell("grant", name, granted(number))
        if number % REFUND_EVERY == 0:
            of = (SOURCE, name)
            grants.refund(engine, customer, refunded(number), f"{SOURCE}.back", name, of)
            self.seen.tell("refund", name, refunded(number))

    def step(self, number: int) -> None:
        """Do what comes with a number, housekeeping included."""
        self.call(number)
        self.owner(number)
        if number % SWEEP_EVERY == 0:
            sweep(self.engine)
        if number % PREPARE_EVERY == 0:
            self.engine.prepare_next_segment()
        if number % CHECKPOINT_EVERY == 0:
            checkpoint(self.engine)


def checkpoint(engine: Engine) -> None:
    """Make a checkpoint, and remove what it made useless, as the housekeeper does."""
    make_checkpoint(engine)
    prune(engine, 0)


def work(place: Place, *also: Callable[[Engine], None]) -> None:
    """Be a worker until killed; do this ``also``, at the start and every now and then."""
    engine = open_node(place)
    load = Load(engine, Seen(place))
    for number in count(1):
        for each in also if number % 5 == 1 else ():
            each(engine)
        load.step(number)


def strand(place: Place) -> None:
    """Be a worker that dies with open holds of every kind, and in the middle of a flush."""
    load = Load(open_node(place), Seen(place))
    for number in range(1, 1 + len(Ends)):
        load.hold(number)
    slot = next(slot for slot in load.engine.control.slots() if slot.worker == load.worker)
    slot.flush_mark = load.engine.tail()
    os.kill(os.getpid(), signal.SIGKILL)
