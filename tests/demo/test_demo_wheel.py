"""The demo as a stranger gets it: from a built wheel, in a fresh environment, far from here."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path


def test_the_demo_runs_from_the_wheel_alone(checkout, tmp_path) -> None:
    elsewhere = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}

    def run(*command: str | Path) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            command, cwd="/tmp", env=elsewhere, capture_output=True, text=True, check=False
        )

    def succeed(*command: str | Path) -> str:
        done = run(*command)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    succeed(sys.executable, "-m", "build", "--wheel", "--outdir", tmp_path, checkout)
    [wheel] = tmp_path.glob("finomw-*.whl")
    succeed(sys.executable, "-m", "venv", tmp_path / "venv")
    python, finomw = (tmp_path / "venv" / "bin" / name for name in ("python", "finomw"))

    succeed(python, "-m", "pip", "install", "--quiet", wheel)
    without = run(finomw, "demo")
    assert without.returncode == 2
    assert without.stderr.count("\n") == 1
    assert without.stderr.endswith("pip install 'finomw[demo]'\n")

    succeed(python, "-m", "pip", "install", "--quiet", f"{wheel}[demo]")
    told = json.loads(succeed(finomw, "demo", "--json"))
    assert told["ok"]
    assert [event["status"] for event in told["events"] if event.get("reason")] == [402]
    where = succeed(python, "-c", "import finomw; print(finomw.__file__)")
    assert Path(where.strip()).is_relative_to(tmp_path / "venv")
