"""The check after a kill or a cut: what clients saw against what the ledger says, to the micro.

Reads the sightings first and one snapshot of the state after them, so whatever was seen must be in
the snapshot. Written against the ledger's entries alone, and against `workload.py`, which knows
what each of them may be: neither the engine's sums nor its verifier is believed here.
"""

from __future__ import annotations

import os
from collections import Counter, defaultdict
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import NamedTuple

from proving import ProofFailed
from workload import CUSTOMERS, GRANT_EVERY, OPENING, SOURCE, Call, Ends, call_of, granted, refunded

from finomw.engine import grants
from finomw.engine.engine import Engine
from finomw.engine.verify import verify
from finomw.money.entries import CALL_SOURCE, Entry
from finomw.types import CustomerId, EntryKind, Fund, Micros


class Sightings:
    """What clients saw, from the file of whole lines; the last may have been cut off."""

    def __init__(self, path: Path) -> None:
        self.begun: set[str] = set()
        self.ended: dict[str, tuple[str, Micros]] = {}
        self.grants: dict[str, Micros] = {}
        self.refunds: dict[str, Micros] = {}
        self.workers: dict[int, int] = {}
        """Process ids by worker."""
        self.count = 0
        text = path.read_text() if path.exists() else ""
        for line in text.splitlines()[: text.count("\n")]:
            what, name, amount = line.split()
            self._take(what, name, int(amount))
            self.count += 1

    def _take(self, what: str, name: str, amount: int) -> None:
        match what:
            case "begun":
                self.begun.add(name)
            case "paid" | "free":
                self.ended[name] = (what, amount)
            case "grant":
                self.grants[name] = amount
            case "refund":
                self.refunds[name] = amount
            case "worker":  # and "failed", which says that somebody saw a flush fail
                self.workers[int(name)] = amount


class Conserved(NamedTuple):
    """What a check found in order: how much there was of it."""

    seen: int
    holds: int
    charged: Micros
    entries: int


def check(engine: Engine, path: Path, alive: Collection[int] = ()) -> Conserved:
    """Compare everything; holds may be open for the process ids in ``alive`` only.

    Raises `ProofFailed` with every fault found.
    """
    seen = Sightings(path)
    with engine.store.read() as txn:
        entries = [(row_of, entry) for row_of, entry in engine.store.ledger.items(txn)]
        accounts = dict(engine.store.accounts.items(txn))
    holds: dict[str, dict[EntryKind, list[Micros]]] = defaultdict(lambda: defaultdict(list))
    others: dict[CustomerId, list[Entry]] = defaultdict(list)
    sums: Counter[CustomerId] = Counter()
    owners: dict[str, CustomerId] = {}
    for customer, entry in entries:
        sums[customer] += entry.amount
        if entry.source == CALL_SOURCE:
            hold = entry.source_id.partition("/")[0]
            holds[hold][entry.kind].append(entry.amount)
            if owners.setdefault(hold, customer) != customer:
                raise ProofFailed(f"hold {hold} has entries of two customers")
        else:
            others[customer].append(entry)
    # Read anew: a worker that began since the first reading told so before it held anything.
    living = {worker for worker, pid in Sightings(path).workers.items() if pid in alive}
    faults = [*_check_owners(others, seen), *(f for f in verify(engine).faults)]
    balances: Counter[CustomerId] = Counter()
    for customer, listed in others.items():
        balances[customer] += sum(entry.amount for entry in listed)
    charged = 0
    for hold in {*holds, *seen.ended, *seen.begun}:
        worker, number = map(int, hold.split("-")[1:])
        call = call_of(worker, number)
        taken, wrong = _check_call(call, holds.get(hold, {}), hold, seen, worker in living)
        faults += [f"hold {hold} ({call.ends.name}): {line}" for line in wrong]
        if hold in owners and owners[hold] != call.customer:
            faults.append(f"hold {hold} is {owners[hold]}'s")
        balances[call.customer] -= taken
        charged += taken
    for customer, account in accounts.items():
        if not account.balance == sums[customer] == balances[customer]:
            faults.append(
                f"{customer}: balance {account.balance}, ledger {sums[customer]}, opening and "
                f"grants less charges {balances[customer]}"
            )
    if set(accounts) != set(CUSTOMERS) or any(e.fund is not Fund.WALLET for _, e in entries):
        faults.append(f"the customers are {sorted(accounts)}, or somebody has credit")
    if faults:
        raise ProofFailed("\n".join(faults))
    return Conserved(seen.count, len(holds), charged, len(entries))


def _check_call(
    call: Call,
    entries: dict[EntryKind, list[Micros]],
    hold: str,
    seen: Sightings,
    living: bool,
) -> tuple[Micros, list[str]]:
    """Return what a call has taken from its customer, and what is wrong with its entries."""
    faults = []
    opened = entries.get(EntryKind.HOLD, [])
    freed = entries.get(EntryKind.HOLD_RELEASE, [])
    settled = [-amount for amount in entries.get(EntryKind.SETTLEMENT, [])]
    if opened != [-call.held]:
        faults.append(f"held {opened}, not {call.held}")
    if len(settled) > 1 or freed not in ([], [call.held]) or (settled and not freed):
        faults.append(f"settled {settled}, gave back {freed}")
    if set(entries) - {EntryKind.HOLD, EntryKind.HOLD_RELEASE, EntryKind.SETTLEMENT}:
        faults.append(f"has entries of {set(entries)}")
    if not freed and not living:
        faults.append("is stranded: nobody who lives has it open")
    charge = settled[0] if settled else None
    if charge not in _may_be(call, freed != [], hold, seen):
        faults.append(f"charged {charge}; clients saw {seen.ended.get(hold)}")
    return sum(settled) + (call.held if not freed else 0), faults


def _may_be(call: Call, ended: bool, hold: str, seen: Sightings) -> set[Micros | None]:
    """Return what a call's settlement may be; ``None`` is none, which an open hold has."""
    what, amount = seen.ended.get(hold, ("", 0))
    if what == "paid":
        # A flat call is told of its price when its hold is on disk: a crash then settles it.
        return {amount} if ended else ({None} if call.ends is Ends.FLAT else set())
    if what == "free":
        return {None} if ended else set()
    if not ended:
        return {None}
    match call.ends:
        case Ends.SETTLED:
            return {None, call.price}
        case Ends.STREAMED:
            begun = {call.price, call.held}
            return begun if hold in seen.begun else {None, *begun}
        case Ends.FLAT:
            return {call.price}
        case Ends.RELEASED:
            return {None}
        case Ends.KEPT:
            return {call.price, call.held}


def _check_owners(others: dict[CustomerId, list[Entry]], seen: Sightings) -> Iterator[str]:
    """Yield what is wrong with grants and refunds: each at most once, whole, and all that told."""
    told = {(SOURCE, name): amount for name, amount in seen.grants.items()}
    told |= {(f"{SOURCE}.back", name): -amount for name, amount in seen.refunds.items()}
    found: set[tuple[str, str]] = set()
    for customer, entries in others.items():
        for entry in entries:
            name = (entry.source, entry.source_id)
            if (*name, entry.amount) == ("opening", "1", OPENING):
                continue
            number = int(entry.source_id.partition("-")[2])
            if name in found:
                yield f"{name} is there twice"
            found.add(name)
            right = granted(number) if entry.source == SOURCE else -refunded(number)
            if entry.amount != right or customer != CUSTOMERS[number % 3]:
                yield f"{name} is {entry.amount} of {customer}"
            if told.get(name, right) != right:
                yield f"{name} was told to be {told[name]}"
    for name in told.keys() - found:
        yield f"{name} was told, and is not there"


def retry_grants(engine: Engine, path: Path) -> int:
    """Do what a client does who was not told: give the same grant again; return how many were new.

    Each dead worker has at most one that it may have given without telling.
    """
    seen = Sightings(path)
    last: dict[int, int] = defaultdict(int)
    for name in seen.grants:
        worker, number = map(int, name.split("-"))
        last[worker] = max(last[worker], number)
    fresh = 0
    fd = os.open(path, os.O_WRONLY | os.O_APPEND)
    for worker in seen.workers:
        number = last[worker] + GRANT_EVERY
        name, amount = f"{worker}-{number}", granted(number)
        booked = grants.grant(engine, CUSTOMERS[number % 3], amount, SOURCE, name)
        fresh += not booked.repeated
        again = grants.grant(engine, CUSTOMERS[number % 3], amount, SOURCE, name)
        if not again.repeated:
            raise ProofFailed(f"grant {name} was given twice")
        os.write(fd, f"grant {name} {amount}\n".encode())
    os.close(fd)
    return fresh
