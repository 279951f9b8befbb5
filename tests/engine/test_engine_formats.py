"""Directories of every released format: kept here as they were written, read and gone on with."""

from __future__ import annotations

import json
import tarfile
from pathlib import Path
from typing import Any

import nodes
import pytest

from finomw.engine import customers, directory
from finomw.engine.analysis import dry_run
from finomw.engine.backup import back_up, restore
from finomw.engine.checkpoint import make_checkpoint
from finomw.engine.directory import find
from finomw.engine.engine import Engine
from finomw.engine.upgrade import Upgraded, upgrade
from finomw.engine.verify import verify
from finomw.testing.clock import ManualClock
from finomw.types import CustomerId

HERE = Path(__file__).parent / "formats"
FORMATS = sorted(int(file.stem.removeprefix("format-")) for file in HERE.glob("*.json"))
each_format = pytest.mark.parametrize("number", FORMATS)


def unpack(number: int, folder: Path) -> tuple[Path, dict[str, Any]]:
    """Return a released node as it was left, and what its books said then."""
    name = f"format-{number}"
    with tarfile.open(HERE / f"{name}.tar.gz") as archive:
        archive.extractall(folder, filter="data")
    return folder / name, json.loads((HERE / f"{name}.json").read_text())


def books(engine: Engine) -> dict[str, Any]:
    store = engine.store
    with store.read() as txn:
        accounts = dict(store.accounts.items(txn))
        return {
            "tail": list(store.meta.tail(txn)),
            "accounts": {
                name: [a.balance, a.held, a.spent_total, a.credited_total]
                for name, a in accounts.items()
            },
            "ledger": store.ledger.count(txn),
            "holds": sum(1 for _ in store.holds.items(txn)),
            "ended": sum(1 for _ in store.holds.ended(txn)),
        }


def test_every_format_has_its_fixture() -> None:
    assert list(range(1, directory.FORMAT_VERSION + 1)) == FORMATS


@each_format
def test_a_released_node_is_replayed_whole_and_goes_on_being_charged(
    tmp_path: Path, number: int
) -> None:
    path, said = unpack(number, tmp_path)
    newest = directory.FORMAT_VERSION
    done = upgrade(path)
    assert (done.before, done.after) == (number, newest)
    if number == newest:
        assert done == Upgraded(newest, newest, None)
    plan = dry_run(path)
    assert (plan.error, plan.records) == (None, said["tail"][3])
    engine = nodes.open_node(path)
    assert books(engine) == said
    assert verify(engine).faults == ()
    goes_on(engine, path, said)


def goes_on(engine: Engine, path: Path, said: dict[str, Any]) -> None:
    """Charge a call, end what was open, and rebuild it all from what this version wrote."""
    name = CustomerId("alice")
    nodes.settle(engine, nodes.held(engine, 11).hold, 10)
    account = customers.get_account(engine, name)
    balance, held, spent, _ = said["accounts"]["alice"]
    assert (account.balance, account.held, account.spent_total) == (balance - 10, held, spent + 10)
    with engine.store.read() as txn:
        left = [hold for hold, row in engine.store.holds.items(txn) if row.customer == name]
    for hold in left:
        nodes.settle(engine, hold, 0)
    account = customers.get_account(engine, name)
    assert (account.balance, account.held) == (balance + held - 10, 0)
    again = nodes.rebuilt(engine, path)
    make_checkpoint(again)
    last = nodes.rebuilt(again, path)
    assert verify(last).faults == ()
    last.close()


@each_format
def test_a_released_node_can_be_backed_up_and_restored(tmp_path: Path, number: int) -> None:
    path, said = unpack(number, tmp_path)
    upgrade(path)
    engine = nodes.open_node(path)
    back_up(engine, tmp_path / "backup")
    engine.close()
    restore(tmp_path / "backup", tmp_path / "again", ManualClock())
    again = nodes.open_node(tmp_path / "again")
    assert {**books(again), "tail": said["tail"]} == said
    assert find(tmp_path / "again").node.incarnation > 1
    goes_on(again, tmp_path / "again", said)
