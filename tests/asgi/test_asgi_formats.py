"""Every format that is metered, end to end: what leaves, when, and what it costs."""

from __future__ import annotations

import asyncio
import gzip
import json
import logging
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from asgi_shop import (
    ALICE,
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
    run,
    script,
    serve,
    start,
    used,
)
from starlette.types import Receive, Scope, Send

from finomw import limits
from finomw.engine import customers
from finomw.types import UsageStatus

JSON = b"application/json"
LINES = b"application/x-ndjson"
USED = json.dumps(used(7)).encode()
RULES = config_text(
    prices="""
      tail: {tokens: {usd: "0.00001"}}
      summed: {tokens: {usd: "0.00001"}}
      rows: {rows: {usd: "0.00001"}}
      ended: {tokens: {usd: "0.00001"}}
""",
    routes="""
  - match: POST /tail
    name: tail
    meter: {tokens: .usage.tokens}
    hold: {tokens: 100}
    max_body: 64KiB
    too_large: tail
  - match: POST /summed
    name: summed
    meter: {tokens: .usage.tokens}
    hold: {tokens: 100}
    merge: sum
  - {match: POST /rows, name: rows, meter: {rows: length}, hold: {rows: 100}}
  - match: POST /ended
    name: ended
    meter: {tokens: .usage.tokens}
    hold: {tokens: 100}
    ends: [bye]
""",
)


@pytest.fixture
def formats(tmp_path: Path) -> Iterator[Shop]:
    made = Shop(tmp_path, RULES)
    yield made
    made.close()


def parts(kind: bytes, chunks: Sequence[bytes], *headers: tuple[bytes, bytes]) -> list[Message]:
    return [start(200, kind, *headers), *(body(chunk, True) for chunk in chunks), body()]


def held_from(server: Server, messages: list[Message]) -> int:
    """Return the index of the first message that waited for the charge; all passed unchanged."""
    assert server.messages == messages
    ended = [sent.ended for sent in server.sent]
    assert ended == sorted(ended)
    assert all(sent.durable == sent.tail for sent in server.sent if sent.ended)
    return ended.index(1)


def flushed(chunks: Sequence[bytes]) -> list[bytes]:
    compressor = zlib.compressobj(wbits=31)
    coded = [compressor.compress(chunk) + compressor.flush(zlib.Z_SYNC_FLUSH) for chunk in chunks]
    return [*coded, compressor.flush()]


WORD = event({"text": "one"})
STOP = b'event: message_stop\ndata: {"type":"message_stop"}\n\n'

PASSING = [
    # kind, parts, the index of the first message that waits (0 is the head)
    (SSE, [WORD, event(used(7)), STOP], 3),
    (SSE, [WORD, event(used(7)) + STOP[:30], STOP[30:-2], b"\n\n"], 3),
    (SSE, [WORD, event({"type": "response.completed", **used(7)})], 2),
    (SSE, [WORD, event({"type": "response.failed", **used(7)})[:-2], b"\n\n"], 2),
    (LINES, [b'{"done":false}\n', b'{"done":true,' + USED[1:]], 2),
    (LINES, [b'{"done":false}\n' + USED + b"\n", b'{"done":true}\n'], 2),
    (LINES, [b'{"a":1}\n', USED + b"\n"], 3),
    (JSON, [b"[", b'{"a":"]"},', USED, b"\n]"], 4),
    (JSON, [b"[" + USED, b"]\n"], 2),
    (JSON, [b" ", b"[", USED + b"]"], 3),
    (JSON, [b"[" + USED + b"]"], 0),
    (JSON, [b"[" + USED[:4], USED[4:] + b" "], 3),
    (JSON, [b"data:", b" {}\n\n", event(used(7)), b"data: [DONE]"], 4),
    (JSON, [USED[:9], USED[9:]], 0),
]


@pytest.mark.parametrize(("kind", "chunks", "held"), PASSING)
def test_what_completes_an_answer_waits_and_all_before_it_passes(
    formats: Shop, kind: bytes, chunks: list[bytes], held: int
) -> None:
    messages = parts(kind, chunks)
    assert held_from(call(formats, script(*messages)), messages) == held
    assert formats.ended() == (7 * TOKEN, UsageStatus.KNOWN, "", {"tokens": 7})


@pytest.mark.parametrize(
    ("kind", "chunks", "held"),
    [row for row in PASSING if row[2] > 0],
)
def test_the_same_holds_for_a_body_that_is_compressed(
    formats: Shop, kind: bytes, chunks: list[bytes], held: int
) -> None:
    coded = (b"Content-Encoding", b"GZIP")
    messages = parts(kind, flushed(chunks), coded)
    if held == len(chunks) + 1:  # the last message, of which there is one more
        held += 1
    assert held_from(call(formats, script(*messages)), messages) == held
    assert formats.ended().charged == 7 * TOKEN


def test_a_compressed_json_answer_waits_as_a_whole(formats: Shop) -> None:
    whole = gzip.compress(USED)
    messages = parts(JSON, [whole[:5], whole[5:]], (b"content-encoding", b"gzip"))
    assert held_from(call(formats, script(*messages)), messages) == 0
    assert formats.ended().charged == 7 * TOKEN


def test_a_bomb_is_charged_as_invalid_and_passes(
    formats: Shop, caplog: pytest.LogCaptureFixture
) -> None:
    bomb = gzip.compress(b" " * (4 * limits.DECODED_FREE))
    messages = parts(JSON, [bomb], (b"content-encoding", b"gzip"))
    with caplog.at_level(logging.WARNING, "finomw"):
        assert call(formats, script(*messages)).messages == messages
    assert formats.ended() == (HOLD, UsageStatus.INVALID, "estimated: the hold", {})
    assert "rule chat: an answer could not be decoded" in caplog.text


def test_what_cannot_be_read_is_missing_and_said_once(
    formats: Shop, caplog: pytest.LogCaptureFixture
) -> None:
    messages = parts(SSE, [event(used(7))], (b"content-encoding", b"compress"))
    with caplog.at_level(logging.WARNING, "finomw"):
        middleware = formats.middleware(script(*messages))
        for _ in range(3):
            server = Server(None)
            run(serve(middleware, http_scope(token=formats.token), server))
            assert server.messages == messages
    assert [ended.usage for ended in formats.settled(calls=3)] == [UsageStatus.MISSING] * 3
    assert len(caplog.records) == 1


def test_a_rule_says_how_counts_come_together_and_what_ends_a_stream(formats: Shop) -> None:
    messages = parts(SSE, [event(used(3)), event(used(4)), b"data: [DONE]\n\n"])
    assert held_from(call(formats, script(*messages), "/summed"), messages) == 3
    more = parts(SSE, [event(used(3)), STOP, event({"type": "bye", **used(8)})])
    assert call(formats, script(*more), "/ended").messages == more
    assert [ended.charged for ended in formats.settled(calls=2)] == [7 * TOKEN, 8 * TOKEN]


def test_a_program_that_takes_an_array_keeps_it_whole(formats: Shop) -> None:
    messages = parts(JSON, [b"[{},", b"{},{}", b"]"])
    assert held_from(call(formats, script(*messages), "/rows"), messages) == 0
    assert formats.ended().counts == {"rows": 3}


ROWS = b'{"data":[' + b"0.125," * 20_000 + b"0.5],"


@pytest.mark.parametrize("step", [7000, 1_000_000])
def test_the_end_of_a_large_answer_tells_its_usage(formats: Shop, step: int) -> None:
    whole = ROWS + USED[1:]
    messages = parts(JSON, [whole[at : at + step] for at in range(0, len(whole), step)])
    server = call(formats, script(*messages), "/tail")
    assert held_from(server, messages) == len(messages) - 1
    assert formats.ended() == (7 * TOKEN, UsageStatus.KNOWN, "", {"tokens": 7})


def test_without_its_usage_at_the_end_a_large_answer_is_missing(formats: Shop) -> None:
    whole = b'{"usage":{"tokens":7},' + ROWS[1:] + b'"note":"\\",\\"usage\\":{\\"tokens\\":1}}"}'
    assert call(formats, script(*parts(JSON, [whole])), "/tail").body == whole
    assert formats.ended() == (HOLD, UsageStatus.MISSING, "estimated: the hold", {})


@pytest.mark.parametrize(
    ("kind", "row"), [(SSE, WORD), (LINES, b'{"a":1}\n'), (JSON, b'{"a":[{},"]"]},')]
)
def test_a_large_part_lets_others_run_while_it_is_read(
    formats: Shop, kind: bytes, row: bytes
) -> None:
    count = limits.MIB // len(row)
    end = {SSE: event(used(7)), LINES: USED, JSON: USED + b"]"}[kind]
    large = (b"[" if kind == JSON else b"") + row * count + end
    messages = [start(200, kind), body(large)]
    middleware = formats.middleware(script(*messages))
    turns = 0

    async def main() -> Server:
        async def others() -> None:
            nonlocal turns
            while True:
                turns += 1
                await asyncio.sleep(0)

        task = asyncio.create_task(others())
        server = Server(formats)
        await serve(middleware, http_scope(token=formats.token), server)
        task.cancel()
        return server

    assert run(main()).messages == messages
    assert formats.ended().charged == 7 * TOKEN
    assert turns >= len(large) // (64 * limits.KIB)


def test_a_slow_client_is_felt_by_the_app(formats: Shop) -> None:
    """A part is sent on before the app may make the next one: nothing is gathered."""
    sent: list[str] = []
    chunks = [WORD, event(used(7)), b"data: [DONE]\n\n"]
    messages = parts(SSE, chunks)

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        for message in messages:
            sent.append("made")
            await send(message)

    async def slow(message: Message) -> None:
        for _ in range(5):
            await asyncio.sleep(0)
        sent.append("gone")

    server = Server(formats)
    server.on_send = slow
    middleware = formats.middleware(app)
    run(serve(middleware, http_scope(token=formats.token), server))
    assert server.messages == messages
    assert sent == ["made", "gone"] * len(messages)
    assert customers.get_account(formats.engine, ALICE).held == 0
