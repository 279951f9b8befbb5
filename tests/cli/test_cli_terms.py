"""What an owner decides about a customer: standing, terms, plan, and the end of the account."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
from datetime import timedelta
from pathlib import Path

import pytest
from cli_nodes import Call, Node, Outcome, Ticker, hold, spend, work

import finomw
from finomw.billing import Billing

pytestmark = pytest.mark.usefixtures("ticking")


@pytest.fixture
def alice(shop: Node, call: Call) -> Node:
    """Make a node with one customer in Berlin."""
    assert call("customer", "add", "alice", "--zone", "Europe/Berlin").status == 0
    return shop


def account(call: Call) -> dict[str, object]:
    """Everything that is shown of alice."""
    return json.loads(call("customer", "show", "alice", "--json").out)


def test_a_suspension_lasts_until_it_is_ended(alice: Node, call: Call) -> None:
    done = call("customer", "suspend", "alice", "--reason", "overdue")
    assert done == (0, "suspended customer alice: new calls are refused\n", "")
    assert account(call)["status"] == "suspended"
    assert call("customer", "list").out.splitlines()[1].split()[-1] == "suspended"
    call("grant", "alice", "5")
    assert "status   suspended" in call("balance", "alice").out
    again = call("customer", "suspend", "alice", "--reason", "still")
    assert again == (2, "", "error: customer 'alice' is suspended already\n")
    done = call("customer", "resume", "alice", "--reason", "paid")
    assert done == (0, "resumed customer alice\n", "")
    assert account(call)["status"] == "active"
    again = call("customer", "resume", "alice", "--reason", "paid")
    assert again == (2, "", "error: customer 'alice' is not suspended\n")


def test_resuming_does_not_unblock(alice: Node, call: Call) -> None:
    call("grant", "alice", "2", "--id", "one")
    with alice.engine() as engine:
        spend(engine, 500_000, 500_000, {})
    call("refund", "alice", "2", "--of", "manual", "one")
    call("customer", "suspend", "alice", "--reason", "x")
    blocked = str(account(call)["blocked_at"])[:19].replace("T", " ")
    status = call("customer", "show", "alice").out.splitlines()[5]
    assert status == f"status      suspended, blocked since {blocked} UTC"
    done = call("customer", "resume", "alice", "--reason", "x")
    assert done.out == "resumed customer alice; it is still blocked, its balance is below zero\n"


def test_suspending_tells_programs_the_account(alice: Node, call: Call) -> None:
    told = json.loads(call("customer", "suspend", "alice", "--reason", "x", "--json").out)
    assert (told["customer"], told["status"]) == ("alice", "suspended")
    told = json.loads(call("customer", "resume", "alice", "--reason", "x", "--json").out)
    assert (told["customer"], told["status"]) == ("alice", "active")


def test_terms_are_set_one_by_one_or_together(alice: Node, call: Call) -> None:
    done = call("customer", "set", "alice", "--credit-limit", "500")
    assert done == (0, "the credit limit of alice is 500.00 USD\n", "")
    done = call("customer", "set", "alice", "--buffer", "0.25")
    assert done == (0, "the buffer of alice is 0.25 USD\n", "")
    shown = account(call)
    assert (shown["credit_limit_micros"], shown["buffer_micros"]) == (500_000_000, 250_000)
    done = call("customer", "set", "alice", "--credit-limit", "0", "--buffer", "0")
    assert done.out == ("the credit limit of alice is 0.00 USD; the buffer of alice is 0.00 USD\n")
    told = json.loads(call("customer", "set", "alice", "--buffer", "1", "--json").out)
    assert (told["credit_limit_micros"], told["buffer_micros"]) == (0, 1_000_000)


@pytest.mark.parametrize(
    ("command", "message"),
    [
        ("customer set alice", "nothing to set: give --credit-limit or --buffer"),
        ("customer set nobody --buffer 1", "customer 'nobody' does not exist"),
        ("customer set alice --credit-limit -1", "--credit-limit: expected a decimal amount"),
        ("customer suspend nobody --reason x", "customer 'nobody' does not exist"),
        ("customer resume nobody --reason x", "customer 'nobody' does not exist"),
        ("customer suspend alice", "Missing option '--reason'"),
        ("customer add bob --zone Europe/Berln", 'expected a time zone such as "Europe/Berlin"'),
        ("customer delete nobody --yes", "customer 'nobody' does not exist"),
        ("customer delete alice", "--yes: needed to delete where nobody can be asked"),
        ("subscribe alice pro", 'PLAN: the YAML has no plan "pro"; known: default, postpaid'),
        ("subscribe alice defaut", 'PLAN: the YAML has no plan "defaut"; nearest: default'),
        ("subscribe nobody default", "customer 'nobody' does not exist"),
        ("subscribe alice default --zone Berlin", 'expected a time zone such as "Europe/Berlin"'),
        ("unsubscribe nobody", "customer 'nobody' does not exist"),
        ("change-plan alice pro", 'PLAN: the YAML has no plan "pro"; known: default, postpaid'),
        ("change-plan nobody default", "customer 'nobody' does not exist"),
    ],
)
def test_what_cannot_be_is_refused_and_changes_nothing(
    alice: Node, call: Call, monkeypatch: pytest.MonkeyPatch, command: str, message: str
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO("y\n"))
    tail, journal = alice.tail(), alice.journal()
    done = call(*command.split())
    assert (done.status, done.out) == (2, "")
    assert done.err.startswith(f"error: {message}")
    assert done.err.count("\n") == 1
    assert (alice.tail(), alice.journal()) == (tail, journal)


def test_a_customer_has_the_time_zone_of_its_periods(alice: Node, call: Call) -> None:
    assert account(call)["zone"] == "Europe/Berlin"
    done = call("subscribe", "alice", "postpaid")
    assert done == (
        0,
        "subscribed customer alice to the plan postpaid, in the time zone Europe/Berlin\n",
        "",
    )
    told = json.loads(call("subscribe", "alice", "default", "--zone", "UTC", "--json").out)
    assert (told["plan"], told["zone"]) == ("default", "UTC")
    assert told["subscribed"] > told["created"]


def test_a_plan_is_changed_and_ended(alice: Node, call: Call) -> None:
    before = account(call)
    done = call("change-plan", "alice", "postpaid")
    assert done == (0, "customer alice is on the plan postpaid from now on\n", "")
    assert account(call) == before | {"plan": "postpaid"}
    done = call("unsubscribe", "alice")
    assert done == (0, "unsubscribed customer alice: its calls are refused\n", "")
    assert account(call)["plan"] is None
    assert call("customer", "list").out.splitlines()[1].split()[:2] == ["alice", "-"]
    assert call("unsubscribe", "alice") == (2, "", "error: customer 'alice' has no plan\n")
    assert call("change-plan", "alice", "default").status == 2
    assert call("subscribe", "alice", "default").status == 0


def test_with_data_a_plan_is_taken_as_it_is(alice: Node, call: Call) -> None:
    alice.config.unlink()
    data = ("--data", "fino-data")
    assert call("subscribe", "alice", "other", *data).status == 0
    assert json.loads(call("change-plan", "alice", "third", "--json", *data).out)["plan"] == "third"
    assert json.loads(call("unsubscribe", "alice", "--json", *data).out)["plan"] is None


def test_showing_a_customer_tells_quotas_and_usage(
    alice: Node, call: Call, ticking: Ticker
) -> None:
    call("grant", "alice", "5")
    work(alice, "alice", "chat", {"tokens": 30}, "small-1")
    work(alice, "alice", "search", {"requests": 3, "pages": 0})
    with Billing(alice.config) as billing:
        billing.hold("alice", "search", {"requests": 1, "pages": 0}, timedelta(hours=1))
    call("customer", "set", "alice", "--credit-limit", "9")
    done = call("customer", "show", "alice")
    lines = done.out.splitlines()
    assert "time zone   Europe/Berlin" in lines
    assert "credit      0.00 of 9.00 USD used" in lines
    assert lines[15:22] == [
        "QUOTA        LEFT        OF      HELD  METERS  PERIOD UTC",
        "free           70       100         0  tokens  until 2026-02-28 23:00:00",
        "welcome  0.00 USD  0.50 USD  0.00 USD  cost    once",
        "",
        "METER     USED  HELD  PERIOD UTC",
        "requests     3     1  until 2026-02-28 23:00:00",
        "",
    ]
    shown = account(call)
    assert shown["open_holds"] == 1
    assert shown["quotas"] == [
        {
            "quota": "free",
            "meters": ["tokens"],
            "start": "2026-01-31T23:59:58.000001Z",
            "end": "2026-02-28T23:00:00.000000Z",
            "given": 100,
            "used": 30,
            "held": 0,
            "left": 70,
        },
        {
            "quota": "welcome",
            "meters": [],
            "start": "2026-01-31T23:59:58.000001Z",
            "end": None,
            "given_micros": 500_000,
            "used_micros": 500_000,
            "held_micros": 0,
            "left_micros": 0,
        },
    ]
    assert shown["usage"] == {
        "start": "2026-01-31T23:59:58.000001Z",
        "end": "2026-02-28T23:00:00.000000Z",
        "used": {"requests": 3},
        "held": {"requests": 1},
    }
    ticking.seconds += 28 * 86_400
    over = call("customer", "show", "alice").out.splitlines()
    ended = "ended 2026-02-28 23:00:00; begins anew with the next call"
    assert over[16] == f"free           70       100         0  tokens  {ended}"
    assert over[20] == f"requests     3     1  {ended}"


def test_a_customer_is_deleted_and_its_ledger_stays(alice: Node, call: Call) -> None:
    call("grant", "alice", "5")
    call("key", "create", "alice")
    done = call("customer", "delete", "alice", "--yes")
    assert done == (0, "deleted customer alice: its ledger stays\n", "")
    shown = account(call)
    assert (shown["status"], shown["balance_micros"], shown["keys"]) == ("closed", 0, [])
    entries = json.loads(call("ledger", "alice", "--json").out)["entries"]
    assert [(entry["kind"], entry["amount_micros"]) for entry in entries] == [
        ("refund", -5_000_000),
        ("grant", 5_000_000),
    ]
    assert call("verify").status == 0
    again = call("customer", "delete", "alice", "--yes")
    assert again == (2, "", "error: customer 'alice' is closed already\n")
    erased = call("customer", "delete", "alice", "--yes", "--erase")
    assert erased == (0, "deleted customer alice: its ledger and name are erased\n", "")
    assert json.loads(call("ledger", "alice", "--json").out)["entries"] == []


def test_deleting_tells_programs_the_account(alice: Node, call: Call) -> None:
    told = json.loads(call("customer", "delete", "alice", "--yes", "--erase", "--json").out)
    assert (told["status"], told["plan"], told["name"]) == ("closed", None, "")


def test_a_customer_with_calls_under_way_is_not_deleted(alice: Node, call: Call) -> None:
    call("grant", "alice", "5")
    with alice.engine() as engine:
        hold(engine, 1_000)
        done = call("customer", "delete", "alice", "--yes")
    assert (done.status, done.out) == (2, "")
    assert done.err.startswith("error: customer 'alice' has 1 open holds")


def delete_at_a_terminal(answer: bytes, *options: str) -> Outcome:
    """Let somebody at a terminal delete alice, and answer the question."""
    ours, theirs = os.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", "finomw", "customer", "delete", "alice", *options],
        stdin=theirs,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {"PYTHONPATH": str(Path(finomw.__file__).parents[1])},
    )
    os.close(theirs)
    os.write(ours, answer)
    out, err = process.communicate(timeout=60)
    os.close(ours)
    return Outcome(process.returncode, out, err)


@pytest.mark.parametrize("answer", [b"n\n", b"\n", b"yess\n", b"\x04"])
def test_at_a_terminal_anything_but_yes_deletes_nothing(
    alice: Node, call: Call, answer: bytes
) -> None:
    call("grant", "alice", "5")
    tail = alice.tail()
    done = delete_at_a_terminal(answer)
    assert done == (
        2,
        "",
        "delete customer alice? 5.00 USD are left and go back; its keys go [y/N] "
        "error: nothing was deleted\n",
    )
    assert alice.tail() == tail


def test_at_a_terminal_yes_deletes(alice: Node, call: Call) -> None:
    call("customer", "set", "alice", "--credit-limit", "5")
    call("change-plan", "alice", "postpaid")
    work(alice, "alice", "chat", {"tokens": 30}, "small-1")
    done = delete_at_a_terminal(b"y\n", "--erase")
    assert done == (
        0,
        "deleted customer alice: its ledger and name are erased\n",
        "delete customer alice? 0.30 USD of credit are forgiven; "
        "its keys go, its ledger and name are erased [y/N] ",
    )
    assert account(call)["credit_used_micros"] == 0
