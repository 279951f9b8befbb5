"""Servers that load the app before they fork, and that replace or reload their workers."""

from __future__ import annotations

import asyncio
import signal
from collections import Counter
from pathlib import Path

import httpx
import pytest
from e2e_servers import FLAT, HERE, PATIENCE, Node, Serving, serving, until

CALLS = 400
MONEY = 10_000_000
GUNICORN = (
    *("gunicorn", "e2e_preload:app", "--preload", "--bind", "127.0.0.1:{port}"),
    *("--workers", "2", "--worker-class", "uvicorn_worker.UvicornWorker"),
    *("--max-requests", "50", "--graceful-timeout", "30", "--log-level", "warning"),
    *("--chdir", str(HERE)),
)


async def load(server: Serving, headers: dict[str, str], at_half: signal.Signals) -> Counter[str]:
    """Call many times, a few calls at once; send the server a signal halfway. Return what came."""
    seen: Counter[str] = Counter()

    async def calls(client: httpx.AsyncClient) -> None:
        while seen.total() < CALLS:
            if seen.total() == CALLS // 2:
                server.process.send_signal(at_half)
            try:
                answer = await client.post("/flat", headers=headers)
            except httpx.TransportError:
                seen["cut"] += 1
            else:
                seen[str(answer.status_code)] += 1

    async with server.client() as client:
        await asyncio.gather(*(calls(client) for _ in range(8)))
    return seen


def test_gunicorn_forks_workers_of_an_app_that_was_called_before(node: Node) -> None:
    headers = node.newcomer("alice", MONEY)
    with serving(node, 2, command=GUNICORN, WARM_UP=headers["Authorization"]) as server:
        seen = asyncio.run(load(server, headers, signal.SIGHUP))
        server.terminate()
    assert set(seen) <= {"200", "cut"}
    assert seen["200"] > CALLS // 2
    # A worker that leaves closes the connections on which no call has begun.
    charged = len(node.settlements("alice")) - 1
    assert seen["200"] <= charged <= seen.total()
    assert node.balance("alice") == MONEY - (charged + 1) * FLAT
    with serving(node, 1):
        node.prove()
    log = server.log.read_text()
    assert "Traceback" not in log
    assert "finomw" not in log


APP = """
import os, pathlib
from e2e_app import app
pathlib.Path(__file__).with_name("served-by").write_text(str(os.getpid()))
"""


def test_uvicorn_reloads_and_goes_on_charging(node: Node, tmp_path: Path) -> None:
    headers = node.newcomer("alice", MONEY)
    folder = tmp_path / "app"
    folder.mkdir()
    module, served_by = folder / "reloaded.py", folder / "served-by"
    module.write_text(APP)
    options = ("--reload", "--reload-dir", str(folder), "--app-dir", str(folder))
    with serving(node, 1, *options, app="reloaded:app") as server:
        for count in range(1, 4):
            before = served_by.read_text()
            answer = httpx.post(f"{server.url}/flat", headers=headers, timeout=PATIENCE)
            assert answer.status_code == 200
            assert node.balance("alice") == MONEY - count * FLAT
            module.touch()
            until(lambda: served_by.read_text() not in {"", before})  # noqa: B023
            server.wait_ready()
        node.prove()
        workers = node.engine.directory.workers
        assert len(list(workers.iterdir())) <= 2


@pytest.mark.parametrize("spelling", ["relative", "link"])
def test_two_workers_and_a_path_of_another_spelling_share_one_node(
    node: Node, spelling: str
) -> None:
    headers = node.newcomer("alice", MONEY)
    if spelling == "link":
        link = node.path.with_name("link")
        link.symlink_to(node.path)
        node.config.write_text(node.config.read_text().replace("data: node", f"data: {link}"))
    with serving(node, 2) as server:
        for _ in range(8):
            httpx.post(f"{server.url}/flat", headers=headers, timeout=PATIENCE)
        assert node.balance("alice") == MONEY - 8 * FLAT
    node.close()
