"""``finomw recover``: what it says, in text and JSON, and with which status it ends."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from cli_nodes import Call, Node, hold

from finomw.journal.files import Files
from finomw.journal.format import START
from finomw.journal.reader import Reader


@pytest.fixture
def alice(node: Node, call: Call) -> Node:
    """Make alice with two grants, and a hold that nobody ends."""
    call("customer", "add", "alice")
    for number in (1, 2):
        call("grant", "alice", "5", "--source", "stripe", "--id", f"ch_{number}")
    with node.engine() as engine:
        hold(engine, 100)
    return node


def contents(node: Node) -> dict[str, tuple[bytes, int]]:
    files = (file for file in node.data.rglob("*") if file.is_file())
    return {str(file): (file.read_bytes(), file.stat().st_mtime_ns) for file in files}


def damage(node: Node) -> list[int]:
    """Damage the second grant on disk; return where it was, where it ended, and what followed."""
    with node.engine() as engine:
        records = list(Reader(engine.directory.segments(Files()), START))
    grants = [record for record in records if b"stripe" in record.body]
    bad = grants[1]
    file = node.data / "journal" / f"{0:016x}.seg"
    with file.open("r+b") as opened:
        opened.seek(bad.lsn + 40)
        opened.write(b"????")
    (node.data / "control").unlink()
    return [bad.lsn, bad.end, *(record.lsn for record in records if record.lsn > bad.lsn)]


def test_a_dry_run_tells_what_a_start_would_do(alice: Node, call: Call) -> None:
    before = contents(alice)
    done = call("recover", "--dry-run")
    assert (done.status, done.err) == (0, "")
    assert done.out.splitlines()[:3] == [
        "a start would               go on",
        "because                     the state is up to date",
        "from checkpoint             none",
    ]
    document = json.loads(call("recover", "--dry-run", "--json").out)
    assert document["outcome"] == "go on"
    assert document["error"] is None
    assert (document["accept_loss_after"], document["lost"]) == (None, [])
    assert document["end_lsn"] == document["durable_lsn"]
    assert contents(alice) == before


def test_the_way_out_of_a_refusal_is_named_and_taken(alice: Node, call: Call) -> None:
    lsn, end, *behind = damage(alice)
    refused = call("balance", "alice")
    assert refused.status == 2
    assert len(refused.err.splitlines()) == 1
    assert f"finomw recover --accept-loss-after {lsn}" in refused.err
    before = contents(alice)
    asked = call("recover", "--dry-run")
    assert (asked.status, asked.err) == (1, "")
    lines = asked.out.splitlines()
    assert lines[0] == "a start would  refuse"
    assert lines[1].startswith("because        ")
    assert f"LSN {lsn}: no valid record here" in lines[1]
    assert lines[2] == f"LSN {lsn} up to {end}: cannot be read"
    assert [line.split(":")[0] for line in lines[3:-2]] == [f"LSN {lsn}" for lsn in behind]
    assert "Hold: at " in lines[-3]
    assert lines[-2:] == [
        f"{len(behind)} records, and what cannot be read would be lost",
        f"to give that up: finomw recover --accept-loss-after {lsn}",
    ]
    wrong = call("recover", "--accept-loss-after", str(lsn + 8))
    assert wrong.status == 2
    assert wrong.err == (
        f"error: {alice.data}: what can be read ends at LSN {lsn}, not {lsn + 8}: accept that "
        "loss or none\n"
    )
    assert contents(alice) == before
    done = call("recover", "--accept-loss-after", str(lsn))
    assert (done.status, done.err) == (0, "")
    aside = alice.data / "lost" / f"{lsn:016x}"
    assert done.out.splitlines() == [
        *lines[2:-2],
        f"{len(behind)} records, and what cannot be read are lost",
        f"the journal ends at LSN {lsn} now; what followed lies in {aside}",
    ]
    assert sorted(file.name for file in aside.iterdir()) == [
        *(file.name for file in sorted(aside.glob("*.seg"))),
        "records.jsonl",
    ]
    assert call("verify").status == 0
    assert json.loads(call("balance", "alice", "--json").out)["balance_micros"] == 5_000_000
    again = call("recover", "--accept-loss-after", str(lsn))
    assert again.status == 2
    assert "a start is not refused here, so there is nothing to lose" in again.err


def test_the_way_out_in_json(alice: Node, call: Call) -> None:
    lsn, _, *behind = damage(alice)
    asked = call("recover", "--dry-run", "--json")
    assert asked.status == 1
    document = json.loads(asked.out)
    assert document["outcome"] == "refuse"
    assert document["accept_loss_after"] == lsn
    assert [lost["lsn"] for lost in document["lost"]] == [lsn, *behind]
    assert document["lost"][-1]["fields"]["customer"] == "alice"
    done = call("recover", "--accept-loss-after", str(lsn), "--json")
    assert done.status == 0
    accepted = json.loads(done.out)
    assert accepted["lost"] == document["lost"]
    assert Path(accepted["aside"]).is_dir()


@pytest.mark.parametrize(
    "command", ["recover", "recover --dry-run", "recover --accept-loss-after 4096"]
)
def test_a_running_node_is_left_alone(alice: Node, call: Call, command: str) -> None:
    with alice.engine():
        done = call(*command.split())
    assert (done.status, done.out) == (2, "")
    assert done.err == f"error: {alice.data}: a process has it open; stop it first\n"


@pytest.mark.parametrize("value", ["-1", "x", "1.5", ""])
def test_what_is_no_lsn_is_refused_in_one_line(alice: Node, call: Call, value: str) -> None:
    done = call("recover", "--accept-loss-after", value)
    assert done.status == 2
    assert done.err.startswith("error: Invalid value for '--accept-loss-after'")
    assert len(done.err.splitlines()) == 1


def test_asking_and_acting_are_two_things(alice: Node, call: Call) -> None:
    done = call("recover", "--dry-run", "--accept-loss-after", "4096")
    assert (done.status, done.err) == (
        2,
        "error: --accept-loss-after: not together with --dry-run\n",
    )


def test_a_backup_is_no_node(alice: Node, call: Call, folder: Path) -> None:
    assert call("backup", "copy").status == 0
    done = call("recover", "--data", "copy")
    assert (done.status, done.out) == (2, "")
    assert "make one of it with `finomw restore`" in done.err


def test_a_damaged_state_names_recover_and_recover_mends_it(alice: Node, call: Call) -> None:
    """In the same boot the state is believed, until a row of it cannot be read."""
    before = alice.books()
    with alice.engine() as engine, engine.store.write() as txn:
        table = engine.store.accounts._table
        key, row = next(iter(txn.cursor(db=table)))
        txn.put(bytes(key), bytes(row)[:-3], db=table)
    broken = call("balance", "alice")
    assert broken.status == 2
    assert len(broken.err.splitlines()) == 1
    assert "the state is damaged" in broken.err
    assert "stop every process that uses it, then run `finomw recover`" in broken.err
    done = call("recover")
    assert (done.status, done.err) == (0, "")
    assert done.out.startswith("rebuilt the state from no checkpoint and ")
    assert alice.books() == before
    assert call("verify").status == 0


def test_a_rebuild_says_what_it_did_in_json(alice: Node, call: Call) -> None:
    call("checkpoint")
    document = json.loads(call("recover", "--json").out)
    assert document["records"] == 0
    assert document["checkpoint"].endswith(".mdb")
    assert document["outcome"] == "recover"


def test_a_refused_rebuild_is_told_in_one_line_and_changes_nothing(alice: Node, call: Call) -> None:
    lsn = damage(alice)[0]
    before = contents(alice)
    done = call("recover")
    assert (done.status, done.out) == (2, "")
    assert f"--accept-loss-after {lsn}" in done.err
    assert len(done.err.splitlines()) == 1
    assert contents(alice) == before


def test_where_no_loss_helps_nothing_is_offered(alice: Node, call: Call) -> None:
    shutil.rmtree(alice.data / "journal")
    (alice.data / "journal").mkdir()
    done = call("recover", "--dry-run")
    assert done.status == 1
    assert "accept-loss-after" not in done.out
    assert "restore a checkpoint or the node from a backup" in done.out
