"""What calls are served with: the engine, opened in the process that serves, and what goes with it.

It opens with the server's lifespan, or at the first call where there is none, and always in the
process and for the event loop that serve: after a fork, or on another loop, what went before is not
used. It closes when the last call under way has ended, so that each is charged.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Literal, NamedTuple

from finomw.asgi.failure import Failures
from finomw.config.model import Config
from finomw.engine.durable import Durable
from finomw.engine.engine import Engine, Health, close_engine, open_engine
from finomw.errors import InvariantBroken, RecordingFailed
from finomw.metering.guard import Guard
from finomw.node.housekeeper import Housekeeper

Durability = Literal["settled", "held", "relaxed"]


class Node(NamedTuple):
    """What an answer needs of the node: the engine, the wait for the disk, how long, and else."""

    engine: Engine
    durable: Durable
    durability: Durability
    failures: Failures
    guard: Guard


class Serving:
    """The engine of one middleware in this process, open or not."""

    def __init__(self, config: Config) -> None:
        self._config = config
        self._engine: Engine | None = None
        self._housekeeper: Housekeeper | None = None
        self._node: Node | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self.failures = Failures(config.on_failure)
        self._pid = os.getpid()
        self._calls = 0
        self._closing = False

    @property
    def opened(self) -> Node | None:
        """What was last served with, without opening anything."""
        return self._node

    def node(self) -> Node:
        """Return the node as this process and event loop use it, opening it if need be."""
        loop = asyncio.get_running_loop()
        node = self._node
        if node is None or node.engine.pid != os.getpid():
            node = None
            self._open()
        if node is None or self._loop is not loop:
            if self._engine is None:
                raise InvariantBroken("an engine that was opened is not there")
            if self._node is not None:
                self._node.guard.close()
            durable = Durable(self._engine, loop)
            durability = self._config.durability
            node = self._node = Node(self._engine, durable, durability, self.failures, Guard())
            self._loop = loop
        return node

    @contextmanager
    def under_way(self) -> Iterator[None]:
        """Count a call, so that the engine is open until the last one has ended."""
        if self._pid != os.getpid():
            # Calls under way when this process was forked are its parent's.
            self._pid, self._calls = os.getpid(), 0
        self._calls += 1
        try:
            yield
        finally:
            self._calls -= 1
            if self._closing and not self._calls:
                self._close()

    def health(self) -> Health | None:
        """Return how billing does in this process, for a probe; ``None`` where it is not open.

        It opens with the server's lifespan, or else at the first call. Raises `RecordingFailed`
        where the state cannot be read.
        """
        engine = self._engine
        if engine is None or engine.pid != os.getpid():
            return None
        health = engine.health()
        return health._replace(unbilled=health.unbilled + self.failures.unbilled)

    def start(self) -> None:
        """Open at the server's start; a failed node fails it, unless calls may pass unbilled."""
        try:
            self._open()
        except RecordingFailed as error:
            if not self.failures.passes:
                raise
            self.failures.note("cannot be opened", error)

    def _open(self) -> None:
        """Open the engine in this process, and end what dead workers left."""
        self._closing = False
        self._node = None
        if self._engine is not None and self._engine.pid == os.getpid():
            return
        engine = open_engine(self._config.data)
        with ExitStack() as undo:
            # Nobody serves without a housekeeper: who cannot have one now tries again.
            undo.callback(close_engine, engine)
            housekeeper = Housekeeper(engine, self._config.storage)
            undo.callback(housekeeper.stop)
            housekeeper.round()
            housekeeper.start()
            undo.pop_all()
        self._engine, self._housekeeper = engine, housekeeper

    def count_unbilled(self, error: Exception) -> None:
        """Count a call that passes unbilled."""
        self.failures.count_unbilled(self._engine, error)

    def close(self) -> None:
        """Close the engine, after the last call under way has ended."""
        self._closing = True
        if not self._calls:
            self._close()

    def _close(self) -> None:
        engine, housekeeper, node = self._engine, self._housekeeper, self._node
        self._engine = self._housekeeper = self._node = None
        if node is not None:
            node.durable.close()
            node.guard.close()
        if housekeeper is not None:
            housekeeper.stop()
        if engine is not None:
            close_engine(engine)
