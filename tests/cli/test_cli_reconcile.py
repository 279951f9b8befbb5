"""finomw reconcile: differences are explained and told; none is a quiet success."""

from __future__ import annotations

import json

import msgspec
import pytest
from cli_nodes import Call, Node, work

from finomw.types import CustomerId

pytestmark = pytest.mark.usefixtures("ticking")


@pytest.fixture
def books(shop: Node, call: Call) -> Node:
    """Alice has five dollars, and bob owes two."""
    call("customer", "add", "alice")
    call("grant", "alice", "5")
    call("customer", "add", "bob", "--plan", "postpaid")
    call("customer", "set", "bob", "--credit-limit", "10")
    work(shop, "bob", "search", {"requests": 2, "pages": 0})
    return shop


def damage(node: Node, customer: str, **fields: int) -> None:
    """Change what an account says, behind everybody's back."""
    with node.engine() as engine, engine.store.write() as txn:
        who = CustomerId(customer)
        account = engine.store.accounts.need(txn, who)
        engine.store.accounts.put(txn, who, msgspec.structs.replace(account, **fields))


def test_books_that_add_up_need_no_explanation(books: Node, call: Call) -> None:
    tail = books.tail()
    done = call("reconcile")
    assert done == (0, "no differences in 2 customers, no faults in the journal\n", "")
    told = call("reconcile", "--json")
    assert told.status == 0
    assert json.loads(told.out) == {
        "customers": 2,
        "differences": [],
        "unexplained": [],
        "journal_faults": [],
    }
    assert books.tail() == tail


def test_a_difference_is_explained_once_and_the_balance_stays(books: Node, call: Call) -> None:
    damage(books, "alice", balance=4_000_000)
    damage(books, "bob", credit_used=3_000_000)
    done = call("reconcile")
    assert (done.status, done.err) == (1, "")
    assert done.out.splitlines() == [
        "alice: the balance is 4.00 USD, its entries came to 5.00 USD; an adjustment explains it",
        "bob: the used credit is 3.00 USD, its entries came to 2.00 USD; an adjustment explains it",
        "2 differences in 2 customers, no faults in the journal",
    ]
    [entry] = json.loads(call("ledger", "alice", "--limit", "1", "--json").out)["entries"]
    assert (entry["kind"], entry["amount_micros"], entry["left_micros"]) == (
        "adjustment",
        -1_000_000,
        4_000_000,
    )
    assert entry["note"] == "found 4000000, the ledger's sum was 5000000"
    assert call("reconcile").status == 0
    assert call("verify").status == 0


def test_differences_are_told_to_programs(books: Node, call: Call) -> None:
    damage(books, "alice", balance=4_000_000)
    told = call("reconcile", "--json")
    assert told.status == 1
    assert json.loads(told.out) == {
        "customers": 2,
        "differences": [
            {
                "customer": "alice",
                "fund": "wallet",
                "found_micros": 4_000_000,
                "summed_micros": 5_000_000,
            }
        ],
        "unexplained": [],
        "journal_faults": [],
    }


def test_a_fault_of_the_journal_is_told(books: Node, call: Call) -> None:
    with books.engine() as engine:
        segment = engine.segments.path(0)
        with segment.open("r+b") as file:
            file.seek(4096 + 40)
            byte = file.read(1)
            file.seek(-1, 1)
            file.write(bytes([byte[0] ^ 1]))
        done = call("reconcile")
        told = call("reconcile", "--json")
        with segment.open("r+b") as file:
            file.seek(4096 + 40)
            file.write(byte)
    assert (done.status, done.err) == (1, "")
    assert done.out.splitlines()[0].startswith(f"{segment}: the journal's chain ends at LSN ")
    assert done.out.splitlines()[-1] == "no differences in 2 customers, 1 faults in the journal"
    assert told.status == 1
    assert len(json.loads(told.out)["journal_faults"]) == 1
