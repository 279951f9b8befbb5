"""Many calls at once spend what there is, and not a micro more."""

from __future__ import annotations

import asyncio
from collections import Counter

import pytest
from asgi_shop import (
    ALICE,
    DONE,
    FLAT,
    HOLD,
    Server,
    Shop,
    answer,
    event,
    http_scope,
    patiently,
    run,
    script,
    stream,
    used,
)
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from finomw.engine import customers, grants, keys
from finomw.money.entries import CALL_SOURCE
from finomw.types import CustomerId, EntryKind, PlanName

CALLS = 200
COVERED = 37


def slow(messages: list[Message], turns: int) -> ASGIApp:
    """Make an app that takes some turns of the loop before it answers."""

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        for _ in range(turns):
            await asyncio.sleep(0)
        await script(*messages)(scope, receive, send)

    return app


async def together(app: ASGIApp, path: str, token: str, count: int) -> Counter[int]:
    """Run calls at once; return how many had which status."""
    servers = [Server(None) for _ in range(count)]
    scope = http_scope(path, token=token)
    await patiently(
        asyncio.gather(*(app(dict(scope), server.receive, server.send) for server in servers))
    )
    return Counter(server.status for server in servers)


def newcomer(shop: Shop, amount: int) -> str:
    """Add a customer with exactly this much; return a key."""
    bob = CustomerId("bob")
    customers.add_customer(shop.engine, bob, PlanName("default"))
    grants.grant(shop.engine, bob, amount, "test", "first")
    return keys.create_key(shop.engine, bob).token


@pytest.mark.parametrize(
    ("path", "messages", "price"),
    [
        ("/flat", answer({}), FLAT),
        ("/chat", answer(used(100)), HOLD),
        ("/chat", stream(event(used(100)), DONE), HOLD),
    ],
)
@pytest.mark.parametrize("turns", [0, 3])
def test_exactly_the_calls_that_are_covered_succeed(
    shop: Shop, path: str, messages: list[Message], price: int, turns: int
) -> None:
    token = newcomer(shop, COVERED * price)
    app = shop.middleware(slow(messages, turns))
    statuses = run(together(app, path, token, CALLS))
    assert statuses == {200: COVERED, 402: CALLS - COVERED}
    bob = customers.get_account(shop.engine, CustomerId("bob"))
    assert (bob.balance, bob.held) == (0, 0)
    assert run(together(app, path, token, 5)) == {402: 5}


def test_what_a_hold_gives_back_lets_others_in(shop: Shop) -> None:
    """Ten holds fit at a time; each call uses a tenth of its own."""
    token = newcomer(shop, 10 * HOLD)
    app = shop.middleware(script(*answer(used(10))))

    async def main() -> int:
        served = 0
        while True:
            statuses = await together(app, "/chat", token, 20)
            served += statuses[200]
            if not statuses[200]:
                return served

    # The last call starts with one whole hold left, and leaves nine tenths of it.
    assert run(main()) == 91
    assert customers.get_account(shop.engine, CustomerId("bob")).balance == HOLD * 9 // 10


def test_calls_that_end_in_every_way_at_once_add_up(shop: Shop) -> None:
    class Broken(Exception):
        pass

    async def mixed(scope: Scope, receive: Receive, send: Send) -> None:
        kind = scope["state"]["kind"]
        await asyncio.sleep(0)
        if kind == 0:
            raise Broken
        if kind == 1:
            await stuck.wait()
        messages = answer(used(kind)) if kind < 5 else stream(event(used(kind)), DONE)
        await script(*messages)(scope, receive, send)

    stuck = asyncio.Event()

    async def main() -> None:
        app = shop.middleware(mixed)
        tasks = []
        for number in range(140):
            server = Server(None)
            scope = http_scope(token=shop.token, state={"kind": number % 7})
            tasks.append(asyncio.ensure_future(app(scope, server.receive, server.send)))
        await patiently(asyncio.wait([task for i, task in enumerate(tasks) if i % 7 != 1]))
        for task in tasks:
            task.cancel()
        results = await patiently(asyncio.gather(*tasks, return_exceptions=True))
        kinds = Counter(type(result) for result in results)
        assert kinds == {Broken: 20, asyncio.CancelledError: 20, type(None): 100}

    run(main())
    charged = Counter(ended.charged for ended in shop.settled(calls=140))
    assert charged == {0: 40, 20: 20, 30: 20, 40: 20, 50: 20, 60: 20}
    holds = [e for e in shop.entries() if e.source == CALL_SOURCE and e.kind is EntryKind.HOLD]
    assert len(holds) == 140
    assert customers.get_account(shop.engine, ALICE).held == 0
