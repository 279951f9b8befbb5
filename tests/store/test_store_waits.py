"""Nobody waits for ever for a process that was stopped, and a fork opens no gate that is shut."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from finomw import limits
from finomw.errors import DirectoryError, RecordingFailed
from finomw.journal.locks import FileLock
from finomw.store import env as env_module
from finomw.store.env import Environment
from finomw.store.gate import Gate


@pytest.fixture
def env(tmp_path: Path) -> Iterator[Environment]:
    env = Environment(tmp_path, limits.MIB)
    env.table("t")
    yield env
    env.close()


def test_a_process_that_was_stopped_while_it_grew_keeps_nobody_waiting(
    env: Environment, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(env_module, "_GROW_SECONDS", 1)
    stopped = FileLock(tmp_path / "grow.lock")
    stopped.exclusive()
    for resize in (env.grow, env.adopt):
        with pytest.raises(RecordingFailed, match="if it was stopped, continue or kill it"):
            resize()
    with env.write() as txn:
        txn.put(b"key", b"value")
    stopped.close()
    env.grow()
    assert env.room().size == 2 * limits.MIB


def test_a_directory_is_not_waited_for_while_its_state_is_kept(
    env: Environment, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(env_module, "_GROW_SECONDS", 1)
    stopped = FileLock(tmp_path / "grow.lock")
    stopped.exclusive()
    with pytest.raises(DirectoryError, match="if it was stopped, continue or kill it"):
        Environment(tmp_path, limits.MIB)
    stopped.close()


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_a_fork_does_not_open_the_gate_that_a_new_map_has_shut() -> None:
    gate = Gate()
    own = gate.enter()
    alone: list[dict[int, int]] = []

    def map_anew() -> None:
        with gate.shut():
            alone.append(dict(gate._inside))

    def pass_by() -> None:
        gate.leave(gate.enter())
        passed.set()

    passed = threading.Event()
    mapper, late = threading.Thread(target=map_anew), threading.Thread(target=pass_by)
    mapper.start()
    while not gate._shut:
        pass
    child = os.fork()
    if not child:
        os._exit(0 if gate._shut == 0 else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert gate._shut == 1
    late.start()
    assert not passed.is_set()
    gate.leave(own)
    for thread in (mapper, late):
        thread.join(60)
    assert (alone, passed.is_set(), gate._shut, gate._inside) == ([{}], True, 0, {})
