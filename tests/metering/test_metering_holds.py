"""Holds from requests that anyone wrote: never too small, never nothing, or a refusal."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from finomw import limits
from finomw.config import presets
from finomw.metering.allowance import Allowance
from finomw.metering.documents import Document
from finomw.metering.estimate import Bounds, Estimate, Unestimable, divisor_of
from finomw.types import Counts

CEILING, CONTEXT = 500, 10_000
LIMITS = {
    "openai.chat": ("max_tokens", "max_completion_tokens"),
    "openai.responses": ("max_output_tokens",),
    "anthropic.messages": ("max_tokens",),
    "gemini.generate": ("generationConfig.maxOutputTokens", "generation_config.max_output_tokens"),
    "cohere.chat": ("max_tokens",),
    "ollama.chat": ("options.num_predict",),
    "vllm": ("max_tokens", "max_completion_tokens"),
}
TIMES = {
    "openai.chat": ("n",),
    "vllm": ("n", "best_of"),
    "gemini.generate": ("generationConfig.candidateCount",),
}

crafted = (
    st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.sampled_from(["100", "-1", "1e9", "nan", "-nan", "Infinity", "", "x", "0x10", " 7 "])
    | st.text(max_size=5)
    | st.lists(st.integers(-5, 5), max_size=3)
    | st.dictionaries(st.sampled_from(["a", "b"]), st.integers(-5, 5), max_size=2)
)


def estimate_of(name: str, **replaced: Any) -> Estimate:
    rule = presets.read(name)
    hold: Any = rule["hold"]
    bounds = Bounds(CEILING, CONTEXT, tuple(rule.get("references", ())))  # type: ignore[arg-type]
    return Estimate(hold, bounds._replace(**replaced))


ESTIMATES = {name: estimate_of(name) for name in LIMITS}


def request(fields: Mapping[str, object]) -> dict[str, Any]:
    made: dict[str, Any] = {"model": "m"}
    for path, value in fields.items():
        *above, last = path.split(".")
        inside = made
        for key in above:
            inside = inside.setdefault(key, {})
        inside[last] = value
    return made


def counts(estimate: Estimate, fields: Mapping[str, object]) -> Counts:
    return estimate.counts(Document(json.dumps(request(fields)).encode(), Allowance()))


def output(name: str, fields: Mapping[str, object]) -> int:
    return counts(ESTIMATES[name], fields)["output_tokens"]


each_preset = pytest.mark.parametrize("name", LIMITS)


@each_preset
@settings(derandomize=True, max_examples=150, deadline=None)
@given(data=st.data())
def test_no_crafted_value_holds_less_than_it_may_cost(name: str, data: st.DataObject) -> None:
    fields = {path: data.draw(crafted) for path in (*LIMITS[name], *TIMES.get(name, ()))}
    try:
        held = output(name, fields)
    except Unestimable:
        return  # refused, and so not served
    asked = [fields[path] for path in LIMITS[name] if fields[path] is not None]
    whole = all(type(each) in (int, float) and each >= 1 for each in asked)
    least = max(asked) if asked and whole else CEILING
    times = [fields[path] for path in TIMES.get(name, ())]
    several = max([1, *(each for each in times if type(each) in (int, float))])
    assert held >= 1
    assert held >= least * several


@each_preset
@pytest.mark.parametrize(
    "wrong", [None, 0, -1, -2, -1e300, "many", "", True, False, [100], {"n": 1}, "100", 0.5, "nan"]
)
def test_what_is_no_limit_holds_the_ceiling(name: str, wrong: object) -> None:
    for path in LIMITS[name]:
        assert output(name, {path: wrong}) == CEILING
    assert output(name, {}) == CEILING


@each_preset
@pytest.mark.parametrize(
    ("limit", "held"), [(1, 1), (100, 100), (100.0, 100), (2.5, 3), (1e9, 10**9), ("900", 900)]
)
def test_a_limit_is_held_as_asked_also_above_the_ceiling(
    name: str, limit: object, held: int
) -> None:
    for path in LIMITS[name]:
        assert output(name, {path: limit}) == held


@each_preset
@pytest.mark.parametrize("huge", [2**53 + 2, 1e300, 18446744073686646784])
def test_a_limit_beyond_all_counts_is_refused(name: str, huge: object) -> None:
    with pytest.raises(Unestimable, match=r"^output_tokens: the request gives "):
        output(name, {LIMITS[name][0]: huge})


def test_of_two_limits_the_larger_is_held_and_of_a_wrong_one_the_ceiling() -> None:
    two = {"max_tokens": 7, "max_completion_tokens": 70}
    assert output("openai.chat", two) == 70
    assert output("openai.chat", {**two, "max_tokens": "x"}) == CEILING
    assert output("openai.chat", {**two, "max_tokens": CEILING + 1, "n": -1}) == CEILING + 1


@pytest.mark.parametrize(
    ("n", "times"), [(5, 5), ("5", 5), (2.5, 3), (0, 1), (-4, 1), (None, 1), ([9], 1), (True, 1)]
)
def test_several_answers_are_held_for(n: object, times: int) -> None:
    assert output("openai.chat", {"max_tokens": 100, "n": n}) == 100 * times
    assert output("vllm", {"n": 2, "best_of": n}) == CEILING * max(2, times)
    assert output("gemini.generate", {"generationConfig.candidateCount": n}) == CEILING * times


def test_the_last_of_repeated_keys_counts() -> None:
    body = b'{"max_tokens": 100, "max_tokens": -1}'
    assert ESTIMATES["openai.chat"].counts(Document(body))["output_tokens"] == CEILING


@pytest.mark.parametrize("raw", [b"{", b"", b"max_tokens=5"])
def test_a_request_that_is_no_json_holds_the_ceiling(raw: bytes) -> None:
    held = ESTIMATES["openai.chat"].counts(Document(raw))
    assert held == {"input_tokens": max(1, len(raw)), "output_tokens": CEILING}


@pytest.mark.parametrize(
    ("source", "size", "held"),
    [
        ("request_bytes", 0, 1),
        ("request_bytes", 9, 9),
        ("request_bytes / 4", 8, 2),
        ("request_bytes/4", 9, 3),
        (" request_bytes  /  1000 ", 1, 1),
    ],
)
def test_a_part_of_the_size_is_held_without_reading_json(source: str, size: int, held: int) -> None:
    estimate = Estimate({"input_tokens": source})
    assert (estimate.needs_size, estimate.needs_body, estimate.needs_json) == (True, False, False)
    assert estimate.counts(Document(b"\xff" * size)) == {"input_tokens": held}
    assert estimate.counts(Document(b""), size) == {"input_tokens": held}


@pytest.mark.parametrize("source", ["request_bytes / 0", "request_bytes * 2", "request_bytes / -1"])
def test_what_only_looks_like_a_part_of_the_size_is_a_program(source: str) -> None:
    assert divisor_of(source) is None


def test_input_is_held_by_its_bytes_up_to_the_context() -> None:
    for size, held in ((100, 100), (300_000, CONTEXT)):
        body = json.dumps({"messages": "x" * size, "max_tokens": 1}).encode()
        found = ESTIMATES["openai.chat"].counts(Document(body))
        assert found["input_tokens"] == min(len(body), held if size > CONTEXT else len(body))


@pytest.mark.parametrize(
    ("name", "body"),
    [
        ("openai.chat", '{"messages":[{"content":[{"type":"image_url","image_url":{}}]}]}'),
        ("openai.chat", '{"messages":[{"content":[{"type":"\\u0069mage\\u005Furl"}]}]}'),
        ("openai.responses", '{"previous_response_id" : "resp_1"}'),
        ("anthropic.messages", '{"messages":[{"content":[{"source":{"type":"url"}}]}]}'),
        ("gemini.generate", '{"cachedContent":\n"cachedContents/1"}'),
        ("gemini.generate", '{"tools":[{"googleSearch":{}}]}'),
    ],
)
def test_content_that_a_request_only_refers_to_holds_the_whole_context(
    name: str, body: str
) -> None:
    assert ESTIMATES[name].counts(Document(body.encode()))["input_tokens"] == CONTEXT


@pytest.mark.parametrize(
    "body",
    [
        '{"previous_response_id":null}',
        '{"previous_response_id" : null , "input":"a"}',
        r'{"input":"\"previous_response_id\":\"x\""}',
    ],
)
def test_a_reference_to_nothing_and_text_about_one_are_none(body: str) -> None:
    held = ESTIMATES["openai.responses"].counts(Document(body.encode()))
    assert held["input_tokens"] == len(body)


def test_ceiling_and_context_may_be_programs_on_the_request() -> None:
    estimate = estimate_of(
        "openai.chat",
        ceiling='if .model == "m" then 40 else 4000 end',
        context=".context // 60",
    )
    held = counts(estimate, {"messages": "x" * 100, "n": 2})
    assert held == {"input_tokens": 60, "output_tokens": 80}
    with pytest.raises(Unestimable, match=r"^context: the request gives -1"):
        counts(estimate, {"context": -1})


def test_a_context_of_nothing_still_holds_one() -> None:
    estimate = Estimate({"a": "request_bytes"}, Bounds(context=".x"))
    assert estimate.counts(Document(b'{"x": 0}')) == {"a": 1}


def test_a_batch_is_held_for_call_by_call() -> None:
    estimate = Estimate({"calls": 'if .method == "tools/call" then 1 else 0 end'})
    call, other = {"method": "tools/call"}, {"method": "ping"}
    for batch, held in (([call, other, call], 2), ([other], 0), (call, 1)):
        assert estimate.counts(Document(json.dumps(batch).encode())) == {"calls": held}


@pytest.mark.parametrize(
    "batch", ["[]", "[1]", "[[]]", '[{"n": -5}, {"n": 9}]', '[{"n": "a"}, {"n": "b"}]', "[{}]"]
)
def test_a_batch_with_a_wrong_count_is_refused_and_nothing_is_netted_off(batch: str) -> None:
    with pytest.raises(Unestimable):
        Estimate({"n": ".n"}).counts(Document(batch.encode()))


def test_a_batch_that_is_too_large_to_count_is_refused() -> None:
    batch = json.dumps([{"n": limits.COUNT_MAX}, {"n": limits.COUNT_MAX}]).encode()
    with pytest.raises(Unestimable):
        Estimate({"n": ".n"}).counts(Document(batch))
