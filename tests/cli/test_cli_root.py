"""Root leaves nothing in a node directory that the user who runs the API could not open."""

from __future__ import annotations

import os

import pytest
from cli_nodes import Call, Node

NOBODY = 65534


def give_away(node: Node, name: str, monkeypatch: pytest.MonkeyPatch) -> int:
    """Let a file of the node be another user's, and us be root; return that user."""
    if os.geteuid() == 0:
        os.chown(node.data / name, NOBODY, -1)
        return NOBODY
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    return os.getuid()


@pytest.mark.parametrize("name", ["node.json", "control"])
@pytest.mark.parametrize(
    "command",
    [
        ["customer", "add", "bob"],
        ["balance", "alice"],
        ["backup", "copy"],
        ["recover"],
        ["upgrade"],
    ],
)
def test_root_is_told_to_be_the_node_s_user(
    node: Node, call: Call, monkeypatch: pytest.MonkeyPatch, name: str, command: list[str]
) -> None:
    if name == "control":
        assert call("customer", "add", "alice").status == 0
    owner = give_away(node, name, monkeypatch)
    before = node.journal()
    done = call(*command)
    assert (done.status, done.out) == (2, "")
    assert f"belongs to user {owner}, " in done.err
    assert f"sudo -u '#{owner}' finomw ..." in done.err
    assert node.journal() == before
    assert not (node.data.parent / "copy").exists()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file away")
def test_root_goes_on_where_the_api_runs_as_root(node: Node, call: Call) -> None:
    assert call("customer", "add", "alice").status == 0
    os.chown(node.data / "node.json", NOBODY, -1)
    assert call("balance", "alice").status == 0
