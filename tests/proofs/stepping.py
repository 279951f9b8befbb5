"""A process that runs from one system call to the next, so that it can be killed at any of them.

The kernel stops a traced process where a call enters and where it leaves. A process killed there
has done everything before, and nothing after: no other process sees its work cut more finely,
but for stores into shared memory, which `steps.py` cuts.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys

import pytest

_TRACEME, _SYSCALL, _SETOPTIONS = 0, 24, 0x4200
_SYSGOOD, _EXITKILL = 1, 0x100000
_SYSCALL_STOP = signal.SIGTRAP | 0x80

_ptrace = ctypes.CDLL(None, use_errno=True).ptrace
_ptrace.argtypes = (ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p)
_ptrace.restype = ctypes.c_long


def be_traced() -> None:
    """Stop, to be led on by the parent."""
    if _ptrace(_TRACEME, 0, None, None):
        os._exit(77)
    os.kill(os.getpid(), signal.SIGSTOP)


class Traced:
    """A child that has called `be_traced`, stopped; skips loudly where tracing is not allowed."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.status: int | None = None
        self.stops = 0
        """How many times it stopped at a system call."""
        _, status = os.waitpid(pid, 0)
        if not os.WIFSTOPPED(status):
            print("NOT TRIED: needs ptrace", file=sys.stderr)
            pytest.skip("NOT TRIED: needs ptrace")
        _ptrace(_SETOPTIONS, pid, None, _SYSGOOD | _EXITKILL)
        self._signal = 0

    def run(self, stops: int) -> bool:
        """Go on to the ``stops``-th stop from the start; say whether it got there."""
        while self.stops < stops:
            _ptrace(_SYSCALL, self.pid, None, self._signal)
            _, status = os.waitpid(self.pid, 0)
            if not os.WIFSTOPPED(status):
                self.status = os.waitstatus_to_exitcode(status)
                return False
            stopped_by = os.WSTOPSIG(status)
            # A signal of its own is passed on to it.
            self._signal = 0 if stopped_by == _SYSCALL_STOP else stopped_by
            self.stops += stopped_by == _SYSCALL_STOP
        return True
