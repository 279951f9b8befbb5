"""Verify finds what does not add up, and says where."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import nodes
import pytest
from msgspec.structs import replace
from nodes import ALICE, SEGMENT

from finomw.engine import grants
from finomw.engine.engine import Engine
from finomw.engine.verify import Verified, verify
from finomw.money.entries import Entry
from finomw.store.accounts import _encode
from finomw.types import CustomerId, EntryKind, Fund


def corrupt(engine: Engine, customer: CustomerId, **fields: Any) -> None:
    """Change an account's row behind everybody's back."""
    store = engine.store
    with store.write() as txn:
        account = replace(store.accounts.need(txn, ALICE), **fields)
        txn.put(customer.encode(), _encode(account), db=store.accounts._table)


def test_a_whole_directory_has_no_faults(engine: Engine) -> None:
    nodes.held(engine, 5)
    nodes.settle(engine, nodes.held(engine, 5).hold, 3)
    assert verify(engine) == Verified(
        records=6, end=engine.tail(), customers=1, entries=5, open_holds=1, faults=()
    )


def test_an_empty_directory_has_no_faults(path: Path) -> None:
    engine = nodes.open_node(path)
    assert verify(engine) == Verified(0, 4096, 0, 0, 0, ())
    engine.close()


def test_a_wrong_balance_is_found(engine: Engine) -> None:
    corrupt(engine, ALICE, balance=1_001)
    assert verify(engine).faults == (
        "alice: balance is 1001, its entries and open holds come to 1000",
    )


def test_a_wrong_held_is_found(engine: Engine) -> None:
    nodes.held(engine, 10)
    corrupt(engine, ALICE, held=9)
    assert verify(engine).faults == ("alice: held is 9, its entries and open holds come to 10",)


def test_what_belongs_to_no_customer_is_found(engine: Engine) -> None:
    nodes.held(engine, 10)
    store = engine.store
    with store.write() as txn:
        txn.delete(ALICE.encode(), db=store.accounts._table)
    assert verify(engine).faults == ("alice: entries or holds without a customer",)


def test_an_entry_too_many_is_found(engine: Engine) -> None:
    store = engine.store
    with store.write() as txn:
        entry = Entry(EntryKind.GRANT, Fund.WALLET, 5, "test", "extra", 1)
        store.ledger.append(txn, ALICE, 99, 0, entry)
    assert verify(engine).faults == (
        "alice: balance is 1000, its entries and open holds come to 1005",
    )


@pytest.mark.parametrize("offset", [0, 4, 8, 30, 40])
def test_a_damaged_journal_byte_is_found_with_its_file(
    path: Path, engine: Engine, offset: int
) -> None:
    damaged = engine.tail()
    nodes.held(engine, 5)
    nodes.held(engine, 5)
    file = engine.segments.at(0).file
    file.store(damaged + offset, bytes([file.load(damaged + offset, 1)[0] ^ 1]))
    [fault] = verify(engine).faults
    assert fault.startswith(str(path / "journal" / f"{0:016x}.seg"))
    assert f"the journal's chain ends at LSN {damaged} after 3 records" in fault
    assert f"the state says LSN {engine.tail()} after 5" in fault


def test_a_segment_that_cannot_be_read_is_a_fault(path: Path, engine: Engine) -> None:
    nodes.fill_to(engine, SEGMENT + 8_000)
    nodes.drop(engine)
    again = nodes.open_node(path)
    again.segments.close()
    shutil.copy(path / "journal" / f"{0:016x}.seg", path / "journal" / f"{SEGMENT:016x}.seg")
    [fault] = verify(again).faults
    assert "this is the segment of LSN 0" in fault
    nodes.drop(again)


def test_verify_sees_one_moment_while_others_write(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    items = engine.store.holds.items

    def write_meanwhile(txn: Any) -> Any:
        nodes.held(engine, 5)
        grants.grant(engine, ALICE, 7, "test", "meanwhile")
        return items(txn)

    monkeypatch.setattr(engine.store.holds, "items", write_meanwhile)
    verified = verify(engine)
    assert verified.faults == ()
    assert verified.end < engine.tail()
