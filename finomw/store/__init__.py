"""The node's state in LMDB, as one object with a table for each kind of row.

Every change here happens inside one write transaction together with its journal record; see
``env.py`` for what LMDB asks of its users. ``accounts.py`` is the one place that changes a
balance.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack, nullcontext
from pathlib import Path
from typing import TypeAlias

from finomw.journal.format import Tail
from finomw.store.accounts import Accounts
from finomw.store.env import Environment
from finomw.store.grants import Grants
from finomw.store.holds import Holds
from finomw.store.keys import Keys
from finomw.store.ledger import Ledger
from finomw.store.meta import Meta
from finomw.store.quotas import Quotas

Guard: TypeAlias = Callable[[Callable[[], int]], AbstractContextManager[None]]
"""Surrounds what takes the write lock; it is given how to ask for the last change."""


class Store:
    """All tables of one node directory."""

    def __init__(
        self, directory: Path, size: int, node: str, guard: Guard = lambda _: nullcontext()
    ) -> None:
        """Open them. To do so takes the write lock for moments, within ``guard(last_change)``."""
        env = Environment(directory, size)
        self.read = env.read
        self.write = env.write
        self.forget_dead_readers = env.forget_dead_readers
        self.last_change = env.last_change
        self.copy_to = env.copy_to
        self.room = env.room
        self.grow = env.grow
        self.adopt = env.adopt
        self.next_growth = env.next_growth
        self.close = env.close
        with ExitStack() as undo:
            undo.callback(env.close)
            with guard(env.last_change):
                self.meta = Meta(env)
                self.ledger = Ledger(env)
                self.accounts = Accounts(env, self.ledger)
                self.keys = Keys(env)
                self.holds = Holds(env, node)
                self.quotas = Quotas(env)
                self.grants = Grants(env)
            undo.pop_all()

    def tail(self) -> Tail:
        """Return the committed tail of the journal."""
        with self.read() as txn:
            return self.meta.tail(txn)
