"""finomw holds: what is set aside, for how long, and what became of it."""

from __future__ import annotations

import json
from datetime import timedelta
from typing import NamedTuple

import pytest
from cli_nodes import Call, Node, Ticker, hold, work

from finomw.billing import Billing
from finomw.cli.output import duration
from finomw.engine import charge
from finomw.types import HoldId

pytestmark = pytest.mark.usefixtures("ticking")


class Busy(NamedTuple):
    """A node with holds; ``first`` is the oldest of the open ones."""

    node: Node
    first: HoldId


@pytest.fixture
def busy(shop: Node, call: Call, ticking: Ticker) -> Busy:
    """Alice and bob have calls in flight, and each of them one that has ended."""
    call("customer", "add", "alice")
    call("customer", "add", "bob", "--plan", "postpaid")
    call("customer", "set", "bob", "--credit-limit", "10")
    call("grant", "alice", "5")
    ticking.seconds = 1_769_904_000
    with Billing(shop.config, owns=lambda *_: True) as billing:
        small = billing.hold(
            "bob", "chat", {"tokens": 9}, timedelta(hours=5), choice="small-1", resource="job-7"
        )
        large = billing.hold("bob", "chat", {"tokens": 20}, timedelta(days=2), choice="large-1")
    ticking.seconds = 1_769_904_000 + 3_600
    work(shop, "alice", "chat", {"tokens": 130}, "small-1")
    with Billing(shop.config) as billing:
        billing.release(large.hold, "cancelled")
        billing.hold("alice", "search", {"requests": 1, "pages": 4}, timedelta(hours=1))
    return Busy(shop, small.hold)


def opened_at(call: Call) -> tuple[str, str]:
    """Return when bob's call began, soon after midnight, and when it expires, near five hours."""
    [bob] = json.loads(call("holds", "bob", "--json").out)["holds"]
    assert bob["since"].startswith("2026-02-01T00:00:0")
    assert bob["expires"].startswith("2026-02-01T05:00:0")
    return bob["since"], bob["expires"]


def _seconds(rfc3339: str) -> str:
    return rfc3339[:19].replace("T", " ")


def test_open_holds_are_printed_the_oldest_first(busy: Busy, call: Call, ticking: Ticker) -> None:
    ticking.seconds = 1_769_904_000 + 7_200
    done = call("holds")
    assert (done.status, done.err) == (0, "")
    since, expires = opened_at(call)
    header, first, second = done.out.splitlines()
    assert header.split("  ")[0] == "HOLD"
    assert [cell.strip() for cell in first.split("  ") if cell] == [
        busy.first, "bob", "chat:small-1", "0.09", "credit 0.09", _seconds(since),
        "1h 59m", "open", _seconds(expires), "job-7",
    ]  # fmt: skip
    assert "alice     search              1.80  quota welcome 0.20 USD, wallet 1.80  " in second


def test_ended_holds_come_after_the_open_ones(busy: Busy, call: Call) -> None:
    told = json.loads(call("holds", "--ended", "--json").out)["holds"]
    assert [
        (hold["customer"], hold["route"], hold["state"], hold["charged_micros"]) for hold in told
    ] == [
        ("bob", "chat", "open", None),
        ("alice", "search", "open", None),
        ("bob", "chat", "released", 0),
        ("alice", "chat", "settled", 0),
    ]
    lines = call("holds", "--ended").out.splitlines()
    assert "quota free 100, quota welcome 0.30 USD" in lines[4]
    assert lines[4].endswith("  0.00")
    limited = json.loads(call("holds", "--ended", "--limit", "3", "--json").out)["holds"]
    assert [hold["hold"] for hold in limited] == [hold["hold"] for hold in told[:3]]
    assert len(call("holds", "--ended", "--limit", "1").out.splitlines()) == 1 + 1
    assert len(call("holds", "--ended", "--limit", "0").out.splitlines()) == 1 + 4


def test_the_holds_of_one_customer(busy: Busy, call: Call) -> None:
    told = json.loads(call("holds", "alice", "--json").out)["holds"]
    assert [hold["customer"] for hold in told] == ["alice"]
    since, expires = opened_at(call)
    told = json.loads(call("holds", "bob", "--ended", "--json").out)["holds"]
    version = told[0].pop("price_version")
    assert len(version) == 12
    age = told[0].pop("age_seconds")
    assert 3_600 < age < 3_700
    assert told[:1] == [
        {
            "hold": busy.first,
            "customer": "bob",
            "route": "chat",
            "choice": "small-1",
            "plan": "postpaid",
            "state": "open",
            "started": False,
            "amount_micros": 90_000,
            "parts": {"wallet_micros": 0, "credit_micros": 90_000, "quotas": []},
            "ceiling": {"tokens": 9},
            "on_crash": "release",
            "resource": "job-7",
            "since": since,
            "expires": expires,
            "ended": None,
            "charged_micros": None,
            "counts": None,
        }
    ]
    assert [hold["state"] for hold in told] == ["open", "released"]
    assert 3_600 <= told[1]["age_seconds"] < 3_620
    assert call("holds", "nobody") == (2, "", "error: customer 'nobody' does not exist\n")


def test_an_ended_hold_tells_its_quota_parts_and_how_long_it_was_open(
    busy: Busy, call: Call
) -> None:
    settled = json.loads(call("holds", "alice", "--ended", "--json").out)["holds"][-1]
    assert settled["parts"] == {
        "wallet_micros": 0,
        "credit_micros": 0,
        "quotas": [
            {"quota": "free", "start": "2026-01-31T23:59:58.000001Z", "amount": 100},
            {
                "quota": "welcome",
                "start": "2026-01-31T23:59:58.000001Z",
                "amount_micros": 300_000,
            },
        ],
    }
    assert (settled["age_seconds"], settled["counts"]) == (1, {"tokens": 130})


def test_a_hold_whose_answer_began_is_told_so(busy: Busy, call: Call) -> None:
    with busy.node.engine() as engine:
        held = charge.Held(hold(engine, 5), 5, engine.tail())
        charge.start(engine, held)
        assert call("holds", "alice").out.splitlines()[-1].endswith("  started  -")
        told = json.loads(call("holds", "alice", "--json").out)["holds"][-1]
    assert (told["state"], told["started"], told["expires"]) == ("open", True, None)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (-5, "0s"),
        (0, "0s"),
        (59, "59s"),
        (60, "1m 0s"),
        (3_599, "59m 59s"),
        (3_600, "1h 0m"),
        (86_399, "23h 59m"),
        (90_061, "1d 1h"),
        (40 * 86_400, "40d 0h"),
    ],
)
def test_a_duration_has_two_units(seconds: int, text: str) -> None:
    assert duration(seconds * 10**6) == text
