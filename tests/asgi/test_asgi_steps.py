"""Streams that are settled while they go on, over the whole middleware."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from pathlib import Path

import pytest
from asgi_shop import (
    ALICE,
    BALANCE,
    DONE,
    HOLD,
    SSE,
    TOKEN,
    Message,
    Server,
    Shop,
    body,
    call,
    config_text,
    event,
    http_scope,
    patiently,
    run,
    script,
    serve,
    start,
    stream,
    used,
)
from starlette.types import Receive, Scope, Send

from finomw.engine import customers
from finomw.engine.verify import verify
from finomw.testing.clock import ManualClock
from finomw.types import EntryKind, HoldState, UsageStatus

PARTIAL, KNOWN = UsageStatus.PARTIAL, UsageStatus.KNOWN
PAYLOADS = Path(__file__).parent.parent / "metering" / "payloads"

PRICES = """
      vllm: {input_tokens: {usd: "0.000001"}, output_tokens: {usd: "0.000010"}}
      volume: {tokens: {volume: [{up_to: 5, usd: "0.00001"}, {usd: "0.000001"}]}}
      parts: {tokens: {usd: "0.00001"}, cached: {usd: "0.000001"}}
"""
ROUTES = """
  - {match: POST /units, name: chat, meter: {tokens: .usage.tokens}, hold: {tokens: 100},
     settle_every: 3 units}
  - {match: POST /timed, name: chat, meter: {tokens: .usage.tokens}, hold: {tokens: 100},
     settle_every: 5s}
  - {match: POST /guess, name: chat, meter: {tokens: .usage.tokens}, hold: {tokens: 100},
     settle_every: 2 units, estimate: {tokens: deltas}}
  - {match: POST /volume, name: volume, meter: {tokens: .usage.tokens}, hold: {tokens: 100},
     settle_every: 2 units}
  - match: POST /parts
    name: parts
    meter: {tokens: .usage.tokens, cached: .usage.cached}
    splits: {cached: {of: tokens, inside: true}}
    hold: {tokens: 100}
    settle_every: 1 units
  - match: POST /vllm
    name: vllm
    meter: {input_tokens: .usage.prompt_tokens, output_tokens: .usage.completion_tokens}
    hold: {input_tokens: 2000, output_tokens: 100}
    settle_every: 1 units
"""


@pytest.fixture
def shop(open_shop: Callable[..., Shop]) -> Shop:
    return open_shop(config_text(prices=PRICES, routes=ROUTES))


def totals(*counts: int) -> list[bytes]:
    return [event(used(count)) for count in counts]


def charges(shop: Shop) -> list[tuple[int, UsageStatus, dict[str, int]]]:
    """Return what the ledger was charged, entry by entry: micros, how it is known, counts."""
    found = []
    for entry in shop.entries():
        if entry.kind is EntryKind.SETTLEMENT:
            assert entry.call is not None
            found.append((-entry.amount, UsageStatus(entry.call.usage), entry.call.counts))
    return found


def is_whole(shop: Shop, charged: int) -> None:
    """Prove that the one call is over, and what it came to."""
    assert shop.open_holds() == 0
    assert shop.balance == BALANCE - charged
    assert sum(amount for amount, _, _ in charges(shop)) == charged
    assert verify(shop.engine).faults == ()


def test_a_stream_is_settled_each_time_it_used_so_many_units(shop: Shop) -> None:
    chunks = [*totals(1, 2, 4, 5, 6, 7), DONE]
    server = call(shop, script(*stream(*chunks)), "/units")
    assert server.messages == stream(*chunks)
    assert charges(shop) == [
        (40, PARTIAL, {"tokens": 4}),
        (30, PARTIAL, {"tokens": 3}),
        (0, KNOWN, {"tokens": 0}),
    ]
    is_whole(shop, 7 * TOKEN)


def test_a_stream_is_settled_by_time_as_its_chunks_pass(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = ManualClock()
    monkeypatch.setattr(shop.engine, "clock", clock)

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await send(start(200, SSE))
        for count, seconds in ((1, 4), (2, 1), (3, 0), (4, 20), (4, 20)):
            clock.advance(seconds * 10**6)
            await send(body(event(used(count)), True))
        await send(body(DONE, True))
        await send(body())

    call(shop, app, "/timed")
    assert [count["tokens"] for _, _, count in charges(shop)] == [2, 2, 0]
    is_whole(shop, 4 * TOKEN)


def test_the_balance_is_live_while_a_stream_goes_on(shop: Shop) -> None:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await send(start(200, SSE))
        await send(body(event(used(4)), True))
        account = customers.get_account(shop.engine, ALICE)
        assert (account.spent_total, account.held) == (4 * TOKEN, HOLD - 4 * TOKEN)
        assert account.balance + account.held == BALANCE - 4 * TOKEN
        await send(body(event(used(9)) + DONE, True))
        await send(body())

    call(shop, app, "/units")
    is_whole(shop, 9 * TOKEN)


def test_no_chunk_waits_for_its_step_but_the_last_message_for_the_end(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = call(shop, script(*stream(*totals(3, 6, 9), DONE)), "/units")
    steps = [sent.tail > sent.durable for sent in server.sent]
    assert steps[1:4] == [True, True, True]
    assert not any(steps[4:])


def test_a_step_is_flushed_without_anybody_waiting(shop: Shop) -> None:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await send(start(200, SSE))
        await send(body(event(used(4)), True))
        stepped = shop.engine.tail()
        await asyncio.sleep(0)
        assert shop.engine.durable() >= stepped
        await send(body(DONE))

    call(shop, app, "/units")
    is_whole(shop, 4 * TOKEN)


@pytest.mark.parametrize("path", ["/guess", "/volume", "/parts"])
def test_what_may_turn_out_cheaper_is_only_recorded(shop: Shop, path: str) -> None:
    """Estimates, volume prices, and parts that may be told later."""
    seen: list[tuple[dict[str, int], str]] = []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await send(start(200, SSE))
        for count in range(1, 6):
            text = {"text": "x"} if path == "/guess" else used(count)
            await send(body(event(text), True))
        with shop.engine.store.read() as txn:
            [named] = shop.engine.store.holds.items(txn)
        assert named.row.step is not None
        seen.append((named.row.step.counts, named.row.step.note))
        final = {"usage": {"tokens": 6, "cached": 4}} if path == "/parts" else used(6)
        await send(body(event(final) + DONE))

    call(shop, app, path)
    counts, note = seen[0]
    assert counts["tokens"] == {"/guess": 4, "/volume": 4, "/parts": 5}[path]
    assert note == ("estimated: tokens" if path == "/guess" else "")
    charged = {"/guess": 60, "/volume": 6, "/parts": 24}[path]
    assert [amount for amount, _, _ in charges(shop)] == [charged]
    is_whole(shop, charged)


def vllm() -> bytes:
    return (PAYLOADS / "vllm_continuous_usage.sse").read_bytes()


def vllm_chunks() -> list[bytes]:
    return [part + b"\n\n" for part in vllm().split(b"\n\n") if part]


def test_running_totals_are_charged_as_totals_however_often(shop: Shop) -> None:
    call(shop, script(*stream(*vllm_chunks())), "/vllm")
    assert len(charges(shop)) == 7
    is_whole(shop, 1000 + 60)


def test_a_stream_cut_off_after_its_fourth_chunk_costs_the_last_total(shop: Shop) -> None:
    async def main() -> None:
        server = Server(shop)

        async def app(scope: Scope, receive: Receive, send: Send) -> None:
            for message in stream(*vllm_chunks()[:4])[:-1]:
                await send(message)
            server.left.set()
            await receive()
            await receive()

        await serve(shop.middleware(app), http_scope("/vllm", token=shop.token), server)

    run(main())
    assert {usage for _, usage, _ in charges(shop)} == {PARTIAL}
    is_whole(shop, 1000 + 40)


@pytest.mark.parametrize(
    ("path", "chunks", "charged"),
    [
        ("/units", totals(1, 2, 4, 5), 40),
        ("/units", totals(1, 2), HOLD),
        ("/guess", [event({"text": "x"})] * 7, 60),
        ("/volume", totals(1, 2, 3, 8, 9), 8),
    ],
)
def test_a_worker_that_dies_midway_loses_at_most_a_step(
    shop: Shop, path: str, chunks: list[bytes], charged: int
) -> None:
    """All of the stream's messages left, and nothing of the worker ran after them."""

    async def main() -> None:
        reached = asyncio.Event()

        async def app(scope: Scope, receive: Receive, send: Send) -> None:
            for message in [start(200, SSE), *(body(chunk, True) for chunk in chunks)]:
                await send(message)
            reached.set()
            await asyncio.Event().wait()

        middleware = shop.middleware(app)
        server = Server(shop)
        task = asyncio.ensure_future(serve(middleware, http_scope(path, token=shop.token), server))
        await patiently(reached.wait())
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("finomw.asgi.responder.Responder.abandon", lambda self: None)
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task

    run(main())
    assert shop.open_holds() == 1
    shop.restart()
    is_whole(shop, charged)
    with shop.engine.store.read() as txn:
        [ended] = shop.engine.store.holds.ended(txn)
    assert (ended.row.state, ended.row.charged) == (HoldState.SETTLED, charged)


def test_a_step_that_cannot_be_recorded_cuts_the_stream(shop: Shop) -> None:
    sent: list[Message] = []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await send(start(200, SSE))
        await send(body(event(used(1)), True))
        shop.engine.control.fail()
        await send(body(event(used(4)), True))
        raise AssertionError("the app was not stopped")

    async def main() -> None:
        server = Server(shop)
        with pytest.raises(Exception, match="flush"):
            await serve(shop.middleware(app), http_scope("/units", token=shop.token), server)
        sent.extend(server.messages)

    run(main())
    assert len(sent) == 2
