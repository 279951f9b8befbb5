"""finomw ledger: filtered by time, kind and source; for people, for programs, for spreadsheets."""

from __future__ import annotations

import csv
import json

import pytest
from cli_nodes import Call, Node, Ticker, hold, spend, work

from finomw.types import UsageStatus

pytestmark = pytest.mark.usefixtures("ticking")


@pytest.fixture
def alice(shop: Node, call: Call, ticking: Ticker) -> Node:
    """Alice got money on three days of February and in between made a call."""
    call("customer", "add", "alice")
    for day, source in ((3, "stripe"), (4, "manual"), (5, "stripe")):
        ticking.seconds = 1_769_904_000 + (day - 1) * 86_400
        call("grant", "alice", str(day), "--id", f"day-{day}", "--source", source)
    ticking.seconds = 1_769_904_000 + 5 * 86_400
    with shop.engine() as engine:
        spend(engine, 2_000, 1_500, {"tokens": 3}, choice="=1+1", usage=UsageStatus.PARTIAL)
    return shop


def ids(call: Call, *options: str) -> list[str]:
    """Say which entries are printed: their ids, those of the call by their kind."""
    entries = json.loads(call("ledger", "alice", "--json", *options).out)["entries"]
    return [entry["kind"] if entry["source"] == "call" else entry["source_id"] for entry in entries]


CALL = ["settlement", "hold_release", "hold"]


@pytest.mark.parametrize(
    ("options", "found"),
    [
        ("", [*CALL, "day-5", "day-4", "day-3"]),
        ("--since 2026-02-04", [*CALL, "day-5", "day-4"]),
        ("--since 2026-02-04T00:00:00Z", [*CALL, "day-5", "day-4"]),
        ("--since 2026-02-04T00:00:30+00:00", [*CALL, "day-5"]),
        ("--until 2026-02-04", ["day-3"]),
        ("--since 2026-02-04 --until 2026-02-05", ["day-4"]),
        ("--since 30h", [*CALL, "day-5"]),
        ("--since 24h", CALL),
        ("--since 2d", [*CALL, "day-5"]),
        ("--since 3d --until 2026-02-06", ["day-5", "day-4"]),
        ("--kind grant", ["day-5", "day-4", "day-3"]),
        ("--kind grant --limit 2", ["day-5", "day-4"]),
        ("--kind hold --kind settlement", ["settlement", "hold"]),
        ("--kind adjustment", []),
        ("--source stripe", ["day-5", "day-3"]),
        ("--source call --kind hold", ["hold"]),
        ("--source stripe --since 2026-02-04", ["day-5"]),
        ("--limit 1", ["settlement"]),
        ("--limit 0", [*CALL, "day-5", "day-4", "day-3"]),
    ],
)
def test_entries_are_filtered(alice: Node, call: Call, options: str, found: list[str]) -> None:
    assert ids(call, *options.split()) == found


def test_without_a_limit_all_entries_are_printed(alice: Node, call: Call) -> None:
    with alice.engine() as engine:
        for _ in range(10):
            spend(engine, 5, 5, {})
    assert len(ids(call)) == 20
    assert len(ids(call, "--limit", "0")) == 36
    assert len(call("ledger", "alice", "--limit", "0").out.splitlines()) == 1 + 36


def test_what_is_left_stays_right_when_entries_are_left_out(alice: Node, call: Call) -> None:
    entries = json.loads(call("ledger", "alice", "--json", "--source", "stripe").out)["entries"]
    assert [(entry["amount_micros"], entry["left_micros"]) for entry in entries] == [
        (5_000_000, 12_000_000),
        (3_000_000, 3_000_000),
    ]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("--since yesterday", "--since: expected a time such as 2027-01-31T00:00:00Z, a day such "
         'as 2027-01-31, or a span such as 30d or 12h, found "yesterday"'),
        ("--since 30", "--since: expected a time such as 2027-01-31T00:00:00Z, a day such "
         'as 2027-01-31, or a span such as 30d or 12h, found "30"'),
        ("--until 30d", "--until: expected a time such as 2027-01-31T00:00:00Z, a day such "
         'as 2027-01-31, found "30d"'),
        ("--kind grants", '--kind: no entry is a "grants"; nearest: grant'),
        ("--kind grant --kind x", '--kind: no entry is a "x"; known: grant, hold, hold_release, '
         "settlement, refund, adjustment"),
        ("--limit -1", "Invalid value for '--limit': Input should be greater than or equal to 0; "
         "see `finomw ledger --help`"),
        ("--csv --json", "--csv: not together with --json"),
    ],
)  # fmt: skip
def test_what_means_nothing_is_refused(alice: Node, call: Call, options: str, message: str) -> None:
    assert call("ledger", "alice", *options.split()) == (2, "", f"error: {message}\n")


def test_both_funds_are_shown_with_what_is_left_of_each(shop: Node, call: Call) -> None:
    call("customer", "add", "bob", "--plan", "postpaid")
    call("customer", "set", "bob", "--credit-limit", "10")
    call("grant", "bob", "2", "--id", "a")
    work(shop, "bob", "search", {"requests": 1, "pages": 1})
    call("paid", "bob", "1", "--id", "b")
    lines = call("ledger", "bob").out.splitlines()
    assert [line.split()[2:6] for line in lines[1:]] == [
        ["grant", "credit", "1.00", "-0.25"],
        ["settlement", "credit", "-1.25", "-1.25"],
        ["hold_release", "credit", "1.25", "0.00"],
        ["hold", "credit", "-1.25", "-1.25"],
        ["grant", "wallet", "2.00", "2.00"],
    ]


def test_the_csv_has_a_line_for_each_entry(alice: Node, call: Call) -> None:
    call("grant", "alice", "1", "--id", "n", "--note", "-5 % off, thanks")
    entries = json.loads(call("ledger", "alice", "--json", "--limit", "3").out)["entries"]
    granted, settled, released = ((entry["at"], entry["record"]) for entry in entries)
    hold_id = entries[1]["source_id"].partition("/")[0]
    done = call("ledger", "alice", "--csv", "--limit", "3")
    assert (done.status, done.err) == (0, "")
    assert done.out.splitlines() == [
        "at,kind,fund,amount_micros,left_micros,source,source_id,route,choice,counts,usage,"
        "price_version,overrun_micros,quota,note,record",
        f"{granted[0]},grant,wallet,1000000,12998500,manual,n,,,,,,,,"
        f'"\'-5 % off, thanks",{granted[1]}',
        f"{settled[0]},settlement,wallet,-1500,11998500,call,{hold_id}/1/settlement/wallet,"
        f'chat,\'=1+1,"{{""tokens"": 3}}",partial,1a2b3c4d5e6f,0,0,,{settled[1]}',
        f"{released[0]},hold_release,wallet,2000,12000000,call,{hold_id}/1/hold_release/wallet,"
        f",,,,,,,,{released[1]}",
    ]
    rows = list(csv.DictReader(call("ledger", "alice", "--csv").out.splitlines()))
    assert sum(int(row["amount_micros"]) for row in rows) == int(rows[0]["left_micros"])


def test_a_cell_of_the_csv_never_breaks_a_line(alice: Node, call: Call) -> None:
    with alice.engine() as engine:
        hold(engine, 5)
        spend(engine, 5, 5, {}, choice="a\nb\x1b[31m")
    rows = list(csv.DictReader(call("ledger", "alice", "--csv").out.splitlines()))
    assert rows[0]["choice"] == "a\\nb\\x1b[31m"
    assert len(rows) == 10
