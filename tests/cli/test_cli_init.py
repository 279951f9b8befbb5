"""finomw init: a valid file to start from, and a directory; what exists stays as it is."""

from __future__ import annotations

import json
import re
import stat
from pathlib import Path

import pytest
from cli_nodes import SMALL, Call

from finomw import limits
from finomw.config.load import load
from finomw.config.model import Storage
from finomw.engine.directory import find
from finomw.types import PlanName, RouteName


def modes(root: Path) -> set[tuple[bool, int]]:
    """Whether it is a directory, and its permissions, of a directory and all that is in it."""
    paths = [root, *root.rglob("*")]
    return {(path.is_dir(), stat.S_IMODE(path.stat().st_mode)) for path in paths}


def test_init_makes_a_valid_file_and_a_private_directory(folder: Path, call: Call) -> None:
    done = call("init")
    assert (done.status, done.err) == (0, "")
    assert done.out.splitlines() == [
        "wrote fino.yaml: say there what calls cost, then run finomw check",
        f"made the node directory {folder / 'fino-data'}",
    ]
    assert sorted(path.name for path in folder.iterdir()) == ["fino-data", "fino.yaml"]
    assert stat.S_IMODE((folder / "fino.yaml").stat().st_mode) == 0o600
    assert load(folder / "fino.yaml").data == folder / "fino-data"
    node = find(folder / "fino-data").node
    assert (node.segment_size, node.state_size) == (limits.SEGMENT_SIZE, limits.STATE_SIZE)
    assert call("check").status == 0
    assert call("customer", "add", "alice").status == 0
    assert modes(folder / "fino-data") == {(True, 0o700), (False, 0o600)}


def test_what_the_new_file_comments_out_is_valid_too(folder: Path, call: Call) -> None:
    call("init")
    lines = (folder / "fino.yaml").read_text().splitlines()
    kept = [line for line in lines if line != '        requests: {usd: "0.002"}']
    option = re.compile(r"( *)# (?=( *)(?:[a-z_]+: \S|quotas:))")
    (folder / "fino.yaml").write_text("\n".join(option.sub(r"\1", line, 1) for line in kept))
    plan = load(folder / "fino.yaml").plans[PlanName("default")]
    assert call("check").status == 0
    assert plan.unpriced == "free"
    assert plan.quotas["trial"].units == 100_000
    tiers = plan.prices[RouteName("search")][0].lists["*"].meters["requests"].tiered
    assert tiers is not None
    assert [tier.usd for tier in tiers] == ["0.002", "0.001"]


def test_init_overwrites_nothing(folder: Path, call: Call) -> None:
    assert call("init").status == 0
    (folder / "fino.yaml").write_text(SMALL)
    node = (folder / "fino-data/node.json").read_bytes()
    done = call("init")
    assert done == (
        2,
        "",
        f"error: fino.yaml and {folder / 'fino-data'} are there already; nothing was changed\n",
    )
    assert (folder / "fino.yaml").read_text() == SMALL
    assert (folder / "fino-data/node.json").read_bytes() == node
    assert sorted(path.name for path in folder.iterdir()) == ["fino-data", "fino.yaml"]


def test_init_makes_only_the_directory_of_an_existing_file(folder: Path, call: Call) -> None:
    (folder / "fino.yaml").write_text(f"data: books/api\n{SMALL}")
    done = call("init")
    assert done == (
        0,
        f"fino.yaml is there and stays as it is; made the node directory {folder / 'books/api'}\n",
        "",
    )
    assert (folder / "fino.yaml").read_text() == f"data: books/api\n{SMALL}"
    node = find(folder / "books/api").node
    assert (node.segment_size, node.state_size) == (64 * limits.KIB, limits.MIB)


def test_init_makes_the_directory_that_data_names(folder: Path, call: Call) -> None:
    (folder / "fino.yaml").write_text(SMALL)
    assert call("init", "--data", "other").out.endswith("made the node directory other\n")
    assert find(folder / "other").node.segment_size == 64 * limits.KIB
    assert not (folder / "fino-data").exists()


def test_init_keeps_a_node_directory_whose_file_is_gone(folder: Path, call: Call) -> None:
    (folder / "fino.yaml").write_text(SMALL)
    call("init")
    node = (folder / "fino-data/node.json").read_bytes()
    (folder / "fino.yaml").unlink()
    done = call("init")
    assert done.status == 0
    assert done.out.endswith(f"kept the node directory {folder / 'fino-data'}\n")
    assert (folder / "fino-data/node.json").read_bytes() == node
    assert call("customer", "list", "--json").status == 0


@pytest.mark.parametrize(
    ("data", "written"),
    [
        ("books", "data: {folder}/books"),
        ("etc/books", "data: books"),
        ("etc/my books #1", 'data: "my books #1"'),
        ("etc/~", 'data: "~"'),
        ('etc/"', 'data: "\\""'),
    ],
)
def test_the_new_file_names_the_directory_that_was_asked_for(
    folder: Path, call: Call, data: str, written: str
) -> None:
    (folder / "etc").mkdir()
    done = call("init", "--config", "etc/fino.yaml", "--data", data)
    assert (done.status, done.err) == (0, "")
    lines = (folder / "etc/fino.yaml").read_text().splitlines()
    assert [line for line in lines if line.startswith("data:")] == [written.format(folder=folder)]
    config = load(folder / "etc/fino.yaml")
    assert config.data == folder / data
    assert config.storage == Storage()
    find(folder / data)


@pytest.mark.parametrize("data", ["${HOME}/books", "a\nb"])
def test_init_refuses_a_directory_that_yaml_cannot_name(
    folder: Path, call: Call, data: str
) -> None:
    done = call("init", "--data", data)
    assert (done.status, done.out) == (2, "")
    assert done.err == (
        f"error: --data: a YAML file cannot name the directory {json.dumps(data)}\n"
    )
    assert list(folder.iterdir()) == []


def test_init_does_not_move_into_somebody_elses_directory(folder: Path, call: Call) -> None:
    (folder / "fino-data").mkdir()
    (folder / "fino-data/thesis.tex").write_text("mine")
    done = call("init")
    assert (done.status, done.out) == (2, "")
    assert done.err.startswith(f"error: {folder / 'fino-data'}: ")
    assert sorted(path.name for path in folder.rglob("*")) == ["fino-data", "thesis.tex"]


def test_init_leaves_nothing_behind_when_the_file_cannot_be_written(
    folder: Path, call: Call
) -> None:
    done = call("init", "--config", "missing/fino.yaml", "--data", "books")
    assert (done.status, done.out) == (2, "")
    assert done.err.endswith(": No such file or directory\n")
    assert list(folder.iterdir()) == []


def test_init_leaves_nothing_behind_when_the_directory_cannot_be_made(
    folder: Path, call: Call
) -> None:
    (folder / "file").write_text("")
    done = call("init", "--data", "file/books")
    assert (done.status, done.out) == (2, "")
    assert done.err == f"error: {folder / 'file/books'}: cannot be made: Not a directory\n"
    assert [path.name for path in folder.iterdir()] == ["file"]


def test_a_bad_file_is_no_reason_to_make_a_directory(folder: Path, call: Call) -> None:
    (folder / "fino.yaml").write_text("routes: 5")
    done = call("init")
    assert done == (2, "", "error: fino.yaml: routes: expected a list of rules, found 5\n")
    assert [path.name for path in folder.iterdir()] == ["fino.yaml"]
