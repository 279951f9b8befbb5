"""``finomw demo`` from the outside: what it prints, how it ends, and that it leaves nothing."""

from __future__ import annotations

import fcntl
import json
import os
import pty
import re
import signal
import socket
import struct
import subprocess
import sys
import termios
from pathlib import Path

import httpx
import pytest

from finomw.cli.app import run
from finomw.cli.demo import calls

MINUTE = 60


def children(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def test_the_demo_succeeds_and_its_document_adds_up(start, tmp_path) -> None:
    out, err = start("demo", "--json").communicate(timeout=MINUTE)
    run_ = json.loads(out)
    made = [event for event in run_["events"] if event["kind"] == "call"]
    grants = [event for event in run_["events"] if event["kind"] == "grant"]
    refused = [call for call in made if call["status"] != 200]

    assert err == ""
    assert run_["ok"]
    assert all(check["holds"] for check in run_["checks"])
    assert [(call["status"], call["reason"]) for call in refused] == [(402, "exhausted")]
    assert len(grants) == 2
    assert run_["granted_micros"] == sum(grant["amount_micros"] for grant in grants)
    assert run_["charged_micros"] == sum(call["price_micros"] for call in made) > 10_000
    assert run_["balance_micros"] == run_["granted_micros"] - run_["charged_micros"]
    assert run_["faults"] == []
    assert run_["open_holds"] == 0
    assert {call["call"] for call in made} == {
        "chat demo-small",
        "chat demo-large streamed",
        "embeddings",
        "search (flat)",
        "health (free)",
    }
    assert all(0 < call["overhead_ns"] < 5 * 10**9 for call in made)
    assert os.listdir(tmp_path) == []


def test_on_a_terminal_the_demo_leaves_its_whole_table(tmp_path) -> None:
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 100, 0, 0))
    demo = subprocess.Popen(
        [sys.executable, "-m", "finomw", "demo"],
        env={**os.environ, "TERM": "xterm-256color", "TMPDIR": str(tmp_path)},
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
    )
    os.close(theirs)
    seen = b""
    try:
        while part := os.read(ours, 65536):
            seen += part
    except OSError:
        pass  # so Linux tells that the other side is closed
    os.close(ours)
    assert demo.wait(MINUTE) == 0
    final = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", seen.decode()).rpartition("overhead")[0]
    final = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", seen.decode())[len(final) :]
    assert final.count("grant of 0.01 USD") == 2
    assert final.count("402 exhausted") == 1
    assert final.count("✓") == 7
    assert "✗" not in final


def test_a_wrong_price_fails_the_demo(monkeypatch, capsys) -> None:
    monkeypatch.setattr(calls, "SEARCH_PRICE", calls.SEARCH_PRICE + 1)
    assert run(["demo"]) == 1
    out = capsys.readouterr().out
    assert "must cost 0.000501 USD, was charged 0.0005 USD" in out
    assert out.endswith("The demo failed.\n")


def test_without_its_extra_the_demo_says_what_to_install(monkeypatch, capsys) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert run(["demo"]) == 2
    assert capsys.readouterr() == (
        "",
        "error: the demo needs FastAPI and uvicorn: pip install 'finomw[demo]'\n",
    )


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--serve", "--json"], "error: --json: there is no such document with --serve\n"),
        (["--port", "8000"], "error: --port: only with --serve\n"),
    ],
)
def test_options_that_do_not_go_together_are_refused(arguments, message, capsys) -> None:
    assert run(["demo", *arguments]) == 2
    assert capsys.readouterr() == ("", message)


def test_a_port_that_is_taken_is_one_clear_line(capsys) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert run(["demo", "--serve", "--port", str(port)]) == 2
    assert capsys.readouterr().err.startswith(f"error: --port: {port} cannot be had: ")


@pytest.mark.parametrize("stop", [signal.SIGINT, signal.SIGTERM])
def test_serve_answers_with_the_printed_key_and_leaves_nothing(start, tmp_path, stop) -> None:
    with start("demo", "--serve") as demo:
        printed = ""
        while "finomw verify" not in printed:
            line = demo.stdout.readline()
            assert line, demo.stderr.read()
            printed += line
        [url] = re.findall(r"export URL=(\S+)", printed)
        [key] = re.findall(r'export KEY="Authorization: (Bearer fino_\S+)"', printed)
        [config] = re.findall(r"export FINOMW_CONFIG=(\S+)", printed)
        servers = children(demo.pid)
        answer = httpx.post(
            f"{url}/v1/search", json={"query": "holds"}, headers={"Authorization": key}
        )
        assert answer.status_code == 200
        assert answer.json()["query"] == "holds"
        balance = start("balance", "acme", "--json", "--config", config)
        assert json.loads(balance.communicate(timeout=MINUTE)[0])["balance_micros"] == 19_500
        demo.send_signal(stop)
        assert demo.wait(MINUTE) == 0
        assert demo.stderr.read() == ""
    assert len(servers) == 1
    assert not Path(f"/proc/{servers[0]}").exists()
    assert os.listdir(tmp_path) == []


def test_the_printed_curl_lines_are_right(start) -> None:
    with start("demo", "--serve") as demo:
        printed = ""
        while "finomw verify" not in printed:
            printed += demo.stdout.readline()
        lines = [line for line in printed.splitlines() if re.match("export|curl", line)]
        script = "\n".join(line.replace("curl -i", "curl -sS --fail-with-body") for line in lines)
        done = subprocess.run(
            ["sh", "-e", "-c", script], capture_output=True, text=True, timeout=MINUTE, check=False
        )
        demo.send_signal(signal.SIGINT)
        assert demo.wait(MINUTE) == 0
    assert (done.returncode, done.stderr) == (0, "")
    assert '"finish_reason":"stop"' in done.stdout
    assert "data: [DONE]" in done.stdout
    assert '"query":"holds"' in done.stdout


def test_ctrl_c_in_the_middle_leaves_nothing(start, tmp_path) -> None:
    with start("demo") as demo:
        while "chat" not in demo.stdout.readline():
            pass
        [server] = children(demo.pid)
        demo.send_signal(signal.SIGINT)
        assert demo.wait(MINUTE) == 130
    assert not Path(f"/proc/{server}").exists()
    assert os.listdir(tmp_path) == []
