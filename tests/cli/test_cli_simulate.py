"""finomw simulate: past usage under another plan."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from cli_nodes import SHOP, Call, Node, Ticker, spend, work

import finomw
from finomw.types import UsageStatus

pytestmark = pytest.mark.usefixtures("ticking")


@pytest.fixture
def busy(shop: Node, call: Call, ticking: Ticker) -> Node:
    """Alice and bob made calls on two days; carol made none."""
    call("customer", "add", "alice")
    call("customer", "add", "bob", "--plan", "postpaid")
    call("customer", "add", "carol")
    call("customer", "set", "bob", "--credit-limit", "10")
    call("grant", "alice", "50")
    ticking.seconds = 1_769_904_000
    work(shop, "alice", "chat", {"tokens": 130}, "small-1")  # 100 free, the rest of the welcome
    work(shop, "bob", "chat", {"tokens": 4}, "large-1")
    ticking.seconds = 1_769_904_000 + 5 * 86_400
    work(shop, "alice", "search", {"requests": 3, "pages": 4})  # 3.50, of it 0.20 welcome
    with shop.engine() as engine:
        spend(engine, 20_000, 20_000, {}, choice="small-1", usage=UsageStatus.MISSING)
    return shop


def test_each_customer_is_priced_anew(busy: Node, call: Call) -> None:
    done = call("simulate", "--plan", "postpaid", "--since", "30d")
    assert (done.status, done.err) == (0, "")
    assert done.out.splitlines() == [
        "CUSTOMER  CALLS  KEPT  CHARGED USD  SIMULATED USD  CHANGE USD",
        "alice         3     1         3.32           5.32        2.00",
        "bob           1     0         0.40           0.40        0.00",
        "total         4     1         3.72           5.72        2.00",
    ]
    done = call("simulate", "--plan", "postpaid", "--since", "2026-02-02", "--csv")
    assert done.out.splitlines() == [
        "customer,calls,kept,charged_micros,simulated_micros,change_micros",
        "alice,2,1,3320000,4020000,700000",
    ]


def test_programs_get_the_total_too(busy: Node, call: Call) -> None:
    told = call("simulate", "--plan", "postpaid", "--since", "2026-02-02", "--json")
    row = {
        "calls": 2,
        "kept": 1,
        "charged_micros": 3_320_000,
        "simulated_micros": 4_020_000,
        "change_micros": 700_000,
    }
    assert json.loads(told.out) == {
        "plan": "postpaid",
        "since": "2026-02-02T00:00:00.000000Z",
        "customers": [{"customer": "alice"} | row],
        "total": row,
    }


def test_a_plan_may_stand_in_another_file(busy: Node, call: Call) -> None:
    Path("cheaper.yaml").write_text(SHOP.replace("usd: 1}", 'usd: "0.1"}'))
    command = ("simulate", "--since", "2026-02-02", "--json", "--plan")
    default = json.loads(call(*command, "cheaper.yaml").out)
    assert default["plan"] == "default"
    # two requests at 0.10 and one at 0.50, four pages at 0.25, less 0.50 of the quota; one kept
    assert default["total"]["simulated_micros"] == 1_700_000 - 500_000 + 20_000
    other = json.loads(call(*command, "./cheaper.yaml", "--plan-name", "postpaid").out)
    assert other["plan"] == "postpaid"
    assert other["total"]["simulated_micros"] == 1_300_000 + 20_000
    with_data = call(*command, "./cheaper.yaml", "--data", "fino-data")
    assert json.loads(with_data.out) == default


def test_nothing_used_is_nothing_simulated(busy: Node, call: Call) -> None:
    done = call("simulate", "--plan", "default", "--since", "2027-01-01")
    assert done.out.splitlines()[1:] == [
        "total         0     0         0.00           0.00        0.00"
    ]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("--plan pro --since 30d", '--plan: the YAML has no plan "pro"; known: default, postpaid'),
        ("--plan none.yaml --since 30d", "none.yaml: cannot be read: No such file or directory; "
         "make one with `finomw init`, or name another with --config"),
        ("--plan ./fino.yaml --plan-name x --since 30d",
         '--plan-name: the YAML has no plan "x"; known: default, postpaid'),
        ("--plan default --plan-name x --since 30d",
         "--plan-name: default is a plan's name and not a file, which has a /"),
        ("--plan default --since 30d --data fino-data",
         "--plan: the YAML is not read with --data: name a file"),
        ("--plan default --since x", "--since: expected a time such as 2027-01-31T00:00:00Z, a day "
         'such as 2027-01-31, or a span such as 30d or 12h, found "x"'),
        ("--plan default", "Missing option '--since'; see `finomw simulate --help`"),
        ("--plan default --since 1d --csv --json", "--csv: not together with --json"),
    ],
)  # fmt: skip
def test_what_cannot_be_simulated_is_told_in_one_line(
    busy: Node, call: Call, options: str, message: str
) -> None:
    assert call("simulate", *options.split()) == (2, "", f"error: {message}\n")


def test_a_terminal_gets_a_progress_bar_and_a_pipe_none(busy: Node) -> None:
    command = [sys.executable, "-m", "finomw", "simulate", "--plan", "default", "--since", "9999d"]
    environment = os.environ | {
        "PYTHONPATH": str(Path(finomw.__file__).parents[1]),
        "TERM": "xterm",
        "COLUMNS": "80",
    }
    ours, theirs = os.openpty()
    done = subprocess.run(
        command, stdout=subprocess.PIPE, stderr=theirs, text=True, env=environment, check=True
    )
    os.close(theirs)
    shown = os.read(ours, 65_536).decode()
    os.close(ours)
    assert "customers" in shown
    assert "100%" in shown
    assert done.stdout.splitlines()[-1].split()[:3] == ["total", "4", "1"]
    quiet = subprocess.run(command, capture_output=True, text=True, env=environment, check=True)
    assert (quiet.stdout, quiet.stderr) == (done.stdout, "")
