"""What proofs share: the figures that they measured, printed at the end of the run.

They travel with the tests' reports, so that they arrive also from processes that run tests aside.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest

_FIGURES = "figures"


@pytest.fixture
def figures(record_property: Callable[[str, object], None]) -> Callable[[str], None]:
    """Return a function that takes one line of figures, for the run's summary."""
    return partial(record_property, _FIGURES)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    lines = [
        line
        for report in terminalreporter.getreports("passed")
        for name, line in report.user_properties
        if name == _FIGURES
    ]
    if lines:
        terminalreporter.section("figures of the proofs")
        for line in lines:
            terminalreporter.write_line(str(line))
