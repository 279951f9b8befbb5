"""Faults below the file seam: the N-th system call of a kind fails, or writes less than asked.

The modules that touch files see another ``os``, ``mmap`` and ``lmdb``, which count and fail what
they are told to. Nothing else in the process does.
"""

from __future__ import annotations

import errno
import mmap
import os
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any
from unittest import mock

import lmdb

from finomw.engine import directory, opening
from finomw.journal import files, locks, workers
from finomw.store import checkpoints, env, space

CALLS = (
    *("open", "pwrite", "fsync", "fdatasync", "posix_fallocate", "ftruncate"),
    *("link", "rename", "remove"),
)
MODULES = (files, locks, workers, env, space, checkpoints, directory, opening)
_NAMES = {name.replace("remove", "unlink"): name for name in CALLS}
"""By the function's name; ``unlink`` is a kind of the file seam's already."""
_LMDB = {"open": "lmdb.open"}
SHORT = 0
"""In place of an error number: ``pwrite`` writes a part, and says so."""


class SystemCalls:
    """Counts system calls by name, and fails those that `fail` names."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self._faults: dict[str, tuple[int, bool, int]] = {}

    def fail(
        self, kind: str, at: int = 1, *, for_good: bool = False, error: int = errno.EIO
    ) -> None:
        """Make the ``at``-th call of this kind from now fail, or all from that one on."""
        self._faults[kind] = (self.counts[kind] + at, for_good, error)

    def mend(self) -> None:
        """Let everything succeed from now on."""
        self._faults.clear()

    def _fails(self, kind: str) -> int | None:
        self.counts[kind] += 1
        at, for_good, error = self._faults.get(kind, (0, False, 0))
        due = self.counts[kind] == at or (for_good and self.counts[kind] > at)
        return error if at and due else None

    def call(self, kind: str, real: Callable[..., Any]) -> Callable[..., Any]:
        """Return a system call that may fail."""

        def faulty(*args: Any, **named: Any) -> Any:
            error = self._fails(kind)
            if error == SHORT and len(args[1]) > 1:
                return real(args[0], memoryview(args[1])[: len(args[1]) // 2], *args[2:])
            if error:
                if kind == "lmdb.open":
                    raise lmdb.DiskError(os.strerror(error))
                raise OSError(error, os.strerror(error))
            return real(*args, **named)

        return faulty

    @contextmanager
    def installed(self) -> Iterator[None]:
        """Let the modules that touch files make their calls here."""
        faulty = [
            *((module, "os", _With(os, self, _NAMES)) for module in MODULES),
            *((module, "mmap", _With(mmap, self, {"mmap": "mmap"})) for module in (files, space)),
            *((module, "lmdb", _With(lmdb, self, _LMDB)) for module in (env, checkpoints)),
        ]
        patches = [mock.patch.object(*patch) for patch in faulty if hasattr(*patch[:2])]
        for patch in patches:
            patch.start()
        try:
            yield
        finally:
            for patch in patches:
                patch.stop()


class _With(ModuleType):
    """A module of which some functions may fail."""

    def __init__(self, real: ModuleType, calls: SystemCalls, names: dict[str, str]) -> None:
        super().__init__(real.__name__)
        self.__dict__.update(vars(real))
        for name, kind in names.items():
            setattr(self, name, calls.call(kind, getattr(real, name)))
