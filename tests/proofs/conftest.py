"""What proofs share: the figures that they measured, printed at the end of the run."""

from __future__ import annotations

from collections.abc import Callable

import pytest

_FIGURES = pytest.StashKey[list[str]]()


@pytest.fixture
def figures(pytestconfig: pytest.Config) -> Callable[[str], None]:
    """Return a function that takes one line of figures, for the run's summary."""
    return pytestconfig.stash.setdefault(_FIGURES, []).append


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, config: pytest.Config
) -> None:
    lines = config.stash.get(_FIGURES, [])
    if lines:
        terminalreporter.section("figures of the proofs")
        for line in lines:
            terminalreporter.write_line(line)
