from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import nodes
import pytest

from finomw.engine import customers, grants
from finomw.engine.engine import Engine
from finomw.types import PlanName


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Make a new, empty node directory."""
    return nodes.make(tmp_path / "node")


@pytest.fixture
def engine(path: Path) -> Iterator[Engine]:
    """Open an engine on it, alone, with the customer alice, who has 1000 micros."""
    engine = nodes.open_node(path)
    customers.add_customer(engine, nodes.ALICE, PlanName("default"))
    grants.grant(engine, nodes.ALICE, 1000, "test", "first")
    yield engine
    engine.close()
