"""Simulated processes: threads of which exactly one runs, and which hand over at every step.

A seed decides who goes on, so a history is the same on every run. A process that is killed never
comes back from the step it died at: whatever its unwinding still tries to do finds it dead.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from random import Random


class Killed(BaseException):
    """Ends a simulated process; no handler of the package may catch it."""


class Process(threading.Thread):
    """One simulated process; ``body`` is what it does until it returns or dies."""

    def __init__(self, crew: Crew, body: Callable[[Process], None]) -> None:
        super().__init__(daemon=True)
        self.go = threading.Lock()
        self.go.acquire()
        self.dead = False
        self.ended = False
        self.waits_for: str | None = None
        self._crew = crew
        self._body = body

    def run(self) -> None:
        self.go.acquire()
        try:
            if not self.dead:
                self._body(self)
        except Killed:
            pass
        except BaseException as error:  # noqa: BLE001 - raised again by `Crew.run`
            self._crew.error = self._crew.error or error
        self.ended = True
        self._crew.leave(self)


class Crew:
    """All simulated processes of one machine, and its locks."""

    def __init__(self, choose: Random, switching: float) -> None:
        self.error: BaseException | None = None
        self.current: Process | None = None
        self._choose = choose
        self._switching = switching
        self._processes: list[Process] = []
        self._taken: set[str] = set()
        self._main = threading.Lock()
        self._main.acquire()
        self.ending = False

    def start(self, body: Callable[[Process], None]) -> Process:
        """Add a process; it runs when it is its turn."""
        process = Process(self, body)
        self._processes.append(process)
        process.start()
        return process

    def alive(self) -> int:
        """Return how many processes have not ended."""
        return sum(not process.ended for process in self._processes)

    def run(self) -> None:
        """Let the processes run until none is left or `stop` was called; raise their error."""
        self._hand_over(self._next(None))
        self._main.acquire()
        self.current = None
        self.ending = True
        for process in self._processes:
            if not process.ended:
                process.dead = True
                self.current = process
                process.go.release()
                self._main.acquire()
            process.join()
        self.current = None
        if self.error is not None:
            raise self.error

    def stop(self) -> None:
        """End everything: whoever runs dies here, the others where they are."""
        self.ending = True
        raise Killed

    def step(self) -> None:
        """Perhaps let others run first; raises `Killed` in a process that is dead."""
        process = self.current
        if process is None:
            return
        if process.dead:
            raise Killed
        if self._choose.random() < self._switching:
            self._yield(process)

    def kill(self) -> None:
        """Kill the process that runs."""
        if self.current is not None:
            self.current.dead = True
            raise Killed

    def take(self, lock: str) -> None:
        """Wait for a lock of the machine and take it."""
        process = self.current
        while lock in self._taken:
            if process is None:
                raise AssertionError(f"{lock} is taken for ever")
            process.waits_for = lock
            self._yield(process)
            process.waits_for = None
        self._taken.add(lock)

    def give_back(self, lock: str) -> None:
        """Let go of a lock."""
        self._taken.discard(lock)

    def leave(self, process: Process) -> None:
        """Hand over for good."""
        self._hand_over(None if self.ending or self.error else self._next(process))

    def _yield(self, process: Process) -> None:
        other = self._next(process)
        if other is None or other is process:
            return
        self._hand_over(other)
        process.go.acquire()
        if process.dead:
            raise Killed

    def _next(self, process: Process | None) -> Process | None:
        ready = [
            other
            for other in self._processes
            if not other.ended and other is not process and other.waits_for not in self._taken
        ]
        return self._choose.choice(ready) if ready else None

    def _hand_over(self, other: Process | None) -> None:
        self.current = other
        if other is None:
            self._main.release()
        else:
            other.go.release()
