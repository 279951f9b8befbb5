"""finomw presets: the rules that ship, as they could stand in the YAML."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from cli_nodes import Call

from finomw.config import presets

PLAN = "plans: {default: {unpriced: free}}\nroutes:\n"


def test_presets_list_names_their_matches_and_meters(call: Call) -> None:
    done = call("presets", "list")
    assert (done.status, done.err) == (0, "")
    lines = done.out.splitlines()
    assert lines[0].split() == ["PRESET", "MATCH", "METERS"]
    assert [line.split()[0] for line in lines[1:]] == list(presets.names())
    assert "ollama.chat         POST /api/chat              input_tokens, output_tokens" in lines


def test_presets_list_tells_programs_the_rules(call: Call) -> None:
    document = json.loads(call("presets", "list", "--json").out)
    assert list(document["presets"]) == list(presets.names())
    assert document["presets"]["mcp.tools"]["error"] == ".result.isError"


@pytest.mark.parametrize("name", presets.names())
def test_a_preset_as_shown_may_be_pasted(folder: Path, call: Call, name: str) -> None:
    shown = call("presets", "show", name)
    assert (shown.status, shown.err) == (0, "")
    pasted = "".join(f"  {line}\n" for line in shown.out.splitlines())
    (folder / "fino.yaml").write_text(PLAN + pasted)
    checked = call("check", "-v")
    assert (checked.status, checked.err) == (0, "")


def test_a_preset_that_does_not_exist_is_one_error(call: Call) -> None:
    done = call("presets", "show", "openai")
    assert (done.status, done.out) == (2, "")
    assert done.err.startswith('error: no preset has the name "openai"; ')
    assert len(done.err.splitlines()) == 1
