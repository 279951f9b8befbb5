"""What the books say: balance, ledger, verify; they read and never write."""

from __future__ import annotations

import itertools
import json

import msgspec
import pytest
from cli_nodes import Call, Node, hold, spend

from finomw.engine.policy import BelowZero
from finomw.types import CustomerId, UsageStatus

pytestmark = pytest.mark.usefixtures("ticking")


@pytest.fixture
def busy(node: Node, call: Call) -> Node:
    """Alice was given a dollar, made two calls, and overdrew; then she paid."""
    call("customer", "add", "alice")
    call("grant", "alice", "1", "--id", "first", "--note", "welcome")
    with node.engine() as engine:
        spend(engine, 400_000, 1_200, {"input_tokens": 7, "output_tokens": 2}, choice="small-1")
        spend(engine, 10, 1_000_000, {}, usage=UsageStatus.MISSING, note="no usage found")
    return node


def test_the_ledger_is_printed_newest_first_with_the_balance_after_each_entry(
    busy: Node, call: Call
) -> None:
    done = call("ledger", "alice")
    assert (done.status, done.err) == (0, "")
    with busy.engine() as engine:
        name = f"call/{engine.directory.node.short_id}-3"
    lines = [line.split("  ") for line in done.out.splitlines()]
    assert [[cell.strip() for cell in line if cell.strip()] for line in lines] == [
        ["TIME UTC", "KIND", "FUND", "AMOUNT USD", "LEFT USD", "SOURCE", "ROUTE", "COUNTS",
         "USAGE", "NOTE"],
        ["2026-02-01 00:00:06", "settlement", "wallet", "-1.00", "-0.0012",
         f"{name}-2/1/settlement/wallet", "chat", "missing", "no usage found"],
        ["2026-02-01 00:00:06", "hold_release", "wallet", "0.00001", "0.9988",
         f"{name}-2/1/hold_release/wallet"],
        ["2026-02-01 00:00:05", "hold", "wallet", "-0.00001", "0.99879",
         f"{name}-2/1/hold/wallet"],
        ["2026-02-01 00:00:04", "settlement", "wallet", "-0.0012", "0.9988",
         f"{name}-1/1/settlement/wallet", "chat:small-1", "input_tokens=7 output_tokens=2",
         "known"],
        ["2026-02-01 00:00:04", "hold_release", "wallet", "0.40", "1.00",
         f"{name}-1/1/hold_release/wallet"],
        ["2026-02-01 00:00:03", "hold", "wallet", "-0.40", "0.60", f"{name}-1/1/hold/wallet"],
        ["2026-02-01 00:00:00", "grant", "wallet", "1.00", "1.00", "manual/first", "welcome"],
    ]  # fmt: skip


def test_the_ledger_tells_programs_everything(busy: Node, call: Call) -> None:
    entries = json.loads(call("ledger", "alice", "--json").out)["entries"]
    settlement = entries[0]
    assert settlement["source_id"].endswith("-3-2/1/settlement/wallet")
    assert settlement["record"] == entries[1]["record"] > entries[2]["record"]
    assert settlement | {"record": 0, "source_id": ""} == {
        "record": 0,
        "at": "2026-02-01T00:00:06.000001Z",
        "kind": "settlement",
        "fund": "wallet",
        "amount_micros": -1_000_000,
        "left_micros": -1_200,
        "source": "call",
        "source_id": "",
        "note": "no usage found",
        "call": {
            "route": "chat",
            "choice": "",
            "counts": {},
            "usage": "missing",
            "price_version": "1a2b3c4d5e6f",
            "overrun_micros": 999_990,
            "quota": 0,
        },
    }
    assert entries[3]["call"]["counts"] == {"input_tokens": 7, "output_tokens": 2}
    assert entries[3]["call"]["choice"] == "small-1"
    assert entries[-1]["call"] is None
    for newer, older in itertools.pairwise(entries):
        assert newer["left_micros"] - newer["amount_micros"] == older["left_micros"]
    assert entries[-1]["left_micros"] == entries[-1]["amount_micros"] == 1_000_000


def test_the_ledger_is_limited(busy: Node, call: Call) -> None:
    entries = json.loads(call("ledger", "alice", "--json").out)["entries"]
    assert len(entries) == 7
    for limit in (1, 2, 7, 8):
        told = json.loads(call("ledger", "alice", "--limit", str(limit), "--json").out)
        assert told == {"customer": "alice", "entries": entries[:limit]}
    with busy.engine() as engine:
        call("grant", "alice", "9")
        for _ in range(5):
            spend(engine, 5, 5, {})
    assert len(call("ledger", "alice").out.splitlines()) == 1 + 20


def test_a_negative_balance_shows_and_blocks(busy: Node, call: Call) -> None:
    assert call("balance", "alice") == (
        0,
        "balance  -0.0012 USD\nheld     0.00 USD\nleft     0 %\n"
        "blocked  since 2026-02-01 00:00:06 UTC\n",
        "",
    )
    assert json.loads(call("balance", "alice", "--json").out) == {
        "customer": "alice",
        "status": "active",
        "balance_micros": -1_200,
        "held_micros": 0,
        "credit_limit_micros": 0,
        "credit_used_micros": 0,
        "credit_held_micros": 0,
        "remaining_percent": 0,
        "blocked_at": "2026-02-01T00:00:06.000001Z",
    }
    assert (
        "status      blocked since 2026-02-01 00:00:06 UTC" in call("customer", "show", "alice").out
    )
    assert call("customer", "list").out.splitlines()[1].endswith("  blocked")
    call("grant", "alice", "1")
    assert json.loads(call("balance", "alice", "--json").out)["blocked_at"] is None


def test_books_that_add_up_are_told_so(busy: Node, call: Call) -> None:
    call("grant", "alice", "1")
    with busy.engine() as engine:
        hold(engine, 250_000)
        done = call("verify")
        told = call("verify", "--json")
        tail = engine.store.tail()
    assert done == (
        0,
        "no faults in 1 customers, 9 ledger entries, 1 open holds and "
        f"{tail.number} journal records\n",
        "",
    )
    assert told.status == 0
    assert json.loads(told.out) == {
        "records": tail.number,
        "end_lsn": tail.end,
        "customers": 1,
        "entries": 9,
        "open_holds": 1,
        "faults": [],
    }


def test_books_that_do_not_add_up_end_with_status_1(busy: Node, call: Call) -> None:
    alice = CustomerId("alice")
    with busy.engine() as engine, engine.store.write() as txn:
        account = engine.store.accounts.need(txn, alice)
        engine.store.accounts.post(
            txn, alice, msgspec.structs.replace(account, balance=5), [], 0, BelowZero()
        )
    done = call("verify")
    assert (done.status, done.err) == (1, "")
    assert (
        done.out.splitlines()[0] == "alice: balance is 5, its entries and open holds come to -1200"
    )
    assert done.out.splitlines()[1].startswith("1 faults in 1 customers, 7 ledger entries")
    told = call("verify", "--json")
    assert told.status == 1
    assert json.loads(told.out)["faults"] == [
        "alice: balance is 5, its entries and open holds come to -1200"
    ]


@pytest.mark.parametrize(
    "command",
    [
        "balance alice",
        "ledger alice",
        "ledger alice --json",
        "customer list",
        "customer show alice",
        "key list alice",
        "holds --ended",
        "holds alice --json",
        "invoice alice --period 2026-02 --csv",
        "simulate --plan default --since 9999d",
        "price --route search --usage {}",
        "verify",
        "reconcile",
        "check",
    ],
)
def test_reading_writes_nothing(busy: Node, call: Call, command: str) -> None:
    tail, journal = busy.tail(), busy.journal()
    done = call(*command.split())
    assert (done.status, done.err) == (0, "")
    assert busy.tail() == tail
    assert busy.journal() == journal
    assert list((busy.data / "workers").iterdir()) == []
