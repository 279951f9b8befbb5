"""A request that a rule reads reaches the app as it came."""

from __future__ import annotations

import asyncio
import json

import pytest
from asgi_shop import (
    TOKEN,
    Message,
    Server,
    Shop,
    answer,
    http_scope,
    patiently,
    run,
    script,
    serve,
    used,
)
from starlette.requests import Request
from starlette.types import Receive, Scope, Send

ANSWER = script(*answer(used(7)))
ASKED = json.dumps({"max_tokens": 50, "messages": ["x" * 2000]}).encode()


def parts(data: bytes, count: int) -> list[bytes]:
    """Cut a body into ``count`` parts; the last has the rest."""
    size = len(data) // count
    cuts = [data[i * size : (i + 1) * size] for i in range(count - 1)]
    return [*cuts, data[(count - 1) * size :]]


@pytest.mark.parametrize("path", ["/asked", "/chat"])
@pytest.mark.parametrize("count", [1, 3, 500])
def test_the_app_gets_the_very_messages_that_came(shop: Shop, path: str, count: int) -> None:
    got: list[Message] = []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        while not got or got[-1]["more_body"]:
            got.append(await receive())
        await ANSWER(scope, receive, send)

    given = parts(ASKED, count)

    async def main() -> None:
        scope = http_scope(path, token=shop.token)
        await serve(shop.middleware(app), scope, Server(shop, given))

    run(main())
    assert [message["body"] for message in got] == given
    assert [message["more_body"] for message in got] == [True] * (count - 1) + [False]
    assert shop.ended().charged == 7 * TOKEN


@pytest.mark.parametrize("given", [[b""], [b"", b""], [b" \n"]])
@pytest.mark.parametrize("method", ["GET", "POST"])
def test_a_request_without_a_body_is_no_request_of_anything(
    shop: Shop, given: list[bytes], method: str
) -> None:
    async def main() -> Server:
        async def app(scope: Scope, receive: Receive, send: Send) -> None:
            assert await Request(scope, receive).body() == b"".join(given)
            await ANSWER(scope, receive, send)

        scope = http_scope("/asked", method, shop.token)
        return await serve(shop.middleware(app), scope, Server(shop, given))

    assert run(main()).status == 200
    assert shop.ended().charged == 7 * TOKEN


@pytest.mark.parametrize("reads", [0, 1, 2])
def test_an_app_may_read_its_request_or_not_or_twice(shop: Shop, reads: int) -> None:
    async def main() -> Server:
        async def app(scope: Scope, receive: Receive, send: Send) -> None:
            request = Request(scope, receive)
            for _ in range(reads):
                assert await request.json() == json.loads(ASKED)
            await ANSWER(scope, receive, send)

        scope = http_scope("/asked", token=shop.token)
        return await serve(shop.middleware(app), scope, Server(shop, parts(ASKED, 3)))

    assert run(main()).status == 200
    assert shop.ended().charged == 7 * TOKEN


@pytest.mark.parametrize("path", ["/asked", "/chat"])
def test_after_the_body_the_app_waits_for_a_true_disconnect(shop: Shop, path: str) -> None:
    async def main() -> None:
        server = Server(shop, parts(ASKED, 3))
        heard: list[Message] = []

        async def app(scope: Scope, receive: Receive, send: Send) -> None:
            request = Request(scope, receive)
            assert await request.body() == ASKED
            waiting = asyncio.ensure_future(receive())
            await server.waiting.wait()
            await asyncio.sleep(0)
            assert not waiting.done()
            server.left.set()
            heard.append(await waiting)
            await ANSWER(scope, receive, send)

        await serve(shop.middleware(app), http_scope(path, token=shop.token), server)
        assert heard == [{"type": "http.disconnect"}]

    run(main())
    assert shop.ended().charged == 7 * TOKEN


def test_an_app_that_did_not_read_can_hear_the_body_and_then_the_disconnect(shop: Shop) -> None:
    async def main() -> None:
        server = Server(shop, [ASKED])
        server.left.set()

        async def app(scope: Scope, receive: Receive, send: Send) -> None:
            await ANSWER(scope, receive, send)
            assert (await receive())["body"] == ASKED
            assert (await receive())["type"] == "http.disconnect"

        await serve(shop.middleware(app), http_scope("/asked", token=shop.token), server)

    run(main())


@pytest.mark.parametrize("count", [1, 3])
def test_a_request_larger_than_the_rule_reads_is_refused(shop: Shop, count: int) -> None:
    async def never(scope: Scope, receive: Receive, send: Send) -> None:
        raise AssertionError("the app was called")

    async def main(size: int) -> Server:
        body = b'{"max_tokens": 50}'.ljust(size)
        app = shop.middleware(ANSWER if size <= 4096 else never)
        server = Server(shop, parts(body, count))
        return await serve(app, http_scope("/asked", token=shop.token), server)

    assert run(main(4096)).status == 200
    refused = run(main(4097))
    assert refused.status == 413
    assert refused.problem["reason"] == "request_too_large"
    assert len(shop.settled()) == 1


def test_a_body_that_no_rule_reads_is_not_read_early(shop: Shop) -> None:
    async def main() -> None:
        server = Server(shop, [b"x" * 5000])

        async def app(scope: Scope, receive: Receive, send: Send) -> None:
            assert len(server._requests) == 1
            await ANSWER(scope, receive, send)

        await patiently(serve(shop.middleware(app), http_scope(token=shop.token), server))

    run(main())
