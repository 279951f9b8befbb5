"""The demo as a client sees it: the calls it makes, and what each must cost by its own reckoning.

The prices stand here a second time, written by hand, and are applied to the token counts of the
answers by a line of arithmetic: what the ledger has charged is compared with a sum that owes
nothing to the code that charged it.
"""

from __future__ import annotations

import json
import math
from fractions import Fraction
from typing import Any, Final, NamedTuple

import httpx

from finomw.demo import NUMBER_HEADER, OVERHEAD_PATH
from finomw.types import Counts, Micros

_ANSWER_SECONDS: Final = 20

TOKEN_PRICES: Final = {
    "demo-small": {"input_tokens": Fraction("2"), "output_tokens": Fraction("8")},
    "demo-large": {"input_tokens": Fraction("4"), "output_tokens": Fraction("15")},
    "demo-embed": {"input_tokens": Fraction("0.25")},
}
"""Dollars for a million tokens, which is the same as micros for one."""
SEARCH_PRICE: Final[Micros] = 500


class Ask(NamedTuple):
    """A call to be made: what it is called, where it goes, and its JSON."""

    name: str
    method: str
    path: str
    body: dict[str, Any] | None = None


class Seen(NamedTuple):
    """What a client saw of one call; ``price`` is what it must cost, in micros."""

    status: int
    reason: str
    counts: Counts
    price: Micros
    overhead_ns: int


def chat(model: str, question: str, max_tokens: int, stream: bool = False) -> Ask:
    """Return a call that asks a model something."""
    body = {
        "model": model,
        "messages": [{"role": "user", "content": question}],
        "max_tokens": max_tokens,
    }
    if stream:
        body |= {"stream": True, "stream_options": {"include_usage": True}}
    name = f"chat {model}" + (" streamed" if stream else "")
    return Ask(name, "POST", "/v1/chat/completions", body)


def embeddings(texts: list[str]) -> Ask:
    """Return a call for the vectors of some texts."""
    body = {"model": "demo-embed", "input": texts}
    return Ask("embeddings", "POST", "/v1/embeddings", body)


def search(query: str) -> Ask:
    """Return a call with a flat price."""
    return Ask("search (flat)", "POST", "/v1/search", {"query": query})


HEALTH: Final = Ask("health (free)", "GET", "/health")


class Client:
    """Makes calls, one after the other, with one key."""

    def __init__(self, url: str, token: str) -> None:
        self._http = httpx.Client(
            base_url=url,
            headers={"Authorization": f"Bearer {token}"},
            timeout=_ANSWER_SECONDS,
            trust_env=False,
        )
        self._number = 0

    def close(self) -> None:
        """Close the connection."""
        self._http.close()

    def make(self, ask: Ask) -> Seen:
        """Make a call and read its answer to the end. Raises `httpx.HTTPError`."""
        self._number += 1
        headers = {NUMBER_HEADER: str(self._number)}
        answer = self._http.request(ask.method, ask.path, json=ask.body, headers=headers)
        counts: Counts = {}
        reason = ""
        if answer.is_server_error:
            answer.raise_for_status()
        if answer.is_success:
            counts = counts_of(ask, answer.text)
        elif answer.headers.get("content-type") == "application/problem+json":
            reason = answer.json()["reason"]
        overhead = self._http.get(OVERHEAD_PATH.format(number=self._number)).raise_for_status()
        return Seen(
            answer.status_code,
            reason,
            counts,
            price_of(ask, counts),
            overhead.json()["overhead_ns"],
        )


def counts_of(ask: Ask, answer: str) -> Counts:
    """Return what an answer says that the call used.

    Raises `httpx.RemoteProtocolError` for a stream that was cut off.
    """
    if ask.path == "/v1/search":
        return {"requests": 1}
    if ask.body is None:
        return {}
    usage = (_last_chunk(answer) if ask.body.get("stream") else json.loads(answer))["usage"]
    counts = {"input_tokens": usage["prompt_tokens"]}
    if "completion_tokens" in usage:
        counts["output_tokens"] = usage["completion_tokens"]
    return counts


def _last_chunk(stream: str) -> Any:
    """Return the chunk before the end marker."""
    events = [event.removeprefix("data: ") for event in stream.split("\n\n") if event]
    if len(events) < 2 or events[-1] != "[DONE]":
        raise httpx.RemoteProtocolError("a stream ended without its end marker")
    return json.loads(events[-2])


def price_of(ask: Ask, counts: Counts) -> Micros:
    """Return what these counts cost in micros: exact, and rounded up once."""
    if ask.path == "/v1/search":
        return SEARCH_PRICE * counts.get("requests", 0)
    if ask.body is None:
        return 0
    prices = TOKEN_PRICES[ask.body["model"]]
    return math.ceil(sum(count * prices[meter] for meter, count in counts.items()))
