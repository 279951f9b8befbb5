"""A large ledger is read right: its last entries, what each left, and that it adds up.

That it is read fast is shown by ``tests/ledger_size.py``, run by hand: figures do not belong in a
test that also runs on busy machines.
"""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path
from types import ModuleType

import pytest
from cli_nodes import Call

from finomw.engine.engine import close_engine, open_engine
from finomw.engine.ledger import Filter, ledger
from finomw.engine.verify import verify
from finomw.types import CustomerId, EntryKind

ENTRIES = 100_000
CUSTOMERS = 50


@pytest.fixture(scope="module")
def ledger_size() -> ModuleType:
    """Import the script, which is no part of any package."""
    path = Path(__file__).parents[1] / "ledger_size.py"
    spec = importlib.util.spec_from_file_location("ledger_size", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["ledger_size"] = module
    spec.loader.exec_module(module)
    return module


def test_the_last_entries_of_a_large_ledger_are_right(
    ledger_size: ModuleType, folder: Path, call: Call
) -> None:
    filled = ledger_size.fill(folder / "fino-data", ENTRIES, CUSTOMERS)
    assert ENTRIES <= filled.entries < ENTRIES + 3
    engine = open_engine(folder / "fino-data")
    try:
        found = verify(engine)
        assert len(list(ledger_size.read(engine, filled))) == 25
        who = CustomerId("customer-000007")
        grants = ledger(engine, who, 5, Filter(kinds=frozenset({EntryKind.GRANT})))
        everything = ledger(engine, who, ENTRIES)
    finally:
        close_engine(engine)
    assert (found.customers, found.entries, found.faults) == (CUSTOMERS, filled.entries, ())
    assert [(line.entry.source_id, line.left) for line in grants] == [("first", 10**12)]
    assert everything[:100] == filled.last[who]
    assert everything[0].left == sum(line.entry.amount for line in everything)
    told = call("ledger", who, "--limit", "100", "--data", "fino-data", "--json")
    assert [
        (entry["record"], entry["source_id"], entry["left_micros"])
        for entry in json.loads(told.out)["entries"]
    ] == [(line.number, line.entry.source_id, line.left) for line in filled.last[who]]
