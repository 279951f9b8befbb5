"""Streams that come to more than is held: ended in their own format, or charged whole."""

from __future__ import annotations

import asyncio
import gzip
import json
from collections.abc import AsyncIterator, Callable

import pytest
from asgi_shop import (
    DONE,
    SSE,
    TOKEN,
    Ended,
    Message,
    Server,
    Shop,
    body,
    call,
    config_text,
    event,
    http_scope,
    run,
    script,
    serve,
    start,
    stream,
    used,
)
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import StreamingResponse
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from finomw.asgi.responder import StreamCut
from finomw.metering.meter import Meter
from finomw.metering.readers import Readers
from finomw.types import UsageStatus

PARTIAL, KNOWN = UsageStatus.PARTIAL, UsageStatus.KNOWN

ROUTES = """
  - {match: POST /cut, name: chat, meter: {tokens: .usage.tokens}, hold: {tokens: 5},
     on_ceiling: cut}
  - {match: POST /finish, name: chat, meter: {tokens: .usage.tokens}, hold: {tokens: 5}}
  - {match: POST /guess, name: chat, meter: {tokens: .usage.tokens}, hold: {tokens: 2},
     on_ceiling: cut, estimate: {tokens: deltas}}
  - match: POST /parts
    name: parts
    meter: {tokens: .usage.tokens, cached: .usage.cached}
    splits: {cached: {of: tokens}}
    hold: {tokens: 5}
    on_ceiling: cut
"""
PRICES = '      parts: {tokens: {usd: "0.00001"}, cached: {usd: "0.000001"}}\n'
ERROR = {
    "type": "ceiling_reached",
    "code": "ceiling_reached",
    "message": "The most that this call may use was reached.",
}
OPENAI_END = (
    b"data: " + json.dumps({"error": ERROR}, separators=(",", ":")).encode() + b"\n\n" + DONE
)
NAMED_END = (
    b"event: error\ndata: "
    + json.dumps({"type": "error", "error": ERROR}, separators=(",", ":")).encode()
    + b"\n\n"
)
LINES_END = (
    json.dumps(
        {"error": ERROR["message"], "code": "ceiling_reached", "done": True}, separators=(",", ":")
    ).encode()
    + b"\n"
)
ARRAY_END = json.dumps({"error": ERROR}, separators=(",", ":")).encode() + b"]"


@pytest.fixture
def shop(open_shop: Callable[..., Shop]) -> Shop:
    return open_shop(config_text(prices=PRICES, routes=ROUTES))


def totals(*counts: int) -> list[bytes]:
    return [event(used(count)) for count in counts]


def cut(count: int) -> Ended:
    return Ended(count * TOKEN, PARTIAL, "cut at the ceiling", {"tokens": count})


class App:
    """Streams chunks without an end, and remembers how it was stopped."""

    def __init__(self, head: Message, chunks: list[bytes]) -> None:
        self.head = head
        self.chunks = chunks
        self.stopped: BaseException | None = None
        self.heard: Message | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await send(self.head)
        try:
            for chunk in self.chunks:
                await send(body(chunk, True))
        except OSError as error:
            self.stopped = error
            self.heard = await receive()
            raise


def named(count: int) -> bytes:
    return b"event: delta\n" + event(used(count))


def line(count: int) -> bytes:
    return json.dumps(used(count)).encode() + b"\n"


def element(count: int, before: bytes) -> bytes:
    return before + json.dumps(used(count)).encode()


JSON_LINES, JSON = b"application/x-ndjson", b"application/json"


@pytest.mark.parametrize(
    ("kind", "chunks", "passed", "end"),
    [
        # the last two chunks are beyond the ceiling, and of the first of them nothing need leave
        (SSE, totals(3, 5, 6, 7), 2, OPENAI_END),
        (SSE, [named(3), named(5), named(6), named(7)], 2, NAMED_END),
        (JSON_LINES, [line(3), line(5), line(6), line(7)], 2, LINES_END),
        (
            JSON,
            [element(3, b"["), element(5, b",\n"), element(6, b",\n"), element(7, b",")],
            2,
            b"," + ARRAY_END,
        ),
        (JSON, [element(5, b"[") + b",", element(6, b""), element(7, b",")], 1, ARRAY_END),
        # an event that is under way has to be completed, and no more
        (SSE, [*totals(5), totals(6)[0][:9], totals(6)[0][9:], totals(7)[0]], 3, OPENAI_END),
        (JSON_LINES, [line(5), line(6)[:9], line(6)[9:], line(7)], 3, LINES_END),
        # the first chunk is too much at once
        (SSE, totals(6, 7), 0, OPENAI_END),
    ],
)
def test_a_stream_is_cut_where_it_comes_to_more_than_is_held(
    shop: Shop, kind: bytes, chunks: list[bytes], passed: int, end: bytes
) -> None:
    app = App(start(200, kind), chunks)
    server = call(shop, app, "/cut")
    left = [start(200, kind), *(body(chunk, True) for chunk in chunks[:passed])]
    assert server.messages == [*left, {"type": "http.response.body", "body": end}]
    # The end waits for the charge, as that of every stream does.
    assert server.sent[-1].ended == 1
    assert server.sent[-1].durable == server.sent[-1].tail
    assert isinstance(app.stopped, StreamCut)
    assert app.heard == {"type": "http.disconnect"}
    assert shop.ended() == cut(5)


def test_a_stream_whose_chunks_never_end_with_an_event_is_cut_within_one(shop: Shop) -> None:
    whole = b"".join(totals(4, 6, 7, 8, 9))
    chunks = [whole[:20], whole[20:61], whole[61:130], whole[130:]]
    server = call(shop, App(start(200, SSE), chunks), "/cut")
    assert server.body.endswith(OPENAI_END)
    before = server.body.removesuffix(OPENAI_END)
    assert whole.startswith(before)
    assert before.endswith(b"\n\n")
    assert shop.ended() == cut(5)


def test_what_ends_a_cut_stream_is_an_error_to_whoever_reads_it() -> None:
    readers = Readers("chat", Meter({"tokens": ".usage.tokens"}), 1000, False)
    for kind, text in (
        (SSE, OPENAI_END),
        (SSE, NAMED_END),
        (JSON_LINES, LINES_END),
        (JSON, b"[" + ARRAY_END),
    ):
        reader = readers.reader_for(200, [(b"content-type", kind)])
        assert reader is not None
        reader.feed(text)
        assert reader.finish().error
        assert reader.ended is (text is not NAMED_END)


def test_a_stream_that_reaches_its_ceiling_exactly_goes_on(shop: Shop) -> None:
    messages = stream(*totals(3, 5), DONE)
    assert call(shop, script(*messages), "/cut").messages == messages
    assert shop.ended() == Ended(5 * TOKEN, KNOWN, "", {"tokens": 5})


def test_a_stream_that_may_finish_is_charged_its_overrun(shop: Shop) -> None:
    messages = stream(*totals(3, 5, 6, 7), DONE)
    assert call(shop, script(*messages), "/finish").messages == messages
    assert shop.ended() == Ended(7 * TOKEN, KNOWN, "", {"tokens": 7})


@pytest.mark.parametrize("last", [DONE, b""])
def test_an_end_that_comes_with_too_much_is_an_end(shop: Shop, last: bytes) -> None:
    messages = stream(*totals(3), totals(7)[0] + last, empty_last=bool(last))
    assert call(shop, script(*messages), "/cut").messages == messages
    assert shop.ended() == Ended(7 * TOKEN, KNOWN, "", {"tokens": 7})


def test_a_stream_without_totals_is_cut_by_its_estimate(shop: Shop) -> None:
    words = [event({"text": str(number)}) for number in range(4)]
    server = call(shop, App(start(200, SSE), words), "/guess")
    assert server.body == b"".join(words[:2]) + OPENAI_END
    note = "cut at the ceiling; estimated: tokens"
    assert shop.ended() == Ended(2 * TOKEN, PARTIAL, note, {"tokens": 2})


def test_a_part_of_a_meter_counts_towards_its_ceiling(shop: Shop) -> None:
    chunks = [event({"usage": {"tokens": 2, "cached": part}}) for part in (2, 3, 4)]
    server = call(shop, App(start(200, SSE), chunks), "/parts")
    assert server.body == b"".join(chunks[:2]) + OPENAI_END
    charged = Ended(TOKEN + 4, PARTIAL, "cut at the ceiling", {"tokens": 1, "cached": 4})
    assert shop.ended() == charged


def test_what_cannot_be_cut_cleanly_finishes(shop: Shop) -> None:
    """A compressed stream, or one that said how long it is, can have nothing added."""
    chunks = [*totals(3, 7), DONE]
    coded = gzip.compress(b"".join(chunks))
    head = start(200, SSE, (b"content-encoding", b"gzip"))
    call(shop, script(head, body(coded[:20], True), body(coded[20:], True), body()), "/cut")
    size = b"%d" % len(b"".join(chunks))
    head = start(200, SSE, (b"content-length", size))
    server = call(shop, script(head, *(body(chunk, True) for chunk in chunks), body()), "/cut")
    assert server.body == b"".join(chunks)
    assert [ended.charged for ended in shop.settled(calls=2)] == [7 * TOKEN] * 2


@pytest.mark.parametrize("spec", ["2.3", "2.4"])
def test_a_starlette_app_takes_a_cut_for_a_client_that_left(shop: Shop, spec: str) -> None:
    closed = asyncio.Event()

    async def endless() -> AsyncIterator[bytes]:
        count = 0
        try:
            while True:
                count += 1
                yield event(used(count))
        finally:
            closed.set()

    async def endpoint(request: Request) -> StreamingResponse:
        return StreamingResponse(endless(), media_type="text/event-stream")

    async def main() -> Server:
        app = Starlette(routes=[Route("/cut", endpoint, methods=["POST"])])
        scope = http_scope("/cut", token=shop.token)
        scope["asgi"] = {"version": "3.0", "spec_version": spec}
        server = await serve(shop.middleware(app), scope, Server(shop))
        await asyncio.sleep(0)
        return server

    server = run(main())
    assert server.body == b"".join(totals(1, 2, 3, 4, 5)) + OPENAI_END
    assert closed.is_set()
    assert shop.ended() == cut(5)


def test_an_error_of_the_app_after_a_cut_is_its_own(shop: Shop) -> None:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await send(start(200, SSE))
        try:
            await send(body(totals(6)[0], True))
        except OSError:
            raise ValueError("the app's own") from None

    with pytest.raises(ValueError, match="the app's own"):
        call(shop, app, "/cut")
    assert shop.ended() == cut(5)
