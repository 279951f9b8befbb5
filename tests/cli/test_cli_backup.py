"""``finomw backup``, ``restore``, ``checkpoint``, ``upgrade``: texts, JSON, and how they fail."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from cli_nodes import Call, Node

from finomw.engine.upgrade import STEPS


@pytest.fixture
def alice(node: Node, call: Call) -> Node:
    call("customer", "add", "alice")
    call("grant", "alice", "5", "--source", "stripe", "--id", "ch_1")
    return node


def test_a_backup_is_taken_beside_the_api_and_restored(
    alice: Node, call: Call, folder: Path
) -> None:
    with alice.engine():
        done = call("backup", "copies/monday")
    assert (done.status, done.err) == (0, "")
    [copy] = (folder / "copies" / "monday" / "checkpoints").iterdir()
    text = f"4 journal records, up to LSN {int(copy.stem, 16)}, to "
    assert done.out == f"backed up {text}copies/monday\n"
    call("grant", "alice", "7", "--source", "stripe", "--id", "ch_2")
    alice.data.rename(folder / "damaged")
    restored = call("restore", "copies/monday")
    assert (restored.status, restored.err) == (0, "")
    assert restored.out == f"restored {text}{alice.data}\n"
    assert json.loads(call("balance", "alice", "--json").out)["balance_micros"] == 5_000_000
    assert call("verify").status == 0
    assert call("grant", "alice", "7", "--source", "stripe", "--id", "ch_2").status == 0


def test_all_of_it_in_json(alice: Node, call: Call, folder: Path) -> None:
    backup = json.loads(call("backup", "copy", "--json").out)
    assert backup["directory"] == "copy"
    assert backup["end_lsn"] < alice.tail()  # a backup's own process becomes a worker
    assert backup["state_bytes"] > 4096
    restored = json.loads(call("restore", "copy", "--data", "other", "--json").out)
    assert restored["directory"] == "other"
    assert {name: restored[name] for name in ("end_lsn", "records")} == {
        name: backup[name] for name in ("end_lsn", "records")
    }
    assert restored["incarnation"] > 1
    checkpoint = json.loads(call("checkpoint", "--json").out)
    assert Path(checkpoint["path"]).exists()
    assert checkpoint["end_lsn"] == alice.tail()
    upgrade = json.loads(call("upgrade", "--json").out)
    assert upgrade == {"before": 1, "after": 1, "copy": None}


def test_a_checkpoint_is_made_on_request(alice: Node, call: Call) -> None:
    done = call("checkpoint")
    [file] = (alice.data / "checkpoints").iterdir()
    assert done.out == f"made {file}: the state up to LSN {alice.tail()}\n"


@pytest.mark.parametrize(
    ("command", "told"),
    [
        ("backup full", "full: is there already and not empty; choose another directory"),
        ("backup file", "file: is there already and not empty"),
        ("backup .", "is there already and not empty"),
        ("backup file/below", "file/below: cannot be made: Not a directory"),
        ("backup", "Missing argument 'DIR'"),
        ("backup copy --data nowhere", "nowhere: no node directory here"),
        ("restore nowhere", "nowhere: no backup here; make one with `finomw backup DIR`"),
        ("restore fino-data", "fino-data: no backup here"),
        ("restore", "Missing argument 'DIR'"),
        ("checkpoint --data nowhere", "nowhere: no node directory here"),
        ("upgrade --data nowhere", "nowhere: no node directory here"),
    ],
)
def test_what_cannot_be_done_is_told_in_one_line_and_leaves_nothing(
    alice: Node, call: Call, folder: Path, command: str, told: str
) -> None:
    (folder / "file").write_text("mine")
    (folder / "full").mkdir()
    (folder / "full" / "file").write_text("mine")
    before = sorted(folder.rglob("*"))
    done = call(*command.split())
    assert (done.status, done.out) == (2, "")
    assert done.err.startswith("error: ")
    assert told in done.err
    assert len(done.err.splitlines()) == 1
    assert [path for path in sorted(folder.rglob("*")) if path not in before] == []


def test_a_node_is_never_restored_over_another(alice: Node, call: Call) -> None:
    call("backup", "copy")
    before = alice.books()
    done = call("restore", "copy")
    assert done.status == 2
    assert "is there already and not empty" in done.err
    assert alice.books() == before


def test_a_damaged_backup_is_refused(alice: Node, call: Call, folder: Path) -> None:
    call("backup", "copy")
    [file] = (folder / "copy" / "checkpoints").iterdir()
    file.write_bytes(file.read_bytes()[:-1])
    shutil.rmtree(alice.data)
    done = call("restore", "copy")
    assert (done.status, done.out) == (2, "")
    assert done.err.startswith("error: copy: the backup is damaged, use another: ")
    assert not alice.data.exists()


def test_a_backup_says_how_to_use_it(alice: Node, call: Call) -> None:
    call("backup", "copy")
    done = call("balance", "alice", "--data", "copy")
    assert done.status == 2
    assert done.err == (
        "error: copy: a backup, no node directory; make one of it with `finomw restore`\n"
    )


def test_the_newest_format_has_nothing_to_upgrade(alice: Node, call: Call) -> None:
    done = call("upgrade")
    assert (done.status, done.out) == (0, f"{alice.data} has format 1, the newest\n")


def test_an_older_format_is_upgraded(
    alice: Node, call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("finomw.engine.directory.FORMAT_VERSION", 2)
    monkeypatch.setitem(STEPS, 1, lambda directory: None)
    refused = call("balance", "alice")
    assert refused.status == 2
    assert "stop every process that uses it and run `finomw upgrade`" in refused.err
    done = call("upgrade")
    copy = alice.data.with_name("fino-data.format-1")
    assert (done.status, done.out) == (
        0,
        f"{alice.data} has format 2 now; as it was, in format 1, it lies in {copy}\n",
    )
    assert copy.is_dir()
    assert call("balance", "alice").status == 0
    with alice.engine():
        assert "a process has it open" in call("upgrade").err
