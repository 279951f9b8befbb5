"""One budget, many processes: not a micro too much is spent, and every repetition counts once."""

from __future__ import annotations

import random
from pathlib import Path

import nodes
import pytest
from nodes import ALICE
from processes import Child, Pipe

from finomw.engine import charge, customers, grants
from finomw.engine.engine import Engine
from finomw.engine.verify import verify
from finomw.errors import InvalidValue
from finomw.types import Refusal

FIRST = ("test", "first")


def call_many(pipe: Pipe, path: Path, cost: int, tries: int) -> None:
    """Try calls of a fixed cost; tell how many passed."""
    engine = nodes.open_node(path)
    assert engine.worker
    pipe.send("ready")
    pipe.recv()
    passed = 0
    for _ in range(tries):
        held = nodes.hold(engine, cost)
        if isinstance(held, charge.Held):
            nodes.settle(engine, held.hold, cost)
            passed += 1
        else:
            assert held in (Refusal.EXHAUSTED, Refusal.HELD)
    pipe.send(passed)
    engine.close()


@pytest.mark.parametrize("processes", [1, 4])
def test_exactly_as_many_calls_pass_as_the_balance_covers(
    path: Path, engine: Engine, processes: int
) -> None:
    children = [Child(call_many, path, 7, 160) for _ in range(processes)]
    for child in children:
        child.receive()
    for child in children:
        child.send("go")
    passed = sum(child.receive() for child in children)
    for child in children:
        child.finish()
    # Money that is held for a call that settles goes back only by a release: none here.
    assert passed == 1_000 // 7
    account = customers.get_account(engine, ALICE)
    assert (account.balance, account.held, account.spent_total) == (1_000 % 7, 0, 142 * 7)
    assert account.blocked_at is None
    assert verify(engine).faults == ()


def work(pipe: Pipe, path: Path, mine: int, shared: int) -> None:
    """Grant, refund and charge in a random order, every grant and refund sent twice."""
    engine = nodes.open_node(path)
    assert engine.worker
    pipe.send("ready")
    pipe.recv()
    steps = [("own", number) for number in range(mine)] * 2
    steps += [("shared", number) for number in range(shared)]
    steps += [("call", number) for number in range(2 * mine)]
    random.Random(engine.worker).shuffle(steps)
    new = {"own": 0, "shared": 0, "refund": 0}
    for kind, number in steps:
        if kind == "call":
            held = nodes.held(engine, 5, buffer=10**6)
            nodes.settle(engine, held.hold, number % 6)
            continue
        name = f"{engine.worker}/{number}" if kind == "own" else f"all/{number}"
        done = grants.grant(engine, ALICE, 100 + number, kind, name)
        new[kind] += not done.repeated
        for _ in range(2):
            back = grants.refund(engine, ALICE, 10 + number, "refund", name, (kind, name))
            new["refund"] += not back.repeated
    pipe.send(new)
    engine.close()


def test_grants_refunds_and_charges_from_four_processes_each_sent_twice_add_up(
    path: Path, engine: Engine
) -> None:
    mine, shared = 12, 15
    children = [Child(work, path, mine, shared) for _ in range(4)]
    for child in children:
        child.receive()
    for child in children:
        child.send("go")
    new = [child.receive() for child in children]
    for child in children:
        child.finish()
    assert [each["own"] for each in new] == [mine] * 4
    assert sum(each["shared"] for each in new) == shared
    assert sum(each["refund"] for each in new) == 4 * mine + shared
    given = 4 * sum(100 + n for n in range(mine)) + sum(100 + n for n in range(shared))
    taken = 4 * sum(10 + n for n in range(mine)) + sum(10 + n for n in range(shared))
    spent = 4 * sum(n % 6 for n in range(2 * mine))
    account = customers.get_account(engine, ALICE)
    assert account.balance == 1_000 + given - taken - spent
    assert (account.credited_total, account.spent_total) == (1_000 + given, spent)
    assert (account.held, account.open_holds, account.blocked_at) == (0, 0, None)
    assert verify(engine).faults == ()
    again = nodes.rebuilt(engine, path)
    assert customers.get_account(again, ALICE) == account
    again.close()


def refund_first(pipe: Pipe, path: Path, number: int) -> None:
    engine = nodes.open_node(path)
    assert engine.worker
    pipe.send("ready")
    pipe.recv()
    taken = 0
    for part in range(5):
        try:
            grants.refund(engine, ALICE, 90, "test", f"{number}/{part}", FIRST)
            taken += 1
        except InvalidValue:
            pass
    pipe.send(taken)
    engine.close()


def test_refunds_of_one_grant_from_four_processes_never_exceed_it(
    path: Path, engine: Engine
) -> None:
    children = [Child(refund_first, path, number) for number in range(4)]
    for child in children:
        child.receive()
    for child in children:
        child.send("go")
    assert sum(child.receive() for child in children) == 11
    for child in children:
        child.finish()
    assert customers.get_account(engine, ALICE).balance == 1_000 - 11 * 90
