"""Presets on what broke them once: spelled numbers in requests, errors without an ``error``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from finomw.config.load import parse
from finomw.config.model import MeteredRoute
from finomw.errors import Problem
from finomw.metering.documents import Document
from finomw.metering.estimate import Unestimable
from finomw.metering.measure import Measure, compile_measure
from finomw.metering.readers import Readers
from finomw.metering.usage import Usage
from finomw.types import UsageStatus


def preset(name: str) -> Measure:
    plan = "plans: {default: {unpriced: free}}"
    rule = f"routes: [{{name: r, match: POST /r, meter: {name}}}]"
    (route,) = parse(f"{plan}\n{rule}", Path()).routes
    assert isinstance(route, MeteredRoute)
    problems: list[Problem] = []
    measure = compile_measure(route, "r", problems)
    assert measure is not None, problems
    return measure


def read(name: str, *events: Any) -> Usage:
    head = [(b"content-type", b"text/event-stream")]
    reader = Readers("r", preset(name).meter, 1000, False).reader_for(200, head)
    assert reader is not None
    for event in events:
        reader.feed(b"data: " + json.dumps(event).encode() + b"\n\n")
    return reader.finish()


def gemini(count: object) -> dict[str, Any]:
    return {"generationConfig": {"candidateCount": count}}


@pytest.mark.parametrize("count", [" 5", "1_0", "5 ", "", "five"])
def test_a_number_of_answers_that_jq_cannot_read_is_refused_and_never_taken_for_one(
    count: str,
) -> None:
    # Servers that read text as numbers, as pydantic does, take more spellings than jq.
    for name, request in (
        ("openai.chat", {"n": count}),
        ("vllm", {"n": count}),
        ("vllm", {"best_of": count}),
        ("gemini.generate", gemini(count)),
    ):
        with pytest.raises(Unestimable):
            preset(name).estimate.counts(Document(json.dumps(request).encode()))


@pytest.mark.parametrize("count", ["5", "5.0", "+5", 5, 5.0])
def test_a_number_of_answers_that_is_spelled_as_text_counts(count: object) -> None:
    for name, request in (("openai.chat", {"n": count}), ("gemini.generate", gemini(count))):
        estimate = preset(name).estimate
        one = estimate.counts(Document(b"{}"))["output_tokens"]
        held = estimate.counts(Document(json.dumps(request).encode()))
        assert held["output_tokens"] == 5 * one


@pytest.mark.parametrize(
    ("name", "request_body"),
    [
        ("anthropic.messages", {"source": {"type": "base64", "data": "aGk="}}),
        ("gemini.generate", {"contents": [{"parts": [{"inlineData": {"data": "aGk="}}]}]}),
        ("gemini.generate", {"contents": [{"parts": [{"inline_data": {"data": "aGk="}}]}]}),
        ("openai.chat", {"messages": [{"content": [{"file": {"file_data": "data:"}}]}]}),
        ("openai.responses", {"input": [{"type": "input_file", "file_data": "data:"}]}),
        ("ollama.chat", {"messages": [{"content": "what?", "images": ["aGk="]}]}),
    ],
)
def test_a_request_with_a_file_in_it_holds_the_context_since_an_image_packs_many_tokens(
    name: str, request_body: object
) -> None:
    estimate = preset(name).estimate
    raw = json.dumps(request_body).encode()
    assert estimate.counts(Document(raw))["input_tokens"] >= 131072
    without = b'{"messages": [{"content": "base64 and images", "images": [ ]}]}'
    assert estimate.counts(Document(without))["input_tokens"] == len(without)


def test_an_error_event_of_the_responses_api_is_an_error_also_without_a_member_of_that_name() -> (
    None
):
    begun = {"type": "response.created", "response": {"error": None, "usage": None}}
    failed = {"type": "error", "code": "server_error", "message": "Sorry", "param": None}
    assert read("openai.responses", begun, failed) == Usage({}, UsageStatus.MISSING, True)
    text = {"type": "response.output_text.delta", "delta": '{"type":"error"}'}
    assert not read("openai.responses", begun, text).error
    said = {"type": "response.completed", "response": {"usage": {"input_tokens": 5}}}
    assert not read("openai.responses", begun, said).error


def test_a_stream_of_cohere_that_ends_with_an_error_is_an_error() -> None:
    delta = {"finish_reason": "ERROR", "error": "the model failed"}
    assert read("cohere.chat", {"type": "message-end", "delta": delta}).error
    usage = {"billed_units": {"input_tokens": 3, "output_tokens": 6}}
    delta = {"finish_reason": "COMPLETE", "usage": usage}
    ended = read("cohere.chat", {"type": "message-end", "delta": delta})
    assert ended == Usage({"input_tokens": 3, "output_tokens": 6}, UsageStatus.KNOWN, False)
