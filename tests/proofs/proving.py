"""What the proofs with real processes share: forked children, cases with seeds, kept histories.

A proof is a script, `python tests/proofs/<name>.py --count N [--seed S]`, that runs many cases and
ends with one line of figures in JSON; a short run of it with a fixed seed is a test. The script's
own process opens nothing, so that its children can be forked from it: that takes milliseconds.
Where a case fails, the folder of its node, with all that the clients saw, is kept and named.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import json
import logging
import os
import pickle
import random
import secrets
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, ClassVar, NoReturn

import pytest

HERE = Path(__file__).parent
sys.path += [str(HERE.parent / "engine"), str(HERE.parent / "e2e"), str(HERE.parent.parent)]

PATIENCE = 60
"""Seconds after which something that should happen will not."""
NOT_TRIED = 75
"""Exit status of a script that could not try its proof here."""

_PDEATHSIG = 1
_prctl = ctypes.CDLL(None).prctl


class ProofFailed(Exception):
    """Something that must hold does not."""


class Child:
    """A forked process that runs a function; what that returns or raises comes back by a pipe."""

    running: ClassVar[set[Child]] = set()

    def __init__(self, function: Callable[..., object], *args: object, log: Path) -> None:
        self._pipe, told = os.pipe()
        self._log = log
        self.status: int | None = None
        self.pid = os.fork()
        if self.pid == 0:
            _run(function, args, told, log)
        os.close(told)
        Child.running.add(self)

    def result(self) -> Any:
        """Wait for the end; return what the function returned. Raises `ProofFailed`."""
        data = b""
        while True:
            if not select.select([self._pipe], [], [], PATIENCE)[0]:
                raise ProofFailed(f"process {self.pid} does not end")
            piece = os.read(self._pipe, 1 << 16)
            if not piece:
                break
            data += piece
        if self.wait() != 0:
            raise ProofFailed(f"process {self.pid} failed:\n{self._log.read_text()}")
        return pickle.loads(data)

    def wait(self) -> int:
        """Wait for the end, and return the exit status, negative for a signal."""
        if self.status is None:
            _, status = os.waitpid(self.pid, 0)
            self.ended(os.waitstatus_to_exitcode(status))
        assert self.status is not None
        return self.status

    def ended(self, status: int) -> None:
        """Take note that somebody has waited for it."""
        self.status = status
        os.close(self._pipe)
        Child.running.discard(self)

    def kill(self) -> None:
        """Kill it; `wait` until it is gone."""
        if self.status is None:
            os.kill(self.pid, signal.SIGKILL)

    def check_runs(self) -> None:
        """Raise `ProofFailed` with the log when it has ended by itself."""
        if self.status is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if not pid:
                return
            self.ended(os.waitstatus_to_exitcode(status))
        raise ProofFailed(f"process {self.pid} ended by itself:\n{self._log.read_text()}")


def _run(function: Callable[..., object], args: tuple[object, ...], told: int, log: Path) -> None:
    """Be the child."""
    status = 1
    # Who dies first takes it along: nothing that a proof has started outlives it.
    _prctl(_PDEATHSIG, signal.SIGKILL)
    try:
        os.dup2(os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600), 2)
        result = pickle.dumps(function(*args))
        while result:
            result = result[os.write(told, result) :]
        status = 0
    except BaseException:  # noqa: BLE001
        os.write(2, traceback.format_exc().encode())
    os._exit(status)


def until(condition: Callable[[], object], what: str) -> None:
    """Wait until something is true; raise `ProofFailed` if that takes too long."""
    deadline = time.monotonic() + PATIENCE
    while not condition():
        if time.monotonic() > deadline:
            raise ProofFailed(f"this did not happen: {what}")
        time.sleep(0.0005)


class Folder:
    """A folder for one case: removed after it, kept with the history when it fails."""

    def __init__(self, name: str, seed: str) -> None:
        self.path = Path(tempfile.mkdtemp(prefix=f"finomw-{name}-"))
        self.random = random.Random(seed)
        self.note(f"seed {seed}")

    def note(self, line: str) -> None:
        """Add a line to the history."""
        with (self.path / "history").open("a") as history:
            history.write(f"{line}\n")


@contextlib.contextmanager
def folder(name: str, seed: str) -> Iterator[Folder]:
    """Have a folder; print its history when the case fails, and keep it."""
    case = Folder(name, seed)
    try:
        yield case
    except (Exception, KeyboardInterrupt) as error:
        for child in list(Child.running):
            child.kill()
            child.wait()
        case.note(f"failed: {error}")
        print((case.path / "history").read_text(), file=sys.stderr)
        print(f"kept: {case.path}", file=sys.stderr)
        raise
    shutil.rmtree(case.path)


class Options(argparse.Namespace):
    """The command line of a proof."""

    count: int
    seed: int


def options(description: str | None, count: int, more: Callable[[Any], None] | None = None) -> Any:
    """Read the command line; print the seed."""
    parser = argparse.ArgumentParser(description=(description or "").partition("\n")[0])
    parser.add_argument("--count", type=int, default=count, help="how many cases")
    parser.add_argument("--seed", type=int, help="repeat these cases; else fresh ones")
    if more is not None:
        more(parser)
    chosen = parser.parse_args(namespace=Options())
    if chosen.seed is None:
        chosen.seed = secrets.randbelow(10**9)
    logging.disable(logging.CRITICAL)
    print(f"seed {chosen.seed}", flush=True)
    return chosen


def main(proof: Callable[[], dict[str, object]]) -> NoReturn:
    """Run a proof as a script: figures at the end, or a failure, or that it was not tried."""
    try:
        figures = proof()
    except ProofFailed as error:
        print(f"FAILED: {error}", file=sys.stderr)
        sys.exit(1)
    except pytest.skip.Exception as error:
        print(error)
        sys.exit(NOT_TRIED)
    print(json.dumps(figures))
    sys.exit(0)


def run_script(name: str, *arguments: object) -> dict[str, Any]:
    """Run a proof's script for a test; return its figures, or skip the test where it was."""
    command = [sys.executable, str(HERE / name), *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    print(done.stdout, done.stderr)
    if done.returncode == NOT_TRIED:
        pytest.skip(done.stdout.strip().splitlines()[-1])
    assert done.returncode == 0, done.stderr
    figures: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return figures
