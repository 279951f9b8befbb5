"""Hostile files: whatever happened to a node's files, a start never invents money.

Each case damages a copy of a node whose every record is known, and opens it in a process of its
own, in the same boot or a new one. Either that is refused by an error of finomw's that names what
is wrong, with everything left as it was; or what opens is the known log up to some record, with
exactly the sums the model had then, and nothing is missing that a later record's stamp or the
control file proves to have been on disk. A forged record, with every CRC made right, must be
refused unless it changes nobody's money.

    python tests/proofs/hostile.py --count 50000 [--seed S]
"""

from __future__ import annotations

import contextlib
import logging
import os
import pickle
import random
import resource
import shutil
import signal
import sys
import tempfile
import traceback
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import NamedTuple

from proving import ProofFailed, main, options

# isort: split

import nodes
from faults import memory
from hostile_base import Base, Kept, build, copy, segment_name
from hostile_damage import KINDS, forge
from lives import SEGMENT, Books, books_of_engine

from finomw.engine import charge
from finomw.engine.verify import verify
from finomw.errors import FinomwError
from finomw.journal.format import HEADER_SIZE

PATIENCE_SECONDS = 20
MEMORY_MAX = 4 << 30


class Opening(NamedTuple):
    """What a start came to: refused with an error, or opened after so many records."""

    error: str = ""
    message: str = ""
    records: int = 0
    end: int = 0
    books: Books | None = None
    faults: tuple[str, ...] = ()
    later: str = ""
    crash: str = ""


class Verdict(NamedTuple):
    """What became of one case; ``failure`` is empty where all was well."""

    kind: str
    outcome: str
    failure: str


def try_opening(path: Path) -> Opening:
    """Open the node in a process of its own, look at it, make a call, and close it."""
    reading, telling = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(reading)
        _be_the_start(path, telling)
    os.close(telling)
    with os.fdopen(reading, "rb") as pipe:
        told = pipe.read()
    _, status = os.waitpid(pid, 0)
    code = os.waitstatus_to_exitcode(status)
    if code == -signal.SIGALRM:
        return Opening(crash="hangs")
    if code or not told:
        return Opening(crash=f"dies: {signal.Signals(-code).name if code < 0 else code}")
    opening: Opening = pickle.loads(told)
    return opening


def _be_the_start(path: Path, telling: int) -> None:
    try:
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.setitimer(signal.ITIMER_REAL, PATIENCE_SECONDS)
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY_MAX, MEMORY_MAX))
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
        told = pickle.dumps(_opening(path))
        while told:
            told = told[os.write(telling, told) :]
    finally:
        os._exit(0)


def _opening(path: Path) -> Opening:
    try:
        try:
            engine = nodes.open_node(path)
        except FinomwError as error:
            return Opening(type(error).__name__, str(error))
        try:
            tail, books = engine.store.tail(), books_of_engine(engine)
        except FinomwError as error:
            return Opening(type(error).__name__, str(error))
        later, faults = "", ()
        try:
            faults = verify(engine).faults
            held = nodes.hold(engine, 3)
            if isinstance(held, charge.Held):
                nodes.settle(engine, held.hold, 2)
            engine.flush()
        except FinomwError as error:
            later = f"{type(error).__name__}: {error}"
        engine.close()
        return Opening("", "", tail.number, tail.end, books, tuple(faults), later)
    except BaseException:  # noqa: BLE001 - any other error than ours is what is looked for
        return Opening(crash=traceback.format_exc())


class Judge:
    """Knows the node, and says whether an opening of a damaged copy is right."""

    def __init__(self, base: Base) -> None:
        self.base = base
        self._histories = base.histories()

    def run(self, seed: str, home: Path) -> Verdict:
        """Damage a copy and open it."""
        dice = random.Random(seed)
        damage = dice.choices(list(KINDS), list(KINDS.values()))[0]
        same_boot = bool(dice.randrange(2)) and damage is not forge
        path = home / "case"
        copy(self.base, path, same_boot)
        did = [damage(dice, self.base, path)]
        if not dice.randrange(8) and damage is not forge:
            another = dice.choices(list(KINDS), list(KINDS.values()))[0]
            if another is not forge:
                with contextlib.suppress(OSError, ValueError, IndexError):
                    did.append(another(dice, self.base, path))
        before = _contents(path)
        facts = Facts(self.base, path, before)
        opening = try_opening(path)
        boot = "same boot" if same_boot else "new boot"
        wrong = (
            self._wrong_forgery(opening)
            if damage is forge
            else self._wrong(opening, facts, same_boot)
        )
        believed = same_boot and "mdb" in " ".join(did)
        outcome = self._outcome(opening)
        if wrong and believed:
            outcome, wrong = (
                f"believed damaged state: {wrong.splitlines()[-1].partition(':')[0]}",
                "",
            )
        wrong = wrong or self._lost(path, before, opening)
        kind = f"{damage.__name__}, {boot}"
        if not wrong:
            shutil.rmtree(path)
            return Verdict(kind, outcome, "")
        kept = Path(tempfile.mkdtemp(prefix="finomw-hostile-"))
        shutil.move(path, kept / "case")
        story = f"seed {seed}, {kind}: {'; '.join(did)}\n{wrong}\nkept in {kept}"
        (kept / "history.txt").write_text(story)
        return Verdict(kind, "WRONG", story)

    def _outcome(self, opening: Opening) -> str:
        if opening.error:
            return f"refused: {opening.error}"
        if opening.records == len(self.base.records):
            return "opened, nothing lost"
        return "opened, tail cut"

    def _wrong(self, opening: Opening, facts: Facts, same_boot: bool) -> str:
        """Return what is wrong with this outcome of damage, or nothing."""
        if opening.crash:
            return opening.crash
        if opening.error:
            if facts.must_open:
                return f"refused without need: {opening.message}"
            if not opening.message or "\n" in opening.message:
                return f"not a message: {opening.message!r}"
            return ""
        records, total = opening.records, len(self.base.records)
        if records > total or opening.books != self.base.books[records]:
            return f"after {records} records the money is not what it was"
        if opening.end < facts.proven:
            return f"opened at LSN {opening.end}, but LSN {facts.proven} was on disk"
        if records not in ({facts.readable, total} if same_boot else {facts.readable}):
            return f"opened after {records} records of {total}, {facts.readable} can be read"
        if opening.faults and facts.undamaged:
            return f"verify: {opening.faults}"
        if opening.later and facts.must_open:
            return f"does not go on: {opening.later}"
        return ""

    def _wrong_forgery(self, opening: Opening) -> str:
        """Return what is wrong with this outcome of a forgery, or nothing."""
        if opening.crash:
            return opening.crash
        if opening.error:
            return "" if opening.message else "no message"
        for name, money in (opening.books or {}).items():
            known = self._histories.get(name, {(0, 0, 0, 0, 0)})
            if tuple(money[:5]) not in known:
                return f"{name} has {money[:5]}, and never had"
            if sum(entry[2] for entry in money.entries) != money.balance - money.credit_used:
                return f"{name}: the ledger does not add up"
        return f"verify: {opening.faults}" if opening.faults else ""

    def _lost(self, path: Path, before: dict[str, bytes | None], opening: Opening) -> str:
        """Return what a start has removed, or changed although it refused."""
        after = _contents(path)
        gone = [name for name in before if name not in after and not name.endswith(".draft")]
        gone = [name for name in gone if not name.startswith("workers/")]
        if gone:
            return f"removed: {gone}"
        kept = [name for name in before if name.startswith(("journal/", "checkpoints/"))]
        changed = [name for name in kept if opening.error and before[name] != after.get(name)]
        return f"refused, but changed {changed}" if changed else ""


class Facts:
    """What of the known node a damaged copy still has, by comparing bytes, not by reading it.

    A start goes on from the newest checkpoint that is whole: ``readable`` is the number of records
    before the first damaged one behind it. ``proven`` is the highest LSN that an intact record's
    stamp, a checkpoint or the control file says was on disk. ``must_open`` says that nothing is
    damaged but what a start can do without; ``undamaged`` that every record can be read.
    """

    def __init__(self, base: Base, path: Path, there: dict[str, bytes | None]) -> None:
        records, was = base.records, base.files
        intact = [_intact(base, there, record) for record in records]
        known = {was[name]: number for name, number in base.checkpoints.items()}
        whole = [known[data] for data in there.values() if data in known]
        start = max(whole, default=0)
        self.undamaged = all(intact)
        self.readable = start
        while self.readable < len(records) and intact[self.readable]:
            self.readable += 1
        end = records[self.readable - 1].end if self.readable else HEADER_SIZE
        control, now = was["control"], there.get("control") or b""
        # The magic; the durable LSN and the number of slots; and all slots.
        words = (slice(0, 8), slice(56, 72), slice(HEADER_SIZE, len(control)))
        trusted = all(now[word] == control[word] for word in words)
        stamps = [record.stamp for record, good in zip(records, intact, strict=True) if good]
        behind = [records[number - 1].end for number in whole]
        self.proven = max([*stamps, *behind, base.watermark if trusted else 0])
        needed = [name for name in was if name.startswith("journal/")]
        self.must_open = (
            there.get("node.json") == was["node.json"]
            and all((there.get(name) or b"")[:128] == was[name][:128] for name in needed)
            and all(len(there[name] or b"") >= SEGMENT for name in needed)
            and (set(there) | set(was)) - set(was) <= {"checkpoint.lock"}
            and None not in there.values()
            and not any(file.is_symlink() for file in path.rglob("*"))
            and _folders(path) == _folders(base.path)
            and (path / "state" / "lock.mdb").is_file()
            and (("control" not in there) or (trusted and now[8:16] == control[8:16]))
            and end >= self.proven
            and (start == 0 or intact[start - 1])
        )


def _intact(base: Base, there: dict[str, bytes | None], record: Kept) -> bool:
    """Say whether a record's bytes, as far as the chain covers them, are what they were."""
    name = f"journal/{segment_name(record.lsn - record.lsn % SEGMENT)}"
    data = there.get(name)
    if data is None or data[:128] != base.files[name][:128] or len(data) < SEGMENT:
        return False
    at = record.lsn % SEGMENT
    return data[at : at + record.core] == record.data[: record.core]


def _folders(path: Path) -> set[Path]:
    return {place.relative_to(path) for place in path.rglob("*") if place.is_dir()}


def _contents(path: Path) -> dict[str, bytes | None]:
    """Return the bytes of the node's files but the state's; ``None`` for what is no file."""
    found: dict[str, bytes | None] = {}
    for file in path.rglob("*"):
        name = str(file.relative_to(path))
        if not name.startswith("state") and not (file.is_dir() and not file.is_symlink()):
            found[name] = file.read_bytes() if file.is_file() else None
    return found


_judge: Judge | None = None


def _prepare(base: Base) -> None:
    global _judge
    logging.disable(logging.CRITICAL)
    _judge = Judge(base)


def run_cases(seeds: list[str]) -> list[Verdict]:
    """Run cases one after the other; called in processes of their own."""
    assert _judge is not None
    home = Path(tempfile.mkdtemp(prefix="finomw-hostile-", dir=memory()))
    try:
        return [_judge.run(seed, home) for seed in seeds]
    finally:
        shutil.rmtree(home, ignore_errors=True)


def hurt(count: int, seed: int) -> dict[str, object]:
    """Run so many cases; return the figures. Raises `ProofFailed`."""
    outcomes: Counter[tuple[str, str]] = Counter()
    failures = []
    with tempfile.TemporaryDirectory(prefix="finomw-hostile-", dir=memory()) as home:
        base = build(Path(home), str(seed))
        seeds = [f"{seed}/{number}" for number in range(count)]
        batches = [seeds[at : at + 25] for at in range(0, count, 25)]
        with ProcessPoolExecutor(
            os.cpu_count(), get_context("forkserver"), _prepare, (base,)
        ) as pool:
            for verdicts in pool.map(run_cases, batches):
                for verdict in verdicts:
                    outcomes[verdict.kind, verdict.outcome] += 1
                    if verdict.failure:
                        failures.append(verdict.failure)
    for (kind, outcome), number in sorted(outcomes.items()):
        print(f"{number:6} {kind}: {outcome}", file=sys.stderr)
    if failures:
        raise ProofFailed("\n\n".join([f"{len(failures)} of {count} cases", *failures]))
    totals: Counter[str] = Counter()
    for (_, outcome), number in outcomes.items():
        totals[outcome] += number
    return {"cases": count, **dict(sorted(totals.items()))}


def proof() -> dict[str, object]:
    """Run ``--count`` cases."""
    chosen = options(__doc__, 50_000)
    return hurt(chosen.count, chosen.seed)


if __name__ == "__main__":
    main(proof)
