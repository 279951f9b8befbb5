"""Servers that start together, are killed under load, and stop in order."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import NamedTuple

import httpx
import pytest
from e2e_servers import FLAT, HERE, HOLD, PATIENCE, TOKEN, Node, Serving, serving, until

from finomw.types import UsageStatus

CLIENTS = 12
MONEY = 100_000_000

BESIDE = """
import sys
from finomw.engine.customers import get_account
from finomw.engine.engine import close_engine, open_engine
from finomw.engine.verify import verify
engine = open_engine(sys.argv[1])
assert get_account(engine, "alice").balance == int(sys.argv[2])
assert verify(engine).faults == ()
close_engine(engine)
"""


def test_workers_and_commands_open_a_directory_in_the_same_instant(node: Node) -> None:
    headers = node.newcomer("alice", 8 * FLAT)
    node.close()
    command = [sys.executable, "-c", BESIDE, str(node.path), str(8 * FLAT)]
    with_package = {"PYTHONPATH": str(HERE.parent.parent)}
    server = Serving(node, 4)
    beside = [
        subprocess.Popen(command, env=with_package, stderr=subprocess.PIPE, text=True)
        for _ in range(4)
    ]
    try:
        for process in beside:
            _, errors = process.communicate(timeout=PATIENCE)
            assert (process.returncode, errors) == (0, "")
        server.wait_ready()
        served = asyncio.run(answers(server, headers))
        assert served == {200: 8, 402: 8}
    finally:
        for process in beside:
            process.kill()
            process.wait()
        server.kill()
    node.prove()


async def answers(server: Serving, headers: dict[str, str]) -> Counter[int]:
    async with server.client() as client:
        calls = (client.post("/flat", headers=headers) for _ in range(16))
        return Counter([answer.status_code for answer in await asyncio.gather(*calls)])


class Seen(NamedTuple):
    """What one client saw completely: tokens of metered calls, and how many flat ones."""

    name: str
    tokens: list[int]
    flats: list[int]


async def load(server: Serving, seen: Seen, headers: dict[str, str]) -> None:
    """Call until the server is gone; note each answer that came whole."""
    async with server.client() as client:
        number = 0
        while True:
            number += 1
            path = ("/chat", "/stream", "/flat")[number % 3]
            try:
                answer = await client.post(f"{path}?tokens={number}", headers=headers)
            except httpx.TransportError:
                return
            assert answer.status_code == 200
            if path == "/flat":
                seen.flats.append(number)
            elif path == "/chat" or answer.text.endswith("data: [DONE]\n\n"):
                seen.tokens.append(number)


async def killed_under_load(server: Serving, clients: dict[str, dict[str, str]]) -> list[Seen]:
    """Kill all workers when every client has been served some calls."""
    seen = [Seen(name, [], []) for name in clients]
    calls = [asyncio.ensure_future(load(server, one, clients[one.name])) for one in seen]
    while min(len(one.tokens) + len(one.flats) for one in seen) < 6:  # noqa: ASYNC110
        await asyncio.sleep(0.005)
    server.kill()
    await asyncio.gather(*calls)
    return seen


@pytest.mark.parametrize(("workers", "alone"), [(4, True), (2, False)])
def test_a_kill_under_load_loses_no_charge_and_strands_no_hold(
    node: Node, workers: int, alone: bool
) -> None:
    """The restart is alone in the directory, or joins a process that had it open all the time."""
    clients = {f"client-{i}": node.newcomer(f"client-{i}", MONEY) for i in range(CLIENTS)}
    if alone:
        node.close()
    with serving(node, workers) as server:
        seen = asyncio.run(killed_under_load(server, clients))
    with serving(node, 1) as server:
        # What the dead left was ended before the first call was taken.
        assert node.open_holds() == 0
        for one in seen:
            assert_charged(node, one)
        one = seen[0]
        before = node.balance(one.name)
        headers = clients[one.name]
        assert httpx.post(f"{server.url}/chat?tokens=5", headers=headers).status_code == 200
        assert node.balance(one.name) == before - 5 * TOKEN
    node.prove()


def assert_charged(node: Node, seen: Seen) -> None:
    """Prove that what a client saw is charged, each call once, and at most one call more."""
    entries = node.settlements(seen.name)
    assert node.balance(seen.name) == MONEY + sum(entry.amount for entry in entries)
    flats = tokens = 0
    charged: Counter[int] = Counter()
    for entry in entries:
        assert entry.call is not None
        if entry.call.route == "flat":
            assert entry.amount == -FLAT
            flats += 1
        elif entry.call.usage is UsageStatus.KNOWN:
            charged[entry.call.counts["tokens"]] += 1
            assert entry.amount == -TOKEN * entry.call.counts["tokens"]
        else:
            # A stream that was cut off by the kill: its hold.
            assert entry.amount == -HOLD
            tokens += 1
    assert set(charged.values()) <= {1}
    assert set(seen.tokens) <= set(charged)
    unseen = len(charged) - len(seen.tokens) + tokens + flats - len(seen.flats)
    assert flats >= len(seen.flats)
    assert 0 <= unseen <= 1


@pytest.mark.parametrize("workers", [1, 4])
def test_a_server_that_is_asked_to_stop_ends_its_calls(
    node: Node, tmp_path: Path, workers: int
) -> None:
    headers = node.newcomer("alice", 10_000)
    gate = tmp_path / "gate"
    with serving(node, workers) as server:
        url = f"{server.url}/stream?tokens=9&gate={gate}"
        with httpx.stream("POST", url, headers=headers, timeout=PATIENCE) as answer:
            lines = answer.iter_lines()
            assert next(lines) == 'data: {"text": "one"}'
            server.process.terminate()
            until(lambda: refuses(server))
            gate.touch()
            assert [line for line in lines if line][-1] == "data: [DONE]"
        server.process.wait(PATIENCE)
    assert node.balance("alice") == 10_000 - 9 * TOKEN
    node.prove()
    # The workers are gone, and so is everything they had here.
    own = {f"{node.engine.worker}.lock"}
    assert {path.name for path in node.engine.directory.workers.iterdir()} <= own
    assert "Traceback" not in server.log.read_text()


def refuses(server: Serving) -> bool:
    """Say whether the server takes no new connections."""
    try:
        httpx.get(f"{server.url}/health", timeout=1)
    except httpx.TransportError:
        return True
    return False
