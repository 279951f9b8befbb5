"""A real server over real sockets, with one worker and with four."""

from __future__ import annotations

import asyncio
import itertools
import socket
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import httpx
import pytest
from e2e_servers import FLAT, HOLD, PATIENCE, TOKEN, Node, Serving, serving, until

from finomw.engine import grants, keys
from finomw.types import CustomerId, UsageStatus

CALLS = 200
COVERED = 37
NAMES = (f"customer-{number}" for number in itertools.count())


class Place(NamedTuple):
    """A node and the server on it."""

    node: Node
    server: Serving
    workers: int


@pytest.fixture(scope="module", params=[1, 4])
def place(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Place]:
    """Serve one directory for all tests of this file; each has a customer of its own."""
    node = Node(tmp_path_factory.mktemp("place"))
    with serving(node, request.param) as server:
        yield Place(node, server, request.param)
        node.prove()
    node.close()


def call(place: Place, path: str, headers: dict[str, str], method: str = "POST") -> httpx.Response:
    return httpx.request(method, place.server.url + path, headers=headers, timeout=PATIENCE)


async def together(
    server: Serving, path: str, headers: dict[str, str], count: int
) -> list[httpx.Response]:
    """Run calls at the same time, each on a connection of its own."""
    async with server.client() as client:
        calls = (client.post(path, headers=headers) for _ in range(count))
        return await asyncio.gather(*calls)


def test_a_call_is_charged_when_its_answer_is_there(place: Place) -> None:
    name = next(NAMES)
    headers = place.node.newcomer(name, 10_000)
    answer = call(place, "/chat?tokens=7", headers)
    assert answer.json() == {"text": "hello", "usage": {"tokens": 7}}
    assert place.node.balance(name) == 10_000 - 7 * TOKEN
    assert call(place, "/flat", headers).status_code == 200
    assert call(place, "/health", {}, "GET").text == "ok"
    charged = [
        (-entry.amount, entry.call and entry.call.usage) for entry in place.node.settlements(name)
    ]
    assert charged == [(7 * TOKEN, UsageStatus.KNOWN), (FLAT, UsageStatus.KNOWN)]


def test_a_stream_arrives_whole_and_is_charged(place: Place) -> None:
    name = next(NAMES)
    answer = call(place, "/stream?tokens=9", place.node.newcomer(name, 10_000))
    assert answer.headers["content-type"].startswith("text/event-stream")
    assert answer.text.count("data: ") == 5
    assert answer.text.endswith("data: [DONE]\n\n")
    assert place.node.balance(name) == 10_000 - 9 * TOKEN


def test_a_stream_arrives_as_it_is_made(place: Place, tmp_path: Path) -> None:
    name = next(NAMES)
    headers = place.node.newcomer(name, 10_000)
    gate = tmp_path / "gate"
    url = f"{place.server.url}/stream?tokens=9&gate={gate}"
    with httpx.stream("POST", url, headers=headers, timeout=PATIENCE) as answer:
        lines = answer.iter_lines()
        assert next(lines) == 'data: {"text": "one"}'
        assert place.node.balance(name) == 10_000 - HOLD
        gate.touch()
        assert [line for line in lines if line][-1] == "data: [DONE]"
    assert place.node.balance(name) == 10_000 - 9 * TOKEN


def test_no_money_is_a_402_until_a_grant_arrives(place: Place) -> None:
    name = next(NAMES)
    headers = place.node.newcomer(name, FLAT)
    assert call(place, "/flat", headers).status_code == 200
    refused = asyncio.run(together(place.server, "/flat", headers, 4 * place.workers))
    assert {answer.status_code for answer in refused} == {402}
    assert refused[0].json()["reason"] == "exhausted"
    grants.grant(place.node.engine, CustomerId(name), 8 * FLAT, "test", "second")
    # Every worker knows at once.
    served = asyncio.run(together(place.server, "/flat", headers, 8))
    assert {answer.status_code for answer in served} == {200}
    assert call(place, "/flat", headers).status_code == 402


def test_a_revoked_key_is_refused_by_every_worker(place: Place) -> None:
    name = next(NAMES)
    headers = place.node.newcomer(name, 10_000)
    assert call(place, "/flat", headers).status_code == 200
    token = headers["Authorization"].removeprefix("Bearer ")
    keys.revoke_key(place.node.engine, keys.hash_token(token))
    refused = asyncio.run(together(place.server, "/flat", headers, 4 * place.workers))
    assert {answer.status_code for answer in refused} == {401}


@pytest.mark.parametrize(
    ("path", "price"), [("/flat", FLAT), ("/chat?tokens=100", HOLD), ("/stream?tokens=100", HOLD)]
)
def test_exactly_the_calls_that_are_covered_succeed(place: Place, path: str, price: int) -> None:
    name = next(NAMES)
    headers = place.node.newcomer(name, COVERED * price)
    answers = asyncio.run(together(place.server, path, headers, CALLS))
    assert Counter(answer.status_code for answer in answers) == {
        200: COVERED,
        402: CALLS - COVERED,
    }
    assert place.node.balance(name) == 0
    assert len(place.node.settlements(name)) == COVERED


@pytest.mark.parametrize(
    ("path", "method", "status", "charged"),
    [
        ("/chat?tokens=7", "HEAD", 200, 0),
        ("/flat", "HEAD", 200, FLAT),
        ("/bare?status=204", "GET", 204, 0),
        ("/bare?status=304", "GET", 304, 0),
        ("/bare?status=200", "GET", 200, 0),
        ("/bare?status=302", "GET", 302, 0),
        ("/flat_bare?status=204", "GET", 204, FLAT),
        ("/flat_bare?status=304", "GET", 304, FLAT),
        ("/flat_bare?status=500", "GET", 500, 0),
    ],
)
def test_an_answer_without_a_body_keeps_its_head(
    place: Place, path: str, method: str, status: int, charged: int
) -> None:
    name = next(NAMES)
    headers = place.node.newcomer(name, 10_000)
    with httpx.Client(base_url=place.server.url, timeout=PATIENCE) as client:
        answer = client.request(method, path, headers=headers)
        assert (answer.status_code, answer.content) == (status, b"")
        # By HTTP the answer is complete with its head, so the call must have ended by now.
        assert place.node.balance(name) == 10_000 - charged
        # The connection is in order: the next call on it works.
        assert client.get("/health").text == "ok"


def connect(place: Place, path: str, headers: dict[str, str]) -> socket.socket:
    """Send a call by hand."""
    client = socket.create_connection(("127.0.0.1", place.server.port), PATIENCE)
    lines = [f"POST {path} HTTP/1.1", "Host: test", "Content-Length: 0"]
    lines += [f"{name}: {value}" for name, value in headers.items()]
    client.sendall(("\r\n".join(lines) + "\r\n\r\n").encode())
    return client


def test_a_client_that_leaves_with_the_last_byte_is_served(place: Place, tmp_path: Path) -> None:
    """After-response work is done, and every call is charged once."""
    name = next(NAMES)
    headers = place.node.newcomer(name, 10_000)
    marks = [tmp_path / f"mark-{number}" for number in range(20)]
    for mark in marks:
        with connect(place, f"/chat?tokens=7&mark={mark}", headers) as client:
            received = b""
            while not received.endswith(b'"usage":{"tokens":7}}'):
                received += client.recv(65536)
    until(lambda: all(mark.exists() for mark in marks))
    assert place.node.balance(name) == 10_000 - 20 * 7 * TOKEN
    assert len(place.node.settlements(name)) == 20


@pytest.mark.parametrize(
    ("path", "wait_for", "charged", "usage"),
    [
        # The app runs on: the true price.
        ("/chat?tokens=7", b"", 7 * TOKEN, UsageStatus.KNOWN),
        # The stream is cut off before its usage: the hold.
        ("/stream?tokens=7", b"three", HOLD, UsageStatus.PARTIAL),
    ],
)
def test_a_client_that_leaves_early_is_charged_by_the_rule(
    place: Place, tmp_path: Path, path: str, wait_for: bytes, charged: int, usage: UsageStatus
) -> None:
    name = next(NAMES)
    headers = place.node.newcomer(name, 10_000)
    gate = tmp_path / "gate"
    with connect(place, f"{path}&gate={gate}", headers) as client:
        received = b""
        while wait_for not in received:
            received += client.recv(65536)
        until(lambda: place.node.balance(name) == 10_000 - HOLD)
    if not wait_for:
        gate.touch()
    until(lambda: len(place.node.settlements(name)) == 1)
    [entry] = place.node.settlements(name)
    assert entry.call is not None
    assert (-entry.amount, entry.call.usage) == (charged, usage)
    assert place.node.balance(name) == 10_000 - charged


@pytest.mark.parametrize("spelling", ["/flat%0A", "/flat%0a?x=1", "/fl%61t"])
def test_no_spelling_is_free(place: Place, spelling: str) -> None:
    name = next(NAMES)
    headers = place.node.newcomer(name, 10_000)
    answer = call(place, spelling, headers)
    assert answer.status_code == 200
    assert place.node.balance(name) == 10_000 - FLAT
    assert call(place, spelling, {}).status_code == 401
