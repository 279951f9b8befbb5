"""The official OpenAI client against an API behind finomw: it never notices, until it must pay."""

from __future__ import annotations

from pathlib import Path

import openai
import pytest

import finomw
from finomw.cli.demo.node import CUSTOMER, Node, running
from finomw.engine import ledger

QUESTION = [{"role": "user", "content": "Who pays for this call?"}]


@pytest.fixture
def node(tmp_path, monkeypatch) -> Node:
    monkeypatch.setenv("PYTHONPATH", str(Path(finomw.__file__).parents[1]))
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    with running() as node:
        node.grant(10_000)
        yield node


@pytest.fixture
def client(node: Node) -> openai.OpenAI:
    with openai.OpenAI(base_url=f"{node.server.url}/v1", api_key=node.token) as client:
        yield client


def charged(node: Node) -> tuple[dict[str, int], int]:
    """Return the counts and the micros of the newest settlement."""
    entry = ledger.ledger(node.engine, CUSTOMER, 1)[0].entry
    return entry.call.counts, -entry.amount


def spend_everything(client: openai.OpenAI) -> None:
    """Make calls until one is refused."""
    for _ in range(100):
        client.chat.completions.create(model="demo-large", messages=QUESTION, max_tokens=40)


def test_a_chat_is_charged_what_the_client_is_told(node, client) -> None:
    answer = client.chat.completions.create(model="demo-small", messages=QUESTION)
    usage = answer.usage
    assert answer.choices[0].message.role == "assistant"
    assert answer.choices[0].finish_reason == "stop"
    assert charged(node) == (
        {"input_tokens": usage.prompt_tokens, "output_tokens": usage.completion_tokens},
        2 * usage.prompt_tokens + 8 * usage.completion_tokens,
    )


def test_a_stream_is_the_same_answer_at_the_same_price(node, client) -> None:
    whole = client.chat.completions.create(model="demo-small", messages=QUESTION, max_tokens=20)
    price = charged(node)
    chunks = list(
        client.chat.completions.create(
            model="demo-small",
            messages=QUESTION,
            max_tokens=20,
            stream=True,
            stream_options={"include_usage": True},
        )
    )
    said = [chunk for chunk in chunks if chunk.choices]
    text = "".join(chunk.choices[0].delta.content for chunk in said)
    assert text == whole.choices[0].message.content
    assert said[-1].choices[0].finish_reason == "length"
    assert [chunk.usage for chunk in chunks[:-1]] == [None] * len(said)
    assert chunks[-1].usage == whole.usage
    assert len({chunk.id for chunk in chunks}) == 1
    assert charged(node) == price


def test_embeddings_and_models_work(node, client) -> None:
    answer = client.embeddings.create(model="demo-embed", input=["one two three", "four"])
    assert [len(item.embedding) for item in answer.data] == [8, 8]
    assert charged(node) == ({"input_tokens": 4}, 1)
    assert {found.id for found in client.models.list()} >= {"demo-small", "demo-embed"}


@pytest.mark.parametrize("stream", [False, True])
def test_without_money_the_client_raises_402_and_works_again_after_a_grant(
    node, client, stream
) -> None:
    with pytest.raises(openai.APIStatusError) as raised:
        spend_everything(client)
    error = raised.value
    assert error.status_code == 402
    assert error.response.json()["reason"] == "exhausted"
    assert error.response.json()["topup_url"] == "https://example.com/billing"
    balance = node.account.balance

    with pytest.raises(openai.APIStatusError, match="402"):
        client.chat.completions.create(model="demo-large", messages=QUESTION, stream=stream)
    assert node.account.balance == balance

    node.grant(10_000)
    answer = client.chat.completions.create(model="demo-large", messages=QUESTION, max_tokens=40)
    assert answer.usage.completion_tokens > 0
    assert node.account.balance < balance + 10_000
