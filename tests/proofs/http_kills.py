"""SIGKILL of real servers' workers: what HTTP clients saw against what the ledger says.

Clients call a uvicorn with several workers over real sockets, each call with a price of its own,
and remember which answers they got whole. One worker is killed, uvicorn starts another; now and
then all of the server is killed and started again. Every whole answer must have been charged at
exactly its price, every other call at most once, and nothing may stay held.
"""

from __future__ import annotations

import asyncio
import os
import random
import signal
import time
from collections import Counter
from pathlib import Path

from proving import PATIENCE, Folder, ProofFailed, folder, main, options, until

# isort: split

import httpx
from e2e_servers import FLAT, HOLD, TOKEN, Node, Serving, serving

from finomw.engine.sweep import sweep

WORKERS = 3
CLIENTS = 4
CALLS_MAX = 99
"""So many different prices are below a hold."""
KILLS_PER_SERVER = 7
DONE = b"data: [DONE]"


class Client:
    """One customer, who calls one time after the other until told to stop."""

    def __init__(self, name: str, headers: dict[str, str]) -> None:
        self.name = name
        self.headers = headers
        self.whole: list[tuple[str, int]] = []
        """Route and tokens of the calls whose answers came whole."""
        self.cut: list[tuple[str, int]] = []
        self.tokens = 0

    async def run(self, http: httpx.AsyncClient, stop: asyncio.Event) -> None:
        """Call until told to stop; a call that fails is not made again."""
        while not stop.is_set() and self.tokens < CALLS_MAX:
            self.tokens += 1
            route = ("chat", "stream", "flat")[self.tokens % 3]
            call = (route, self.tokens)
            url = f"/{route}?tokens={self.tokens}"
            try:
                answer = await http.post(url, headers=self.headers)
            except httpx.TransportError:
                self.cut.append(call)
                await asyncio.sleep(0.01)
                continue
            if answer.status_code != 200 or (route == "stream" and DONE not in answer.content):
                raise ProofFailed(f"{self.name}: {answer.status_code} {answer.text}")
            self.whole.append(call)

    def check(self, node: Node) -> None:
        """Compare what this client saw with its ledger; raises `ProofFailed`."""
        charged = Counter(-entry.amount for entry in node.settlements(self.name))
        spent = sum(amount * times for amount, times in charged.items())
        charged.subtract(_price(*call) for call in self.whole)
        if min(charged.values(), default=0) < 0:
            raise ProofFailed(f"{self.name}: a whole answer was not charged: {charged}")
        left = sorted(charged.elements())
        for route, tokens in self.cut:
            # Not told: charged at its price, or whole where its answer had begun, or not at all.
            for amount in (_price(route, tokens), *([HOLD] if route == "stream" else [])):
                if amount in left:
                    left.remove(amount)
                    break
        if left:
            raise ProofFailed(f"{self.name}: charged {left} for nothing; cut were {self.cut}")
        if node.balance(self.name) != 10**6 - spent:
            raise ProofFailed(f"{self.name}: has {node.balance(self.name)}, spent {spent}")


def _price(route: str, tokens: int) -> int:
    return FLAT if route == "flat" else tokens * TOKEN


def workers_of(server: Serving) -> list[int]:
    """Return the process ids of the server's living workers: its children that have its app."""
    path = Path(f"/proc/{server.process.pid}/task/{server.process.pid}/children")
    return [pid for pid in map(int, path.read_text().split()) if _serves(pid)]


def _serves(pid: int) -> bool:
    try:
        return "spawn_main" in Path(f"/proc/{pid}/cmdline").read_text()
    except OSError:
        return False


async def load(server: Serving, clients: list[Client], case: Folder, kill_all: bool) -> None:
    """Have all clients call, and kill when they are at it."""
    stop = asyncio.Event()
    async with server.client() as http:
        calls = [asyncio.create_task(client.run(http, stop)) for client in clients]
        wanted = case.random.randrange(CLIENTS, CLIENTS * 20)
        deadline = time.monotonic() + PATIENCE
        while sum(len(client.whole) for client in clients) < wanted:
            if time.monotonic() > deadline or any(call.done() for call in calls):
                break
            await asyncio.sleep(0.001)
        if kill_all:
            server.kill()
        else:
            victim = case.random.choice(workers_of(server))
            case.note(f"kill {victim}")
            os.kill(victim, signal.SIGKILL)
            await asyncio.sleep(case.random.uniform(0, 0.05))
        stop.set()
        await asyncio.gather(*calls)


def one_server(count: int, case: Folder, figures: Counter[str]) -> None:
    """Kill so many times; the last kill takes the whole server."""
    node = Node(case.path)
    try:
        with serving(node, WORKERS) as server:
            for at in range(count):
                until(lambda: len(workers_of(server)) == WORKERS, "uvicorn has all its workers")
                names = [f"client-{at}-{number}" for number in range(CLIENTS)]
                clients = [Client(name, node.newcomer(name, 10**6)) for name in names]
                kill_all = at == count - 1
                asyncio.run(load(server, clients, case, kill_all))
                if kill_all:
                    node.close()
                sweep_and_check(node, clients, alone=kill_all)
                figures["kills"] += 1
                figures["whole answers"] += sum(len(client.whole) for client in clients)
                figures["cut answers"] += sum(len(client.cut) for client in clients)
    finally:
        node.close()


def sweep_and_check(node: Node, clients: list[Client], alone: bool) -> None:
    """Sweep, wait until the living have ended what they had begun, and compare."""
    sweep(node.engine)
    until(lambda: node.open_holds() == 0, "no hold stays open")
    for client in clients:
        client.check(node)
    node.prove()
    if alone and node.engine.health().failed:
        raise ProofFailed("the failure flag is set")


def proof() -> dict[str, object]:
    """Kill one worker, or with the last kill of each server all of them."""
    chosen = options(__doc__, 20)
    began = time.monotonic()
    figures: Counter[str] = Counter()
    rng = random.Random(chosen.seed)
    left = chosen.count
    while left:
        with folder("http-kills", str(rng.random())) as case:
            share = min(KILLS_PER_SERVER, left)
            one_server(share, case, figures)
            left -= share
    return {**figures, "seed": chosen.seed, "seconds": round(time.monotonic() - began)}


if __name__ == "__main__":
    main(proof)
