"""The command as a process: beside a working API, in pipes, on a terminal, interrupted."""

from __future__ import annotations

import itertools
import json
import os
import pty
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from cli_nodes import SMALL, Call, Node

import finomw

WORKER = """
import sys, threading
sys.path.insert(0, sys.argv[2])
from cli_nodes import hold, spend
from finomw.engine.engine import close_engine, open_engine

engine = open_engine(sys.argv[1])
stop = threading.Event()
threading.Thread(target=lambda: (sys.stdin.read(), stop.set()), daemon=True).start()
hold(engine, 5_000)
calls = 0
while not stop.is_set():
    spend(engine, 1_000, 100, {"tokens": 10})
    engine.flush()
    calls += 1
    if calls == 1:
        print("charging", flush=True)
print(calls, flush=True)
sys.stdin.close()
close_engine(engine)
"""

GROUPS = ("customer", "key")
COMMAND = [sys.executable, "-m", "finomw"]


@pytest.fixture(autouse=True)
def _import_from_here(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(Path(finomw.__file__).parents[1]))


@pytest.fixture
def worker(folder: Path, call: Call) -> Iterator[subprocess.Popen[str]]:
    """Start a process that holds a call open and makes one call after the other."""
    (folder / "fino.yaml").write_text(SMALL.replace("1MiB", "64MiB"))
    call("init")
    call("customer", "add", "alice")
    call("grant", "alice", "9000")
    process = subprocess.Popen(
        [sys.executable, "-c", WORKER, "fino-data", str(Path(__file__).parent)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    with process:
        assert process.stdout is not None
        assert process.stdout.readline() == "charging\n"
        yield process
        process.kill()


def test_the_commands_are_right_while_a_worker_charges(
    worker: subprocess.Popen[str], call: Call
) -> None:
    for round_number in range(1, 6):
        granted = json.loads(call("grant", "alice", "1", "--json").out)
        assert granted["repeated"] is False
        balance = json.loads(call("balance", "alice", "--json").out)
        assert balance["held_micros"] in (5_000, 6_000)
        spent = (9000 + round_number) * 10**6 - balance["balance_micros"] - balance["held_micros"]
        assert spent > 0
        assert spent % 100 == 0
        entries = json.loads(call("ledger", "alice", "--limit", "50", "--json").out)["entries"]
        for newer, older in itertools.pairwise(entries):
            assert newer["left_micros"] - newer["amount_micros"] == older["left_micros"]
        shown = json.loads(call("customer", "show", "alice", "--json").out)
        assert shown["held_micros"] == 5_000 + 1_000 * (shown["open_holds"] - 1)
        assert shown["credited_total_micros"] - shown["spent_total_micros"] == (
            shown["balance_micros"] + shown["held_micros"]
        )
        verified = call("verify", "--json")
        assert verified.status == 0
        assert json.loads(verified.out)["faults"] == []
    assert worker.poll() is None
    out, _ = worker.communicate()
    calls = int(out)
    assert calls > 5
    account = json.loads(call("customer", "show", "alice", "--json").out)
    assert account["balance_micros"] == 9005 * 10**6 - calls * 100 - 5_000
    assert (account["held_micros"], account["open_holds"]) == (5_000, 1)
    assert json.loads(call("verify", "--json").out)["entries"] == 6 + 1 + 3 * calls


def test_from_an_empty_folder_to_a_balance(folder: Path, shell: Call) -> None:
    assert shell("init").status == 0
    assert shell("customer", "add", "alice").out == "added customer alice with the plan default\n"
    assert shell("key", "create", "alice").out.startswith("fino_")
    assert shell("grant", "alice", "-5").status == 2
    assert shell("grant", "alice", "5", "--id", "one").status == 0
    assert shell("verify") == (
        0,
        "no faults in 1 customers, 1 ledger entries, 0 open holds and 6 journal records\n",
        "",
    )


def test_the_version_is_the_packages(call: Call) -> None:
    assert call("--version") == (0, f"finomw {finomw.__version__}\n", "")


def test_without_a_command_the_help_lists_all_of_them(call: Call) -> None:
    done = call()
    assert (done.status, done.err) == (0, "")
    verbs = done.out.partition("Commands:\n")[2].partition("\n\n")[0].splitlines()
    listed = [line for line in verbs if line.startswith("  ") and line[2] != " "]
    assert [line.split()[0] for line in listed] == [
        "init", "check", "presets", "meter", "price", "customer", "key", "subscribe",
        "unsubscribe", "change-plan", "grant", "refund", "paid", "balance", "ledger", "holds",
        "invoice", "simulate", "verify", "reconcile", "backup", "restore", "checkpoint", "upgrade",
        "recover", "demo",
    ]  # fmt: skip
    groups = [call(group, "--help").out.partition("Commands:\n")[2] for group in GROUPS]
    for line in (*listed[:-1], *"".join(groups).splitlines()):
        assert not line.endswith("...")


@pytest.mark.parametrize(
    "command",
    ["init", "check", "meter try", "price", "customer add", "customer list", "customer show",
     "customer suspend", "customer resume", "customer set", "customer delete", "key create",
     "key revoke", "key list", "subscribe", "unsubscribe", "change-plan", "grant", "refund",
     "paid", "balance", "ledger", "holds", "invoice", "simulate", "verify", "reconcile"],
)  # fmt: skip
def test_every_help_has_an_example_of_its_command(call: Call, command: str) -> None:
    done = call(*command.split(), "--help")
    assert (done.status, done.err) == (0, "")
    assert f"Example: finomw {command}" in done.out
    assert "-c, --config PATH" in done.out
    assert "--json" in done.out or command == "init"


def test_a_pipe_gets_whole_lines_without_colours(
    node: Node, call: Call, shell: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    note = "n" * 900
    call("customer", "add", "alice")
    call("grant", "alice", "5", "--note", note)
    for name, value in (("FORCE_COLOR", "1"), ("COLUMNS", "20"), ("TERM", "xterm-256color")):
        monkeypatch.setenv(name, value)
    done = shell("ledger", "alice")
    assert (done.status, done.err) == (0, "")
    assert "\x1b" not in done.out
    assert len(done.out.splitlines()) == 2
    assert done.out.endswith(f"{note}\n")


def test_a_narrow_terminal_folds_and_loses_nothing(node: Node, call: Call) -> None:
    name = "".join(chr(ord("a") + number % 26) for number in range(200))
    call("customer", "add", "alice", "--name", name)
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [*COMMAND, "customer", "list"],
        stdout=theirs,
        env=os.environ | {"TERM": "xterm", "COLUMNS": "100"},
    )
    os.close(theirs)
    shown = b""
    try:
        while piece := os.read(ours, 4096):
            shown += piece
    except OSError:
        pass  # how Linux says that nobody holds the terminal any more
    os.close(ours)
    assert process.wait() == 0
    lines = shown.decode().splitlines()
    assert "\x1b[1m" in lines[0]
    assert "".join(line.split()[-1] for line in lines[1:]) == name
    assert all(len(line) <= 100 for line in lines[1:])


def test_ctrl_c_leaves_no_traceback(folder: Path) -> None:
    os.mkfifo("fino.yaml")
    process = subprocess.Popen(
        [*COMMAND, "check"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    with open("fino.yaml", "w"):  # returns when the command has begun to read
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=60)
    assert (process.returncode, out, err) == (130, "", "")


def test_a_reader_that_had_enough_is_no_error(node: Node, call: Call) -> None:
    call("customer", "add", "alice")
    ours, theirs = os.pipe()
    os.close(ours)
    done = subprocess.run(
        [*COMMAND, "ledger", "alice"],
        stdout=theirs,
        stderr=subprocess.PIPE,
        text=True,
        check=False,
    )
    os.close(theirs)
    assert (done.returncode, done.stderr) == (1, "")


def test_output_that_cannot_be_written_is_an_error(node: Node, call: Call) -> None:
    call("customer", "add", "alice")
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [*COMMAND, "balance", "alice"],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )
    assert (done.returncode, done.stderr) == (2, "error: No space left on device\n")


def test_a_terminal_that_lacks_a_character_gets_its_number(
    node: Node, call: Call, shell: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    call("customer", "add", "日本")
    monkeypatch.setenv("PYTHONIOENCODING", "latin-1")
    done = shell("customer", "list")
    assert (done.status, done.err) == (0, "")
    assert done.out.splitlines()[1].startswith("\\u65e5\\u672c ")


def test_json_is_ascii_so_that_every_pipe_can_carry_it(node: Node, call: Call) -> None:
    call("customer", "add", "日本")
    told = call("customer", "list", "--json").out
    assert told.isascii()
    assert json.loads(told)["customers"][0]["customer"] == "日本"
