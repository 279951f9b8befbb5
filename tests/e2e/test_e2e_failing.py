"""A flush that fails under a real server, and what is left of calls when it is told to stop."""

from __future__ import annotations

import threading
from pathlib import Path

import httpx
import pytest
from e2e_servers import FLAT, HOLD, PATIENCE, TOKEN, Node, Serving, serving, until

from finomw.engine.sweep import sweep
from finomw.types import UsageStatus

MONEY = 1_000_000


def get(server: Serving, path: str) -> httpx.Response:
    return httpx.get(server.url + path, timeout=PATIENCE)


def post(server: Serving, path: str, headers: dict[str, str]) -> httpx.Response:
    return httpx.post(server.url + path, headers=headers, timeout=PATIENCE)


@pytest.mark.parametrize("policy", ["refuse", "pass"])
def test_a_failed_flush_is_final_for_every_call_until_the_restart(
    tmp_path: Path, policy: str
) -> None:
    node = Node(tmp_path, f"on_failure: {policy}\n")
    headers = node.newcomer("alice", MONEY)
    node.close()
    gate = tmp_path / "gate"
    waited: list[httpx.Response] = []
    with serving(node, 1, app="e2e_faulty:app") as server:
        assert post(server, "/flat", headers).status_code == 200
        assert get(server, "/billing").json()["failed"] is False
        waiting = threading.Thread(
            target=lambda: waited.append(post(server, f"/chat?tokens=7&gate={gate}", headers))
        )
        url = f"{server.url}/stream?tokens=9&gate={gate}"
        with httpx.stream("POST", url, headers=headers, timeout=PATIENCE) as started:
            lines = started.iter_lines()
            assert next(lines) == 'data: {"text": "one"}'
            waiting.start()
            until(lambda: node.open_holds() == 2)
            node.close()
            get(server, "/break")
            first = post(server, "/flat", headers)
            gate.touch()
            with pytest.raises(httpx.RemoteProtocolError):
                assert "data: [DONE]" not in list(lines)
        waiting.join()
        answers = [first, *waited, *(post(server, "/flat", headers) for _ in range(3))]
        expected = 200 if policy == "pass" else 503
        assert [answer.status_code for answer in answers] == [expected] * 5
        assert post(server, "/flat", {}).status_code == 401
        health = get(server, "/billing").json()
        assert health["failed"] is True
        assert health["unbilled"] == (5 if policy == "pass" else 0)
    log = server.log.read_text()
    assert log.count("calls pass unbilled") <= 2
    assert "Input/output error" in log
    with serving(node, 1) as server:
        assert post(server, "/chat?tokens=5", headers).status_code == 200
        [last] = node.settlements("alice")[-1:]
        assert last.amount == -5 * TOKEN
        # What the disk had of the others is charged, each once; nothing is held.
        assert MONEY - node.balance("alice") <= 2 * FLAT + HOLD + (7 + 9 + 5) * TOKEN
        node.prove()
    node.close()


STREAMS = 8


def test_streams_end_within_the_grace_and_their_charges_are_on_disk(
    node: Node, tmp_path: Path
) -> None:
    headers = node.newcomer("alice", MONEY)
    node.close()
    gate = tmp_path / "gate"
    ended: list[str] = []

    def read() -> None:
        ended.append(post(server, f"/stream?tokens=9&gate={gate}", headers).text)

    with serving(node, 1) as server:
        threads = [threading.Thread(target=read) for _ in range(STREAMS)]
        for thread in threads:
            thread.start()
        until(lambda: node.open_holds() == STREAMS)
        node.close()
        server.process.terminate()
        gate.touch()
        for thread in threads:
            thread.join()
        server.process.wait(PATIENCE)
    assert [text.endswith("data: [DONE]\n\n") for text in ended] == [True] * STREAMS
    assert list((node.path / "workers").iterdir()) == []
    assert node.engine.health().clean_start
    node.close()
    # The journal alone says the same.
    (node.path / "control").unlink()
    assert node.balance("alice") == MONEY - STREAMS * 9 * TOKEN
    node.prove()


def test_a_stream_that_outlasts_the_grace_is_cut_and_charged(node: Node, tmp_path: Path) -> None:
    headers = node.newcomer("alice", MONEY)
    url = f"/stream?tokens=9&gate={tmp_path / 'never'}"
    with serving(node, 1, "--timeout-graceful-shutdown", "1") as server:
        with httpx.stream("POST", server.url + url, headers=headers, timeout=PATIENCE) as answer:
            lines = answer.iter_lines()
            assert next(lines) == 'data: {"text": "one"}'
            server.process.terminate()
            with pytest.raises(httpx.TransportError):
                list(lines)
        server.process.wait(PATIENCE)
    # uvicorn ends without waiting for what it has cancelled: then the next start settles it.
    sweep(node.engine)
    [entry] = node.settlements("alice")
    assert entry.call is not None
    assert (entry.amount, entry.call.usage) == (-HOLD, UsageStatus.PARTIAL)
    node.prove()
