"""What the demo's tests share: how to run it as a process, and one run that many tests look at."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeAlias

import pytest

import finomw
from finomw.cli.demo.node import running
from finomw.cli.demo.story import Outcome, tell

CHECKOUT = Path(finomw.__file__).parents[1]

Start: TypeAlias = Callable[..., "subprocess.Popen[str]"]


@pytest.fixture(scope="session")
def checkout() -> Path:
    """Where the package, the examples and the load tests lie."""
    return CHECKOUT


@pytest.fixture(scope="module", autouse=True)
def importable(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Let processes started from anywhere import this finomw, and work in the tests' folder."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(CHECKOUT))
        patch.setenv("TMPDIR", str(tmp_path_factory.mktemp("demo")))
        patch.delenv("FINOMW_CONFIG", raising=False)
        yield


@pytest.fixture(scope="module")
def outcome(importable: None) -> Outcome:
    """Run the demo once, in this process."""
    with running() as node:
        return tell(node, lambda _: None)


@pytest.fixture
def start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Start:
    """Start ``finomw`` as a process of its own, whose temporary files come into ``tmp_path``."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))

    def start_finomw(*arguments: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-m", "finomw", *arguments],
            cwd=tmp_path,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    return start_finomw
