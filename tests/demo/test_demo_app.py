"""The example app behind finomw: what its holds promise, and what it refuses."""

from __future__ import annotations

import httpx
import jq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from finomw.asgi.rules import compile_config
from finomw.cli.demo import calls
from finomw.cli.demo.node import CUSTOMER, Node, running
from finomw.config.load import load
from finomw.demo import model
from finomw.engine import ledger
from finomw.types import EntryKind


@pytest.fixture(scope="module")
def node(importable: None) -> Node:
    with running() as node:
        node.grant(10**6)
        yield node


@pytest.fixture
def client(node: Node) -> httpx.Client:
    with httpx.Client(
        base_url=node.server.url, headers={"Authorization": f"Bearer {node.token}"}, timeout=20
    ) as client:
        yield client


def newest(node: Node) -> list[EntryKind]:
    return [line.entry.kind for line in ledger.ledger(node.engine, CUSTOMER, 1)]


@settings(derandomize=True)
@given(st.text())
def test_a_text_has_no_more_tokens_than_the_hold_counts_characters(text: str) -> None:
    held = jq.compile("[.messages[].content | length] | add").input_value(
        {"messages": [{"content": text}]}
    )
    assert len(model.tokens(text)) <= held.first()


@settings(derandomize=True)
@given(st.text())
def test_tokens_put_together_are_the_text_without_its_last_blanks(text: str) -> None:
    assert "".join(model.tokens(text)) == text.rstrip()


def test_the_packaged_configuration_compiles_and_is_the_example(checkout) -> None:
    example = checkout / "examples" / "llm_gateway"
    packaged = checkout / "finomw" / "demo"
    compile_config(load(packaged / "fino.yaml"))
    for name in ("app.py", "fino.yaml"):
        assert (example / name).read_bytes() == (packaged / name).read_bytes()


@pytest.mark.parametrize("max_tokens", [None, 1, 10, 64, 1000])
@pytest.mark.parametrize("stream", [False, True])
def test_a_call_costs_no_more_than_its_hold(node, client, max_tokens, stream) -> None:
    ask = calls.chat("demo-small", "a b c, d? \u00e9\U0001f600 " * 5, max_tokens, stream)
    answer = client.post(ask.path, json=ask.body)
    counts = calls.counts_of(ask, answer.text)
    assert counts["output_tokens"] <= (max_tokens or model.MAX_TOKENS_DEFAULT)
    settlement = ledger.ledger(node.engine, CUSTOMER, 1)[0].entry
    assert settlement.call.counts == counts
    assert settlement.call.overrun == 0
    assert -settlement.amount == calls.price_of(ask, counts)


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/chat/completions", {"model": "gpt-4", "messages": [{"role": "u", "content": "a"}]}),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "a"}]}),
        ("/v1/embeddings", {"model": "demo-small", "input": "a"}),
    ],
)
def test_a_model_without_a_price_is_refused_before_the_app(client, path, body) -> None:
    answer = client.post(path, json=body)
    assert (answer.status_code, answer.json()["reason"]) == (400, "unpriced")


@pytest.mark.parametrize(
    "change", [{"max_tokens": "64"}, {"max_tokens": -1}, {"max_tokens": 1.5}, {"messages": []}]
)
def test_a_request_that_cannot_be_held_for_is_refused(client, change) -> None:
    ask = calls.chat("demo-small", "a", 64)
    answer = client.post(ask.path, json={**ask.body, **change})
    assert (answer.status_code, answer.json()["reason"]) == (400, "invalid_request")


@pytest.mark.parametrize("change", [{"max_tokens": 0}, {"messages": [{"content": ["a"]}]}])
def test_a_request_that_the_app_refuses_costs_nothing(node, client, change) -> None:
    ask = calls.chat("demo-small", "a", 64)
    balance = node.account.balance
    assert client.post(ask.path, json={**ask.body, **change}).status_code == 422
    assert node.account.balance == balance
    assert node.account.held == 0


def test_the_free_routes_need_no_key(node) -> None:
    for path in ("/health", "/v1/models"):
        assert httpx.get(node.server.url + path).status_code == 200
