from __future__ import annotations

import functools
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from asgi_shop import Shop

from finomw.journal.files import Files
from finomw.metering import programs


@pytest.fixture(scope="session", autouse=True)
def compiled_once() -> Iterator[None]:
    """Compile each jq program once: the shop's are the same in every test."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(programs.jq, "compile", functools.cache(programs.jq.compile))
        yield


@pytest.fixture
def place() -> Iterator[Path]:
    """Make a directory in memory where there is one: hundreds of shops flush often."""
    memory = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=memory if memory.is_dir() else None) as path:
        yield Path(path)


@pytest.fixture
def open_shop(place: Path) -> Iterator[Callable[..., Shop]]:
    """Return what makes the test's shop, with a configuration and files of its choice."""
    shops: list[Shop] = []

    def make(text: str = "", files: Files | None = None) -> Shop:
        shops.append(Shop(place, text, files))
        return shops[-1]

    yield make
    for shop in shops:
        shop.close()


@pytest.fixture
def shop(open_shop: Callable[..., Shop]) -> Shop:
    """Open the usual shop."""
    return open_shop()
