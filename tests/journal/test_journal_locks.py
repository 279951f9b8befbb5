"""A forked child keeps no lock of its parent's, whenever the fork comes."""

from __future__ import annotations

import os
import threading
from pathlib import Path
from typing import Any

import pytest

from finomw.journal.locks import FileLock


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_a_fork_waits_until_a_lock_that_is_being_opened_is_known(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "start.lock"
    opened, go_on = threading.Event(), threading.Event()
    really_open = os.open

    def slowly(*arguments: Any, **options: Any) -> int:
        fd = really_open(*arguments, **options)
        if threading.current_thread() is opener:
            opened.set()
            go_on.wait(60)
        return fd

    def lock_and_close() -> None:
        lock = FileLock(path)
        lock.exclusive()
        lock.close()

    told, tells = os.pipe()
    leave, lets_go = os.pipe()
    opener = threading.Thread(target=lock_and_close)
    monkeypatch.setattr(os, "open", slowly)
    opener.start()
    assert opened.wait(60)
    # Who forks now would inherit a descriptor that nobody closes in the child.
    release = threading.Timer(0.1, go_on.set)
    release.start()
    pid = os.fork()
    if not pid:
        os.close(lets_go)
        os.write(tells, b"1")
        os.read(leave, 1)
        os._exit(0)
    assert os.read(told, 1) == b"1"
    opener.join(60)
    release.join(60)
    again = FileLock(path)
    free = again.try_exclusive()
    again.close()
    os.close(lets_go)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    for fd in (told, tells, leave):
        os.close(fd)
    assert free
