"""WebSockets over real sockets, with both of uvicorn's implementations."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest
import uvicorn
from e2e_servers import PATIENCE, Node
from starlette.applications import Starlette
from starlette.routing import WebSocketRoute
from starlette.websockets import WebSocket, WebSocketDisconnect
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidStatus

from finomw import FinoMiddleware
from finomw.types import UsageStatus

TOKEN = 10
CONFIG = """
data: node
buffer_usd: "0"
plans: {default: {prices: {talk: {tokens: {usd: "0.00001"}, messages: {usd: "0"}}}}}
routes:
  - match: WS /talk
    name: talk
    receive: {messages: 1}
    send: {tokens: .tokens}
    hold: {tokens: 100, messages: 5}
"""


class Talk:
    """The app: answers each number with that many tokens; 0 ends the connection."""

    def __init__(self) -> None:
        self.waits = asyncio.Event()
        self.through = asyncio.Event()

    async def serve(self, connection: WebSocket) -> None:
        await connection.accept()
        try:
            while tokens := int(await connection.receive_text()):
                await connection.send_json({"tokens": tokens})
                self.waits.set()
            await connection.close(3000)
        except WebSocketDisconnect:
            pass
        finally:
            self.through.set()


@asynccontextmanager
async def serving(node: Node, kind: str, talk: Talk) -> AsyncIterator[tuple[uvicorn.Server, str]]:
    app = FinoMiddleware(Starlette(routes=[WebSocketRoute("/talk", talk.serve)]), node.config)
    config = uvicorn.Config(app, ws=kind, lifespan="on", log_level="error")
    server = uvicorn.Server(config)
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        serve = asyncio.ensure_future(server.serve([listening]))
        while not server.started:
            assert not serve.done()
            await asyncio.sleep(0.01)
        yield server, f"ws://127.0.0.1:{listening.getsockname()[1]}/talk"
        server.should_exit = True
        await serve


Test = Callable[[uvicorn.Server, str, Talk], Awaitable[None]]


def run(node: Node, kind: str, test: Test) -> None:
    async def main() -> None:
        talk = Talk()
        async with asyncio.timeout(PATIENCE), serving(node, kind, talk) as (server, url):
            await test(server, url, talk)

    node.config.write_text(CONFIG)
    asyncio.run(main())
    node.prove()


both = pytest.mark.parametrize("kind", ["websockets-sansio", "wsproto"])


async def said(connection: ClientConnection, tokens: int) -> int:
    await connection.send(str(tokens))
    told: int = json.loads(await connection.recv())["tokens"]
    return told


@both
def test_a_client_that_sees_the_close_is_charged(node: Node, kind: str) -> None:
    headers = node.newcomer("acme", 10_000)

    async def test(server: uvicorn.Server, url: str, talk: Talk) -> None:
        async with connect(url, additional_headers=headers) as connection:
            assert [await said(connection, 3), await said(connection, 4)] == [3, 4]
            await connection.send("0")
            with pytest.raises(ConnectionClosed) as closed:
                await connection.recv()
            assert closed.value.rcvd is not None
            assert closed.value.rcvd.code == 3000
            assert node.balance("acme") == 10_000 - 7 * TOKEN

    run(node, kind, test)


@both
def test_a_client_that_leaves_or_is_lost_is_charged(node: Node, kind: str) -> None:
    headers = node.newcomer("acme", 10_000)

    async def test(server: uvicorn.Server, url: str, talk: Talk) -> None:
        async with connect(url, additional_headers=headers) as connection:
            await said(connection, 3)
        await talk.through.wait()
        talk.through.clear()
        lost = await connect(url, additional_headers=headers)
        await said(lost, 4)
        lost.transport.abort()
        await talk.through.wait()

    run(node, kind, test)
    assert node.balance("acme") == 10_000 - 7 * TOKEN
    assert [entry.call and entry.call.usage for entry in node.settlements("acme")] == [
        UsageStatus.KNOWN,
        UsageStatus.KNOWN,
    ]


@both
def test_who_may_not_gets_an_answer_to_the_handshake(node: Node, kind: str) -> None:
    poor = node.newcomer("poor", 10)

    async def test(server: uvicorn.Server, url: str, talk: Talk) -> None:
        for headers, status, reason in (({}, 401, "no_key"), (poor, 402, "exhausted")):
            with pytest.raises(InvalidStatus) as refused:
                await connect(url, additional_headers=headers)
            response = refused.value.response
            assert response.status_code == status
            assert response.headers["content-type"] == "application/problem+json"
            assert json.loads(response.body or b"")["reason"] == reason

    run(node, kind, test)
    assert node.settlements("poor") == []


@both
def test_at_the_ceiling_the_connection_is_closed(node: Node, kind: str) -> None:
    headers = node.newcomer("acme", 10_000)

    async def test(server: uvicorn.Server, url: str, talk: Talk) -> None:
        async with connect(url, additional_headers=headers) as connection:
            for _ in range(5):
                await said(connection, 1)
            await connection.send("1")
            with pytest.raises(ConnectionClosed) as closed:
                await connection.recv()
            assert closed.value.rcvd is not None
            assert closed.value.rcvd.code == 1008
            assert node.balance("acme") == 10_000 - 5 * TOKEN

    run(node, kind, test)


@both
def test_a_server_that_stops_charges_what_was_open(node: Node, kind: str) -> None:
    headers = node.newcomer("acme", 10_000)

    async def test(server: uvicorn.Server, url: str, talk: Talk) -> None:
        connection = await connect(url, additional_headers=headers)
        await said(connection, 6)
        await talk.waits.wait()
        server.should_exit = True
        await talk.through.wait()
        await connection.wait_closed()

    run(node, kind, test)
    assert node.balance("acme") == 10_000 - 6 * TOKEN
