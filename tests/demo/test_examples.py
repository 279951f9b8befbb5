"""The examples do what their README says: its own commands are run, with another port."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

PIP = "pip install 'finomw[demo]'\n"
START_SECONDS = 60


@pytest.fixture
def example(checkout: Path, tmp_path: Path) -> Path:
    """Copy the examples, as a reader's checkout has them."""
    shutil.copytree(checkout / "examples", tmp_path / "examples", ignore=_node_directories)
    return tmp_path / "examples" / "llm_gateway"


def _node_directories(_: str, names: list[str]) -> list[str]:
    return [name for name in names if name == "fino-data"]


@pytest.fixture
def shell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> object:
    """Run lines of a shell in which ``finomw`` and ``uvicorn`` are commands of this Python."""
    commands = tmp_path / "bin"
    commands.mkdir()
    for name in ("finomw", "uvicorn"):
        (commands / name).write_text(f'#!/bin/sh\nexec "{sys.executable}" -m {name} "$@"\n')
        (commands / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{commands}{os.pathsep}{os.environ['PATH']}")

    def run(script: str, cwd: Path) -> str:
        done = subprocess.run(
            ["sh", "-e", "-c", script], cwd=cwd, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    return run


@contextmanager
def serving(script: str, cwd: Path, port: int) -> Iterator[None]:
    """Run a server in the foreground of another shell until it is no longer needed."""
    server = subprocess.Popen(["sh", "-c", f"exec {script}"], cwd=cwd)
    try:
        deadline = time.monotonic() + START_SECONDS
        while not listening(port) and server.poll() is None and time.monotonic() < deadline:
            with suppress(subprocess.TimeoutExpired):
                server.wait(0.05)
        yield
    finally:
        server.terminate()
        server.wait()


def listening(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as free:
        return free.getsockname()[1]


def test_the_readme_of_the_examples_works(checkout, example, shell) -> None:
    port = free_port()
    readme = (checkout / "examples" / "README.md").read_text().replace("8000", str(port))
    set_up, serve, call = re.findall(r"```sh\n(.*?)```", readme, re.DOTALL)
    assert PIP in set_up
    shell(set_up.replace(PIP, ""), example.parents[1])
    with serving(serve.strip(), example, port):
        out = shell(call.replace("curl ", "curl -sS --fail-with-body "), example)
    assert '"finish_reason":"stop"' in out
    assert re.search(r"balance +0\.99", out)
    assert "settlement" in out
    assert "no faults" in out


def test_the_load_test_finds_no_difference(checkout, example, shell) -> None:
    # Asked for without importing it: it would patch this process's threads and sockets.
    if importlib.util.find_spec("locust") is None:
        pytest.skip("locust is not installed: pip install 'finomw[dev]'")
    port = free_port()
    options = f"--headless -u 8 -r 8 -t 6s --only-summary -H http://127.0.0.1:{port}".split()
    shell("finomw init", example)
    with serving(f"uvicorn app:app --port {port} --log-level warning", example, port):
        done = subprocess.run(
            [
                sys.executable,
                "-m",
                "locust",
                "-f",
                checkout / "loadtests" / "locustfile.py",
                *options,
            ],
            env={**os.environ, "FINOMW_CONFIG": str(example / "fino.yaml")},
            capture_output=True,
            text=True,
            check=False,
        )
    assert done.returncode == 0, done.stderr
    assert re.search(r"8 customers, [0-9]+ calls served, .* no faults", done.stderr)
