"""The gate before the state's map: transactions pass it, and a new map waits until none is open.

Remapping moves the memory that this process's transactions read, so none of them may be open then,
whichever thread it belongs to. A transaction only marks its thread and looks whether the gate is
shut; who shuts it looks at the marks. Each stores first and looks second, so one of them always
sees the other, and the many that pass take no lock.

A fork waits at every gate in the same way. LMDB's binding counts the calls under way, and closing
waits for them; in a child those of other threads would never end, and it could not even close
what it inherited.
"""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from threading import get_ident

DRAIN_SECONDS = 5
"""How long a new map waits for this process's transactions before it is given up."""


class GateBusy(Exception):
    """A transaction of this process stays open, so the map cannot be replaced now."""


class Gate:
    """Counts the open transactions of this process by thread."""

    def __init__(self) -> None:
        self._inside: dict[int, int] = {}
        self._shut = 0  # by how many: a fork may come while a new map waits
        self._changed = threading.Condition()
        _gates.add(self)

    def enter(self) -> int:
        """Pass, waiting where the gate is shut; return what `leave` needs.

        A thread that is inside already passes at once: the one who waits is waiting for it.
        """
        thread = get_ident()
        inside = self._inside
        depth = inside.get(thread, 0)
        inside[thread] = depth + 1
        if self._shut and not depth:
            self._wait(thread)
        return thread

    def leave(self, thread: int) -> None:
        """Let go of one passing."""
        inside = self._inside
        depth = inside[thread] - 1
        if depth:
            inside[thread] = depth
            return
        del inside[thread]
        if self._shut:
            with self._changed:
                self._changed.notify_all()

    def inside(self) -> bool:
        """Say whether this thread is inside."""
        return get_ident() in self._inside

    def _wait(self, thread: int) -> None:
        del self._inside[thread]
        with self._changed:
            self._changed.notify_all()
            self._changed.wait_for(lambda: not self._shut)
            self._inside[thread] = 1

    @contextmanager
    def shut(self) -> Iterator[None]:
        """Shut the gate and be alone, for the block. Raises `GateBusy` where that takes long.

        The thread itself must not be inside: it would wait for itself.
        """
        with self._changed:
            self._shut += 1
            try:
                if not self._changed.wait_for(lambda: not self._inside, DRAIN_SECONDS):
                    raise GateBusy(f"a transaction has been open for {DRAIN_SECONDS} s")
                yield
            finally:
                self._shut -= 1
                self._changed.notify_all()

    def hold_for_fork(self) -> None:
        """Shut the gate until the fork is over; waits no longer than for a new map.

        The forking thread's own transactions do not matter: it comes back in the child too.
        """
        self._changed.acquire()
        self._shut += 1
        own = {get_ident()}
        self._changed.wait_for(lambda: self._inside.keys() <= own, DRAIN_SECONDS)

    def let_go_in_parent(self) -> None:
        """Open the gate again, unless a new map waits for it."""
        self._shut -= 1
        self._changed.notify_all()
        self._changed.release()

    def let_go_in_child(self) -> None:
        """Open the gate, and forget the threads that are not there."""
        own = get_ident()
        self._inside = {own: self._inside[own]} if own in self._inside else {}
        self._changed = threading.Condition()
        self._shut = 0


_gates: weakref.WeakSet[Gate] = weakref.WeakSet()
_forking = threading.Lock()
_held: list[Gate] = []
"""The gates that the fork under way holds."""


def _before_fork() -> None:
    _forking.acquire()
    for gate in list(_gates):
        gate.hold_for_fork()
        _held.append(gate)


def _after_in_parent() -> None:
    for gate in _held:
        gate.let_go_in_parent()
    _held.clear()
    _forking.release()


def _after_in_child() -> None:
    for gate in _held:
        gate.let_go_in_child()
    _held.clear()
    _forking.release()


os.register_at_fork(
    before=_before_fork, after_in_parent=_after_in_parent, after_in_child=_after_in_child
)
