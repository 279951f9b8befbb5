"""The presets, on the bodies that providers send: each token stands in one meter, once."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

from finomw import limits
from finomw.config import presets
from finomw.config.load import parse
from finomw.config.model import Config, MeteredRoute
from finomw.errors import Problem
from finomw.metering.choosing import compile_plans
from finomw.metering.guard import ask_now
from finomw.metering.measure import Measure, compile_measure, sources
from finomw.metering.programs import compile_program
from finomw.metering.readers import Readers
from finomw.metering.usage import Usage
from finomw.money.pricing import PriceList
from finomw.types import PlanName, UsageStatus

FOLDER = Path(__file__).parent / "payloads"
FILES: list[dict[str, Any]] = json.loads((FOLDER / "INDEX.json").read_text())["files"]
PRESETS = {
    "any": "openai.chat",
    "openai": "openai.chat",
    "azure-openai": "openai.chat",
    "openai-compatible": "openai.chat",
    "vllm": "vllm",
    "anthropic": "anthropic.messages",
    "openai-responses": "openai.responses",
    "ollama": "ollama.chat",
}
OF_INPUT = {"input_tokens", "cached_input_tokens", "cache_write_tokens", "cache_write_1h_tokens"}
EVENTS = "text/event-stream"
JSON = "application/json"


def config(rule: str, prices: str = "") -> Config:
    plan = f"{{prices: {{r: {prices}}}}}" if prices else "{unpriced: free}"
    text = f"plans: {{default: {plan}}}\nroutes: [{{name: r, match: POST /r, {rule}}}]"
    return parse(text, Path())


def measure_of(settings: Config) -> Measure:
    (route,) = settings.routes
    assert isinstance(route, MeteredRoute)
    problems: list[Problem] = []
    measure = compile_measure(route, "r", problems)
    assert measure is not None, problems
    return measure


def preset(name: str) -> Measure:
    return measure_of(config(f"meter: {name}"))


def read(measure: Measure, body: bytes, content_type: str, encoding: str | None = None) -> Usage:
    headers = [(b"content-type", content_type.encode())]
    if encoding:
        headers.append((b"content-encoding", encoding.encode()))
    reader = Readers("r", measure.meter, limits.MIB, tail=True).reader_for(200, headers)
    if reader is None:
        return measure.meter.unread()
    reader.feed(body)
    return reader.finish()


def events(*texts: dict[str, Any] | str) -> bytes:
    written = (text if isinstance(text, str) else json.dumps(text) for text in texts)
    return b"".join(b"data: " + text.encode() + b"\n\n" for text in written)


def body_of(document: object) -> bytes:
    return json.dumps(document).encode()


def prices(settings: Config) -> PriceList:
    problems: list[Problem] = []
    plans = compile_plans(settings, problems)
    assert not problems
    (version,) = plans[PlanName("default")].plan.routes["r"]
    return version.lists["*"]


def small_price(rule: str, wanted: str, usage: Usage) -> int:
    assert usage.status is UsageStatus.KNOWN
    return prices(config(rule, wanted)).price(usage.counts, {})


@pytest.mark.parametrize("entry", FILES, ids=lambda entry: entry["file"])
def test_every_payload_gives_what_its_provider_means(entry: dict[str, Any]) -> None:
    name = PRESETS[entry["provider"]]
    if entry["file"] == "embeddings_small.json":
        name = "openai.embeddings"
    body = (FOLDER / entry["file"]).read_bytes()
    usage = read(preset(name), body, entry["content_type"], entry["content_encoding"])
    assert usage.status.name.lower() == entry["usage_status"]
    expected = entry["expected"]
    if expected is None:
        return
    counts = usage.counts
    assert sum(counts.values()) == expected["total"]
    assert sum(counts.get(meter, 0) for meter in OF_INPUT) == expected["input_total"]
    assert counts["input_tokens"] == expected["input_uncached"]
    assert counts.get("cached_input_tokens", 0) == expected["cache_read"]
    assert counts.get("output_tokens", 0) == expected["output_total"]


def test_a_server_that_tells_the_true_split_at_the_end_is_charged_by_it() -> None:
    body = events(
        {"type": "message_start", "message": {"usage": {"input_tokens": 8834, "output_tokens": 0}}},
        {"type": "ping"},
        {
            "type": "message_delta",
            "usage": {
                "input_tokens": 18,
                "cache_read_input_tokens": 8816,
                "cache_creation_input_tokens": None,
                "output_tokens": 426,
            },
        },
        {"type": "message_stop"},
    )
    usage = read(preset("anthropic.messages"), body, EVENTS)
    assert usage.counts == {
        "input_tokens": 18,
        "cached_input_tokens": 8816,
        "cache_write_tokens": 0,
        "cache_write_1h_tokens": 0,
        "output_tokens": 426,
    }


def test_a_later_zero_is_said_and_wins() -> None:
    body = events(
        {"message": {"usage": {"input_tokens": 90, "cache_read_input_tokens": 90}}},
        {"usage": {"input_tokens": 0, "cache_read_input_tokens": 0, "output_tokens": 1}},
    )
    counts = read(preset("anthropic.messages"), body, EVENTS).counts
    assert (counts["input_tokens"], counts["cached_input_tokens"]) == (0, 0)


def test_a_long_lived_cache_write_is_a_part_of_the_cache_writes() -> None:
    written = {"ephemeral_5m_input_tokens": 40, "ephemeral_1h_input_tokens": 60}
    usage = {
        "input_tokens": 5,
        "cache_creation_input_tokens": 100,
        "cache_creation": written,
        "output_tokens": 7,
    }
    rule = "meter: anthropic.messages"
    told = read(preset("anthropic.messages"), body_of({"usage": usage}), JSON)
    assert (told.counts["cache_write_tokens"], told.counts["cache_write_1h_tokens"]) == (40, 60)
    dollar = "input_tokens: {usd: 1}, output_tokens: {usd: 0}"
    assert small_price(rule, f"{{{dollar}}}", told) == 105_000_000
    assert small_price(rule, f"{{{dollar}, cache_write_tokens: {{usd: 2}}}}", told) == 205_000_000
    all_three = f"{{{dollar}, cache_write_tokens: {{usd: 2}}, cache_write_1h_tokens: {{usd: 3}}}}"
    assert small_price(rule, all_three, told) == 265_000_000


CHAT = "meter: openai.chat"
REASONING = (
    "extends: openai.chat, "
    "meter: {reasoning_tokens: .usage.completion_tokens_details.reasoning_tokens}, "
    "splits: {reasoning_tokens: {of: output_tokens, inside: true}}"
)


@pytest.mark.parametrize(("reasoning", "dollars"), [("1", 240), ("0", 48), ("3", 48 + 3 * 192)])
def test_reasoning_that_is_inside_the_output_is_billed_once_at_any_price(
    reasoning: str, dollars: int
) -> None:
    body = (FOLDER / "openai_chat.json").read_bytes()
    assert read(preset("openai.chat"), body, JSON).counts["output_tokens"] == 240
    usage = read(measure_of(config(REASONING)), body, JSON)
    assert (usage.counts["output_tokens"], usage.counts["reasoning_tokens"]) == (48, 192)
    both = "input_tokens: {usd: 0}, output_tokens: {usd: 1}"
    wanted = f"{{{both}, reasoning_tokens: {{usd: {reasoning}}}}}"
    assert small_price(REASONING, wanted, usage) == dollars * 1_000_000
    assert small_price(REASONING, f"{{{both}}}", usage) == 240_000_000


def test_cached_and_audio_tokens_come_out_of_the_input() -> None:
    usage = {
        "prompt_tokens": 100,
        "completion_tokens": 50,
        "prompt_tokens_details": {"cached_tokens": 30, "audio_tokens": 20},
        "completion_tokens_details": {"audio_tokens": 40},
    }
    assert read(preset("openai.chat"), body_of({"usage": usage}), JSON).counts == {
        "input_tokens": 50,
        "cached_input_tokens": 30,
        "audio_input_tokens": 20,
        "output_tokens": 10,
        "audio_output_tokens": 40,
    }


def test_a_token_that_is_cached_and_audio_counts_once() -> None:
    details = {"cached_tokens": 80, "audio_tokens": 90}
    usage = {"prompt_tokens": 100, "completion_tokens": 1, "prompt_tokens_details": details}
    counts = read(preset("openai.chat"), body_of({"usage": usage}), JSON).counts
    assert (counts["cached_input_tokens"], counts["audio_input_tokens"]) == (80, 20)
    assert counts["input_tokens"] == 0


@pytest.mark.parametrize("cached", [101, -1, 0.5, "7", True, 1e300])
def test_a_part_that_is_wrong_or_larger_than_its_whole_is_never_netted_off(cached: object) -> None:
    details = {"cached_tokens": cached}
    usage = {"prompt_tokens": 100, "completion_tokens": 1, "prompt_tokens_details": details}
    told = read(preset("openai.chat"), body_of({"usage": usage}), JSON)
    assert told.status is UsageStatus.INVALID
    assert min(told.counts.values()) >= 0


def test_a_part_without_its_whole_is_no_usage() -> None:
    usage = {"prompt_tokens_details": {"cached_tokens": 5}, "completion_tokens": 1}
    assert read(preset("openai.chat"), body_of({"usage": usage}), JSON).status is (
        UsageStatus.MISSING
    )


def gemini(**counts: object) -> dict[str, Any]:
    return {"candidates": [], "usageMetadata": {"promptTokenCount": 100, **counts}}


def test_gemini_thoughts_and_tool_prompts_come_on_top() -> None:
    last = gemini(
        candidatesTokenCount=44,
        thoughtsTokenCount=343,
        cachedContentTokenCount=30,
        toolUsePromptTokenCount=7,
        promptTokensDetails=[
            {"modality": "TEXT", "tokenCount": 90},
            {"modality": "AUDIO", "tokenCount": 10},
        ],
    )
    expected = {
        "input_tokens": 60,
        "cached_input_tokens": 30,
        "audio_input_tokens": 10,
        "tool_input_tokens": 7,
        "output_tokens": 44,
        "reasoning_tokens": 343,
    }
    measure = preset("gemini.generate")
    first = gemini(thoughtsTokenCount=100)
    assert read(measure, body_of(last), JSON).counts == expected
    assert read(measure, body_of([first, last]), JSON).counts == expected
    assert read(measure, events(first, last), EVENTS).counts == expected
    assert sum(expected.values()) == 100 + 44 + 343 + 7


def test_a_gemini_answer_without_text_has_no_output() -> None:
    usage = read(preset("gemini.generate"), body_of(gemini()), JSON)
    assert (usage.status, usage.counts["output_tokens"]) == (UsageStatus.KNOWN, 0)
    nothing = read(preset("gemini.generate"), b'{"totalTokens": 9}', JSON)
    assert nothing.status is UsageStatus.MISSING


def test_cohere_counts_what_is_billed() -> None:
    billed = {
        "usage": {
            "billed_units": {"input_tokens": 5.0, "output_tokens": 418},
            "tokens": {"input_tokens": 71, "output_tokens": 418},
        }
    }
    expected = {"input_tokens": 5, "output_tokens": 418}
    assert read(preset("cohere.chat"), body_of(billed), JSON).counts == expected
    stream = events(
        {"type": "content-delta", "delta": {"message": {"content": {"text": "A"}}}},
        {"type": "message-end", "delta": {"finish_reason": "COMPLETE", **billed}},
    )
    assert read(preset("cohere.chat"), stream, EVENTS).counts == expected


def test_a_failed_response_is_an_error_object() -> None:
    body = (FOLDER / "openai_responses_failed_no_usage.sse").read_bytes()
    assert read(preset("openai.responses"), body, EVENTS).error
    body = (FOLDER / "openai_responses_incomplete.sse").read_bytes()
    assert not read(preset("openai.responses"), body, EVENTS).error


def result(number: int, **members: object) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": number, "result": {"content": [], **members}}


FAILED = {"jsonrpc": "2.0", "id": 8, "error": {"code": -32602, "message": "Unknown tool"}}
TOOLS = {"jsonrpc": "2.0", "id": 9, "result": {"tools": []}}
PROGRESS = {"jsonrpc": "2.0", "method": "notifications/progress", "params": {"progress": 1}}


@pytest.mark.parametrize(
    ("answer", "calls", "errors_too", "error"),
    [
        (result(1), 1, 1, False),
        (result(1, isError=False), 1, 1, False),
        (result(1, isError=True), 0, 1, True),
        (FAILED, 0, 1, True),
        (TOOLS, 0, 0, False),
        ([result(1), result(2), result(3, isError=True), FAILED, TOOLS], 2, 4, True),
        ({"jsonrpc": "2.0", "id": 1, "result": {"structuredContent": {}}}, 1, 1, False),
    ],
)
def test_mcp_counts_each_call_that_succeeded_and_others_if_so_told(
    answer: object, calls: int, errors_too: int, error: bool
) -> None:
    texts = answer if isinstance(answer, list) else [answer]
    stream = events(PROGRESS, *texts, PROGRESS)
    for rule, expected in (("", calls), (", charge_errors: true", errors_too)):
        measure = measure_of(config("meter: mcp.tools" + rule))
        for body, kind in ((body_of(answer), JSON), (stream, EVENTS)):
            usage = read(measure, body, kind)
            assert (usage.status, usage.counts) == (UsageStatus.KNOWN, {"calls": expected})
            assert usage.error == error


def test_mcp_has_no_usage_before_the_answer() -> None:
    usage = read(preset("mcp.tools"), events(PROGRESS), EVENTS)
    assert usage.status is UsageStatus.MISSING


@pytest.mark.parametrize("name", presets.names())
def test_the_helper_process_reads_the_same(name: str) -> None:
    measure = preset(name)
    for file in ("openai_chat.json", "anthropic_message.json"):
        body = (FOLDER / file).read_bytes()
        reply = ask_now(measure.meter.job("json"), body)
        assert reply is not None
        assert msgspec.json.decode(reply, type=Usage) == measure.meter.read_json(body)


@pytest.mark.parametrize("name", presets.names())
def test_no_program_of_a_preset_needs_the_helper_process(name: str) -> None:
    (route,) = config(f"meter: {name}").routes
    assert isinstance(route, MeteredRoute)
    plans = [compile_program(source.compiled).plan for source in sources(route)]
    assert [plan for plan in plans if "whole" in plan or "helper" in plan] == []
