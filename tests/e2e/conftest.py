from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from e2e_servers import Node


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    """Make a node directory and its configuration."""
    made = Node(tmp_path)
    yield made
    made.close()
