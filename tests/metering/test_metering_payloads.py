"""Bodies in the shapes that providers send, with the counts that are right, in every cut."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from finomw import limits
from finomw.metering.meter import Meter
from finomw.metering.readers import Readers
from finomw.metering.usage import Usage

FOLDER = Path(__file__).parent / "payloads"
FILES: list[dict[str, Any]] = json.loads((FOLDER / "INDEX.json").read_text())["files"]

OPENAI = {
    "input_total": ".usage.prompt_tokens",
    "cache_read": ".usage.prompt_tokens_details.cached_tokens // 0",
    "output_total": ".usage.completion_tokens",
    "reasoning_part_of_output": ".usage.completion_tokens_details.reasoning_tokens // 0",
}
ANTHROPIC = {
    "input_uncached": "(.message.usage // .usage).input_tokens",
    "cache_read": "(.message.usage // .usage).cache_read_input_tokens // 0",
    "cache_write": "(.message.usage // .usage).cache_creation_input_tokens // 0",
    "output_total": "(.message.usage // .usage).output_tokens",
}
RESPONSES = {
    "input_total": ".response.usage.input_tokens",
    "cache_read": ".response.usage.input_tokens_details.cached_tokens // 0",
    "output_total": ".response.usage.output_tokens",
    "reasoning_part_of_output": ".response.usage.output_tokens_details.reasoning_tokens // 0",
}
METERS = {
    "any": OPENAI,
    "openai": OPENAI,
    "azure-openai": OPENAI,
    "openai-compatible": OPENAI,
    "vllm": OPENAI,
    "anthropic": ANTHROPIC,
    "openai-responses": RESPONSES,
    "ollama": {"input_total": ".prompt_eval_count", "output_total": ".eval_count"},
}
ENDS = {"message_stop", "response.completed", "response.incomplete", "response.failed"}
NO_OUTPUT = {"embeddings_small.json"}

each_file = pytest.mark.parametrize("entry", FILES, ids=lambda entry: entry["file"])


def readers(entry: dict[str, Any]) -> Readers:
    spec = METERS[entry["provider"]]
    if entry["file"] in NO_OUTPUT:
        spec = {**spec, "output_total": spec["output_total"] + " // 0"}
    return Readers("chat", Meter(spec, "last", ENDS), limits.RESPONSE_BODY_MAX, tail=False)


def read(made: Readers, entry: dict[str, Any], chunks: list[bytes]) -> tuple[Usage, list[bool]]:
    headers = [(b"content-type", entry["content_type"].encode())]
    if entry["content_encoding"]:
        headers.append((b"content-encoding", entry["content_encoding"].encode()))
    reader = made.reader_for(entry["http_status"], headers)
    if reader is None:
        return made.meter.unread(), []
    marks = [reader.feed(chunk) for chunk in chunks]
    assert marks == sorted(marks)
    return reader.finish(), marks


@each_file
def test_a_payload_has_the_counts_that_its_provider_means(entry: dict[str, Any]) -> None:
    body = (FOLDER / entry["file"]).read_bytes()
    assert len(body) == entry["bytes"]
    usage, _ = read(readers(entry), entry, [body])
    assert usage.status.name.lower() == entry["usage_status"]
    if entry["expected"] is not None:
        assert usage.counts == {name: entry["expected"][name] for name in usage.counts}
        assert usage.counts["output_total"] == entry["expected"]["output_total"]


@each_file
def test_a_payload_gives_the_same_in_every_cut(entry: dict[str, Any]) -> None:
    body = (FOLDER / entry["file"]).read_bytes()
    made = readers(entry)
    usage, marks = read(made, entry, [body])
    bounds = [0, *entry.get("cut_at_bytes", []), len(body)]
    assert read(made, entry, [body[a:b] for a, b in pairwise(bounds)])[0] == usage
    one_by_one, marked = read(made, entry, [body[at : at + 1] for at in range(len(body))])
    assert one_by_one == usage
    assert any(marked) == any(marks)
    for at in range(len(body) + 1):
        again, marked = read(made, entry, [body[:at], body[at:]])
        assert (again, any(marked)) == (usage, any(marks))


@each_file
def test_the_end_of_a_stream_is_seen_in_it(entry: dict[str, Any]) -> None:
    body = (FOLDER / entry["file"]).read_bytes()
    _, marks = read(readers(entry), entry, [body])
    ends = not entry["file"].startswith("sse_eof") and "json" not in Path(entry["file"]).suffixes[0]
    assert marks == ([] if entry["http_status"] == 502 else [ends or "ndjson" in entry["file"]])
