from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from journals import Journal


@pytest.fixture
def journal(tmp_path: Path) -> Iterator[Journal]:
    journal = Journal(tmp_path)
    yield journal
    journal.close()
