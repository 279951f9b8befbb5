"""The README's table of endings, cell by cell: what is charged, how it is marked, what changes it.

An ending is what of its answer the app sent and what happened then. Every cell runs the whole
middleware, and proves that no hold stays open, that every sum is right, and that what the app
raised is what came out.
"""

from __future__ import annotations

import asyncio
import gzip
import json
from collections.abc import Callable
from pathlib import Path

import pytest
from asgi_shop import (
    DONE,
    FLAT,
    HOLD,
    SSE,
    TOKEN,
    Ended,
    Message,
    Server,
    Shop,
    answer,
    body,
    config_text,
    event,
    http_scope,
    patiently,
    run,
    serve,
    start,
    stream,
    used,
)
from starlette.types import Receive, Scope, Send

from finomw.asgi.middleware import FinoMiddleware
from finomw.types import UsageStatus

KNOWN, PARTIAL = UsageStatus.KNOWN, UsageStatus.PARTIAL
MISSING, INVALID = UsageStatus.MISSING, UsageStatus.INVALID

PATHS = ["deltas", "bytes", "deltas_errors"]
PRICES = "".join(f'      {name}: {{tokens: {{usd: "0.00001"}}}}\n' for name in PATHS)
ROUTES = """
  - match: POST /deltas
    name: deltas
    meter: {tokens: .usage.tokens}
    hold: {tokens: 100}
    estimate: {tokens: deltas}
  - match: POST /bytes
    name: bytes
    meter: {tokens: .usage.tokens}
    hold: {tokens: 100}
    estimate: {tokens: bytes / 10}
  - match: POST /deltas_errors
    name: deltas_errors
    meter: {tokens: .usage.tokens}
    hold: {tokens: 100}
    estimate: {tokens: deltas}
    charge_errors: true
"""

PAYLOADS = Path(__file__).parent.parent / "metering" / "payloads"

DELTAS = [event({"text": word}) for word in ("one", "two", "three")]
"""Of 23, 23 and 25 bytes."""
WHOLE = stream(*DELTAS, event(used(7)), DONE)
TOTALS = stream(event(used(1)), event(used(4)), event(used(7)), DONE)
ERROR = {"error": {"message": "no", "type": "server_error"}}


class Broken(Exception):
    """What the app raises."""


async def end(way: str, receive: Receive) -> None:
    """Do in the app what ends its call in this way."""
    if way == "leaves":
        await receive()
        assert (await receive())["type"] == "http.disconnect"
    elif way == "raises":
        raise Broken
    elif way == "times out":
        async with asyncio.timeout(0):
            await asyncio.Event().wait()
    elif way in ("cancelled", "stopped"):
        await asyncio.Event().wait()


RAISED = {
    "raises": Broken,
    "times out": TimeoutError,
    "cancelled": asyncio.CancelledError,
    "stopped": asyncio.CancelledError,
}
"""What comes out of a call that ends in such a way."""


async def run_call(shop: Shop, path: str, messages: list[Message], way: str) -> Server:
    """Run a call whose app sends these messages, after which it ends in this way."""
    server = Server(shop)
    reached = asyncio.Event()

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        for message in messages:
            await send(message)
        reached.set()
        await end(way, receive)

    middleware = shop.middleware(app)
    call = asyncio.ensure_future(serve(middleware, http_scope(path, token=shop.token), server))
    await patiently(reached.wait())
    if way == "leaves":
        server.left.set()
    if way == "stopped":
        await shut_down(middleware)
    if way in ("cancelled", "stopped"):
        call.cancel()
    if way not in RAISED:
        await patiently(call)
    else:
        with pytest.raises(RAISED[way]):
            await patiently(call)
    return server


async def shut_down(middleware: FinoMiddleware) -> None:
    """End a server's lifespan while a call is under way."""
    events = iter(["lifespan.startup", "lifespan.shutdown"])

    async def receive() -> Message:
        return {"type": next(events)}

    async def send(message: Message) -> None:
        raise AssertionError(message)

    async def no_lifespan(scope: Scope, receive: Receive, send: Send) -> None:
        await receive()
        await receive()

    inner, middleware.app = middleware.app, no_lifespan
    await middleware({"type": "lifespan"}, receive, send)
    middleware.app = inner


def nothing(why: str) -> Ended:
    return Ended(0, None, why, {})


def tokens(count: int, usage: UsageStatus, note: str = "") -> Ended:
    return Ended(count * TOKEN, usage, note, {"tokens": count})


def whole(usage: UsageStatus) -> Ended:
    return Ended(HOLD, usage, "estimated: the hold", {})


def failed(status: int) -> Ended:
    return nothing(f"the answer failed with status {status}")


def flat(usage: UsageStatus = KNOWN) -> Ended:
    return Ended(FLAT, usage, "", {"requests": 1})


NO_ANSWER = nothing("no answer began")
UNDELIVERED = nothing("nothing was delivered")
FAILED = failed(200)
GUESS = "estimated: tokens"

MIDWAY = WHOLE[:3]
"""The head and two deltas."""
UNUSED = WHOLE[:4]
"""All deltas, but not the usage."""
STREAM_ERROR = [*MIDWAY, body(event(ERROR), True), body()]
RESPONSE_FAILED = stream((PAYLOADS / "openai_responses_failed_no_usage.sse").read_bytes())
JSON_CUT = [start(), body(b'{"text": "hel', True)]
PLAIN = [start(200, b"text/plain"), body(b"x" * 55, True), body()]

Cell = tuple[str, str, list[Message], str, Ended]
CELLS: list[Cell] = [
    # ending, path, what the app sent, what happened then, how the call ended
    ("client leaves before the first byte", "/chat", [], "leaves", NO_ANSWER),
    ("client leaves before the first byte", "/chat", JSON_CUT, "leaves", UNDELIVERED),
    ("client leaves before the first byte", "/chat", WHOLE[:1], "leaves", UNDELIVERED),
    ("client leaves before the first byte", "/deltas", WHOLE[:1], "leaves", UNDELIVERED),
    ("client leaves before the first byte", "/flat", [], "leaves", NO_ANSWER),
    ("client leaves before the first byte", "/flat", WHOLE[:1], "leaves", UNDELIVERED),
    ("client leaves mid-stream", "/chat", MIDWAY, "leaves", whole(PARTIAL)),
    ("client leaves mid-stream", "/chat_none", MIDWAY, "leaves", nothing("usage missing")),
    ("client leaves mid-stream", "/deltas", MIDWAY, "leaves", tokens(2, PARTIAL, GUESS)),
    ("client leaves mid-stream", "/bytes", MIDWAY, "leaves", tokens(5, PARTIAL, GUESS)),
    ("client leaves mid-stream", "/chat", TOTALS[:3], "leaves", tokens(4, PARTIAL)),
    ("client leaves mid-stream", "/chat_none", TOTALS[:3], "leaves", tokens(4, PARTIAL)),
    ("client leaves mid-stream", "/deltas", TOTALS[:3], "leaves", tokens(4, PARTIAL)),
    ("client leaves mid-stream", "/flat", MIDWAY, "leaves", flat(PARTIAL)),
    ("client leaves before the usage", "/chat", UNUSED, "leaves", whole(PARTIAL)),
    ("client leaves before the usage", "/chat_none", UNUSED, "leaves", nothing("usage missing")),
    ("client leaves before the usage", "/deltas", UNUSED, "leaves", tokens(3, PARTIAL, GUESS)),
    ("client leaves before the usage", "/bytes", UNUSED, "leaves", tokens(8, PARTIAL, GUESS)),
    ("client leaves after [DONE]", "/chat", WHOLE[:-1], "leaves", tokens(7, KNOWN)),
    ("client leaves after [DONE]", "/deltas", WHOLE[:-1], "leaves", tokens(7, KNOWN)),
    ("client leaves after [DONE]", "/flat", WHOLE[:-1], "leaves", flat()),
    ("app raises before the start", "/chat", [], "raises", NO_ANSWER),
    ("app raises before the start", "/chat_errors", [], "raises", NO_ANSWER),
    ("app raises before the start", "/flat", [], "raises", NO_ANSWER),
    ("app raises before the start", "/flat_errors", [], "raises", NO_ANSWER),
    ("app raises after the start", "/chat", WHOLE[:1], "raises", UNDELIVERED),
    ("app raises after the start", "/chat", JSON_CUT, "raises", NO_ANSWER),
    ("app raises after the start", "/chat", MIDWAY, "raises", whole(PARTIAL)),
    ("app raises after the start", "/chat_none", MIDWAY, "raises", nothing("usage missing")),
    ("app raises after the start", "/deltas", MIDWAY, "raises", tokens(2, PARTIAL, GUESS)),
    ("app raises after the start", "/chat", TOTALS[:3], "raises", tokens(4, PARTIAL)),
    ("app raises after the start", "/chat", WHOLE[:-1], "raises", tokens(7, KNOWN)),
    ("app raises after the start", "/flat", MIDWAY, "raises", flat(PARTIAL)),
    ("app returns without a last message", "/chat", MIDWAY, "returns", whole(PARTIAL)),
    ("app returns without a last message", "/deltas", MIDWAY, "returns", tokens(2, PARTIAL, GUESS)),
    ("app returns without a last message", "/chat", [], "returns", NO_ANSWER),
    *(
        cell
        for status in (400, 429, 500, 503)
        for cell in (
            (
                f"{status}",
                "/chat",
                answer({}, status),
                "returns",
                failed(status),
            ),
            (
                f"{status}",
                "/deltas",
                answer({}, status),
                "returns",
                failed(status),
            ),
            (f"{status}", "/chat", answer(used(7), status), "returns", tokens(7, KNOWN)),
            (f"{status}", "/chat_errors", answer({}, status), "returns", whole(MISSING)),
            (
                f"{status}",
                "/flat",
                answer({}, status),
                "returns",
                failed(status),
            ),
            (f"{status}", "/flat_errors", answer({}, status), "returns", flat()),
        )
    ),
    ("error object in a 200", "/chat", answer(ERROR), "returns", FAILED),
    ("error object in a 200", "/chat", answer({**ERROR, **used(7)}), "returns", tokens(7, KNOWN)),
    ("error object in a 200", "/chat_errors", answer(ERROR), "returns", whole(MISSING)),
    ("error object in a 200", "/flat", answer(ERROR), "returns", FAILED),
    ("error object in a 200", "/flat_errors", answer(ERROR), "returns", flat()),
    ("error object in a stream", "/chat", STREAM_ERROR, "returns", FAILED),
    ("error object in a stream", "/deltas", STREAM_ERROR, "returns", FAILED),
    (
        "error object in a stream",
        "/chat",
        [*TOTALS[:3], *STREAM_ERROR[3:]],
        "returns",
        tokens(4, KNOWN),
    ),
    ("error object in a stream", "/chat_errors", STREAM_ERROR, "returns", whole(MISSING)),
    (
        "error object in a stream",
        "/deltas_errors",
        STREAM_ERROR,
        "returns",
        tokens(2, MISSING, GUESS),
    ),
    ("error object in a stream", "/flat", STREAM_ERROR, "returns", FAILED),
    ("error object in a stream", "/flat_errors", STREAM_ERROR, "returns", flat()),
    ("error object in a stream", "/chat", RESPONSE_FAILED, "returns", FAILED),
    ("error object in a stream", "/flat", RESPONSE_FAILED, "returns", FAILED),
    ("usage missing", "/chat", answer({}), "returns", whole(MISSING)),
    ("usage missing", "/chat_none", answer({}), "returns", nothing("usage missing")),
    ("usage missing", "/deltas", stream(*DELTAS, DONE), "returns", tokens(3, MISSING, GUESS)),
    ("usage missing", "/bytes", PLAIN, "returns", tokens(6, MISSING, GUESS)),
    ("usage invalid", "/chat", answer(used("7")), "returns", whole(INVALID)),
    ("usage invalid", "/chat_none", answer(used("7")), "returns", nothing("usage invalid")),
    (
        "usage invalid",
        "/deltas",
        stream(*DELTAS, event(used(-1)), DONE),
        "returns",
        tokens(3, INVALID, GUESS),
    ),
    ("usage partial", "/chat", TOTALS[:3], "returns", tokens(4, PARTIAL)),
    ("usage partial", "/chat_none", TOTALS[:3], "returns", tokens(4, PARTIAL)),
    ("usage partial", "/deltas", [*TOTALS[:2], *MIDWAY[1:]], "returns", tokens(2, PARTIAL, GUESS)),
    ("timeout", "/chat", [], "times out", NO_ANSWER),
    ("timeout", "/chat", MIDWAY, "times out", whole(PARTIAL)),
    ("timeout", "/chat_none", MIDWAY, "times out", nothing("usage missing")),
    ("timeout", "/deltas", MIDWAY, "times out", tokens(2, PARTIAL, GUESS)),
    ("timeout", "/flat", MIDWAY, "times out", flat(PARTIAL)),
    ("timeout", "/chat", [], "cancelled", NO_ANSWER),
    ("timeout", "/chat", MIDWAY, "cancelled", whole(PARTIAL)),
    ("timeout", "/deltas", MIDWAY, "cancelled", tokens(2, PARTIAL, GUESS)),
    ("timeout", "/chat", TOTALS[:3], "cancelled", tokens(4, PARTIAL)),
    ("server stop", "/chat", [], "stopped", NO_ANSWER),
    ("server stop", "/chat", WHOLE[:1], "stopped", UNDELIVERED),
    ("server stop", "/chat", MIDWAY, "stopped", whole(PARTIAL)),
    ("server stop", "/deltas", MIDWAY, "stopped", tokens(2, PARTIAL, GUESS)),
    ("server stop", "/chat", TOTALS[:3], "stopped", tokens(4, PARTIAL)),
    ("server stop", "/flat", MIDWAY, "stopped", flat(PARTIAL)),
    ("none of these", "/chat", WHOLE, "returns", tokens(7, KNOWN)),
    ("none of these", "/deltas", WHOLE, "returns", tokens(7, KNOWN)),
    ("none of these", "/flat", WHOLE, "returns", flat()),
]


@pytest.fixture
def table_shop(open_shop: Callable[..., Shop]) -> Shop:
    """Open a shop with every option that changes an ending."""
    return open_shop(config_text(prices=PRICES, routes=ROUTES))


@pytest.mark.parametrize(
    ("ending", "path", "messages", "way", "expected"),
    CELLS,
    ids=[f"{cell[0]}, {cell[1]}, {number}" for number, cell in enumerate(CELLS)],
)
def test_every_cell_of_the_table_of_endings_holds(
    table_shop: Shop, ending: str, path: str, messages: list[Message], way: str, expected: Ended
) -> None:
    server = run(run_call(table_shop, path, messages, way))
    assert table_shop.ended() == expected, ending
    assert server.messages in (messages, [])


@pytest.mark.parametrize("estimate", ["deltas", "bytes / 2"])
def test_an_estimate_is_never_above_what_was_held(
    open_shop: Callable[..., Shop], estimate: str
) -> None:
    routes = f"""
  - match: POST /small
    name: chat
    meter: {{tokens: .usage.tokens}}
    hold: {{tokens: 2}}
    estimate: {{tokens: {estimate}}}
"""
    shop = open_shop(config_text(routes=routes))
    run(run_call(shop, "/small", UNUSED, "leaves"))
    assert shop.ended() == tokens(2, PARTIAL, GUESS)


TWO_METERS = config_text(
    prices='      two: {asked: {usd: "0.00001"}, tokens: {usd: "0.00001"}}\n',
    routes="""
  - match: POST /two
    name: two
    meter: {asked: .usage.asked, tokens: .usage.tokens}
    hold: {asked: 30, tokens: 100}
    estimate: {tokens: deltas}
""",
)
"""Only one of two meters is estimated."""


def test_a_meter_without_an_estimate_is_taken_as_held(open_shop: Callable[..., Shop]) -> None:
    shop = open_shop(TWO_METERS)
    run(run_call(shop, "/two", UNUSED, "leaves"))
    counts = {"asked": 30, "tokens": 3}
    assert shop.ended() == Ended(33 * TOKEN, PARTIAL, "estimated: asked, tokens", counts)


def test_what_was_said_of_another_meter_is_not_estimated(open_shop: Callable[..., Shop]) -> None:
    shop = open_shop(TWO_METERS)
    head = [start(200, SSE), body(event({"usage": {"asked": 11, "tokens": 1}}), True)]
    run(run_call(shop, "/two", [*head, *UNUSED[1:]], "leaves"))
    counts = {"asked": 11, "tokens": 3}
    assert shop.ended() == Ended(14 * TOKEN, PARTIAL, GUESS, counts)


def test_a_compressed_answer_is_estimated_by_what_it_decodes_to(table_shop: Shop) -> None:
    coded = gzip.compress(json.dumps({"text": "x" * 488}).encode())
    head = start(200, b"application/json", (b"content-encoding", b"gzip"))
    run(run_call(table_shop, "/bytes", [head, body(coded)], "returns"))
    assert table_shop.ended() == tokens(50, MISSING, GUESS)
