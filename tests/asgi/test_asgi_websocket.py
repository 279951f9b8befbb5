"""WebSockets: who gets in, what counts, when it is charged, and what leaves first."""

from __future__ import annotations

import asyncio
import json
from collections import Counter, deque
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from asgi_shop import (
    ALICE,
    BALANCE,
    TOKEN,
    Ended,
    Message,
    Shop,
    config_text,
    http_scope,
    patiently,
    run,
)
from starlette.applications import Starlette
from starlette.routing import WebSocketRoute
from starlette.testclient import TestClient, WebSocketDenialResponse
from starlette.types import ASGIApp, Receive, Scope, Send
from starlette.websockets import WebSocket, WebSocketDisconnect

from finomw.config.load import parse
from finomw.engine import customers
from finomw.errors import CallEnded, ConfigError, RecordingFailed
from finomw.types import EntryKind, UsageStatus

MESSAGE, BYTE = 1_000, 2
TALK_HOLD = 5 * MESSAGE + 100 * TOKEN + 100 * BYTE
RULES = config_text(
    prices="""
      talk:
        messages: {usd: "0.001"}
        tokens: {usd: "0.00001"}
        size: {usd: "0.000002"}
      once: {connections: {usd: "0.002"}}
      total: {tokens: {usd: "0.00001"}}
      told: {pages: {usd: "0.001"}}
      room: {messages: {usd: "0.001"}}
""",
    routes="""
  - match: WS /talk
    name: talk
    receive: {messages: 1, size: bytes}
    send: {tokens: .usage.tokens}
    hold: {messages: 5, tokens: 100, size: 100}
  - {match: WS /once, name: once, meter: {connections: 1}}
  - match: WS /total
    name: total
    merge: last
    send: {tokens: .usage.tokens}
    hold: {tokens: 100}
    on_ceiling: finish
  - {match: WS /steps, name: total, send: {tokens: .n}, hold: {tokens: 100}, settle_every: 10 units}
  - match: WS /none
    name: total
    merge: max
    receive: {tokens: .n}
    send: {tokens: .n}
    hold: {tokens: 100}
    estimate: none
  - {match: WS /told, name: told, meter: {pages: app}, hold: {pages: 5}}
  - {match: "WS /rooms/{room}", name: room, receive: {messages: 1}, hold: {messages: 5}}
  - {match: "GET,WS /open", free: true}
""",
)


@pytest.fixture
def talks(tmp_path: Path) -> Iterator[Shop]:
    made = Shop(tmp_path, RULES)
    yield made
    made.close()


class Client:
    """Plays the server for one WebSocket, whose client sends some messages and then leaves."""

    def __init__(self, shop: Shop, *sends: str | bytes) -> None:
        self._shop = shop
        self.incoming: deque[Message] = deque([{"type": "websocket.connect"}])
        for each in sends:
            kind = "text" if isinstance(each, str) else "bytes"
            self.incoming.append({"type": "websocket.receive", kind: each})
        self.incoming.append({"type": "websocket.disconnect", "code": 1000})
        self.sent: list[Message] = []
        self.ended: list[int] = []
        """How many connections had been charged or released when each message left."""
        self.flushed: list[bool] = []

    async def receive(self) -> Message:
        return self.incoming.popleft()

    async def send(self, message: Message) -> None:
        engine = self._shop.engine
        self.sent.append(message)
        if not engine.control.failed:
            kinds = Counter(entry.kind for entry in self._shop.entries())
            self.ended.append(kinds[EntryKind.HOLD_RELEASE])
            self.flushed.append(engine.durable() == engine.tail())


def ws_scope(path: str, token: str | None, *extensions: str, **more: Any) -> Scope:
    scope = http_scope(path, "GET", token, **more)
    del scope["method"]
    scope["type"] = "websocket"
    scope["subprotocols"] = ["chat"]
    scope["extensions"] = {name: {} for name in extensions}
    return scope


def connect(shop: Shop, app: ASGIApp, scope: Scope, client: Client) -> None:
    async def main() -> None:
        await patiently(shop.middleware(app)(scope, client.receive, client.send))

    run(main())


def echo(*answers: object, close: bool = False) -> ASGIApp:
    """Make an app that answers each message with the next of these, until the client leaves."""

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        socket = WebSocket(scope, receive, send)
        await socket.accept()
        left = deque(answers)
        try:
            while left or not close:
                await socket.receive_text()
                await socket.send_json(left.popleft() if left else {})
        except WebSocketDisconnect:
            return
        await socket.close()

    return app


async def never(scope: Scope, receive: Receive, send: Send) -> None:
    raise AssertionError("the app was called")


def used(tokens: object) -> dict[str, object]:
    return {"usage": {"tokens": tokens}}


def test_messages_of_both_directions_are_counted(talks: Shop) -> None:
    client = Client(talks, "one", "zwölf", "three")
    app = echo(used(7), {"text": "no usage"}, used(3.0))
    connect(talks, app, ws_scope("/talk", talks.token), client)
    counts = {"messages": 3, "size": 3 + 6 + 5, "tokens": 10}
    price = 3 * MESSAGE + 14 * BYTE + 10 * TOKEN
    assert talks.ended() == (price, UsageStatus.KNOWN, "", counts)
    assert [message["type"] for message in client.sent] == ["websocket.accept"] + [
        "websocket.send"
    ] * 3
    assert json.loads(client.sent[1]["text"]) == used(7)
    assert client.ended == [0, 0, 0, 0]
    assert client.flushed[0]


def test_binary_messages_count_as_text_ones_do(talks: Shop) -> None:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        socket = WebSocket(scope, receive, send)
        await socket.accept()
        assert await socket.receive_bytes() == b"\xff\x00"
        await socket.send_bytes(json.dumps(used(4)).encode())
        await socket.send_bytes(b"\xff\xfe")
        await socket.close()

    connect(talks, app, ws_scope("/talk", talks.token), Client(talks, b"\xff\x00"))
    assert talks.ended().counts == {"messages": 1, "size": 2, "tokens": 4}


def test_the_apps_close_waits_for_the_charge(talks: Shop) -> None:
    client = Client(talks, "one")
    connect(talks, echo(used(7), close=True), ws_scope("/talk", talks.token), client)
    assert client.sent[-1]["type"] == "websocket.close"
    assert client.ended == [0, 0, 1]
    assert client.flushed[-1]
    assert talks.ended().charged == MESSAGE + 3 * BYTE + 7 * TOKEN


def test_where_nothing_was_summed_nothing_was_used(talks: Shop) -> None:
    connect(talks, echo(), ws_scope("/talk", talks.token), Client(talks))
    counts = {"messages": 0, "size": 0, "tokens": 0}
    assert talks.ended() == (0, UsageStatus.KNOWN, "", counts)


def test_a_total_is_the_last_and_missing_where_none_was_told(talks: Shop) -> None:
    scope = ws_scope("/total", talks.token)
    connect(talks, echo(used(5), used(9), {}), scope, Client(talks, "a", "b", "c"))
    connect(talks, echo({}), scope, Client(talks, "a"))
    known, missing = talks.settled(calls=2)
    assert known == (9 * TOKEN, UsageStatus.KNOWN, "", {"tokens": 9})
    assert missing == (100 * TOKEN, UsageStatus.MISSING, "estimated: the hold", {})


def test_what_is_no_count_makes_the_sum_unknown(talks: Shop) -> None:
    app = echo(used(5), used(-1))
    connect(talks, app, ws_scope("/talk", talks.token), Client(talks, "a", "b"))
    ended = talks.ended()
    assert (ended.charged, ended.usage) == (TALK_HOLD, UsageStatus.INVALID)


def test_what_is_unknown_may_be_free(talks: Shop) -> None:
    scope = ws_scope("/none", talks.token)
    connect(talks, echo({"n": 3}, {"n": 1}), scope, Client(talks, '{"n": 5}', "x"))
    connect(talks, echo({"n": "x"}), scope, Client(talks, "a"))
    both, free = talks.settled(calls=2)
    assert both == ((5 + 3) * TOKEN, UsageStatus.KNOWN, "", {"tokens": 8})
    assert free == (0, None, "usage invalid", {})


def test_a_flat_connection_costs_its_price_and_its_accept_waits_for_the_hold(talks: Shop) -> None:
    client = Client(talks, "a")
    connect(talks, echo({}, close=True), ws_scope("/once", talks.token), client)
    assert talks.ended() == (2_000, UsageStatus.KNOWN, "", {"connections": 1})
    assert client.flushed[0]


def test_a_path_parameter_and_a_mount_are_as_for_calls(talks: Shop) -> None:
    scope = ws_scope("/api/rooms/7", talks.token, root_path="/api")
    connect(talks, echo(), scope, Client(talks, "a"))
    assert talks.ended().charged == MESSAGE


def test_an_app_that_raises_is_charged_for_what_passed(talks: Shop) -> None:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        socket = WebSocket(scope, receive, send)
        await socket.accept()
        await socket.receive_text()
        raise RuntimeError("broken")

    with pytest.raises(RuntimeError, match="broken"):
        connect(talks, app, ws_scope("/talk", talks.token), Client(talks, "one"))
    assert talks.ended()[:2] == (MESSAGE + 3 * BYTE, UsageStatus.PARTIAL)


def test_an_app_that_raises_because_its_client_left_is_through(talks: Shop) -> None:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        socket = WebSocket(scope, receive, send)
        await socket.accept()
        while True:
            await socket.receive_text()

    with pytest.raises(WebSocketDisconnect):
        connect(talks, app, ws_scope("/talk", talks.token), Client(talks, "one"))
    assert talks.ended().usage is UsageStatus.KNOWN


def test_a_cancelled_connection_is_charged_for_what_passed(talks: Shop) -> None:
    waiting = asyncio.Event()

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        socket = WebSocket(scope, receive, send)
        await socket.accept()
        await socket.receive_text()
        waiting.set()
        await asyncio.sleep(3600)

    async def main() -> None:
        client = Client(talks, "one")
        scope = ws_scope("/talk", talks.token)
        task = asyncio.ensure_future(talks.middleware(app)(scope, client.receive, client.send))
        await patiently(waiting.wait())
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    run(main())
    assert talks.ended()[:2] == (MESSAGE + 3 * BYTE, UsageStatus.PARTIAL)


DENIAL = "websocket.http.response"


async def refuses(scope: Scope, receive: Receive, send: Send) -> None:
    await receive()
    if DENIAL in scope["extensions"]:
        await send({"type": f"{DENIAL}.start", "status": 418, "headers": []})
        await send({"type": f"{DENIAL}.body", "body": b"no"})
    else:
        await send({"type": "websocket.close", "code": 4000})


async def silent(scope: Scope, receive: Receive, send: Send) -> None:
    await receive()


@pytest.mark.parametrize("app", [refuses, silent])
@pytest.mark.parametrize("extensions", [(), (DENIAL,)])
@pytest.mark.parametrize("path", ["/talk", "/once"])
def test_a_connection_that_the_app_does_not_accept_is_free(
    talks: Shop, app: ASGIApp, extensions: tuple[str, ...], path: str
) -> None:
    client = Client(talks)
    connect(talks, app, ws_scope(path, talks.token, *extensions), client)
    assert talks.ended() == Ended(0, None, "the connection was not accepted", {})
    assert all(client.flushed)
    assert set(client.ended) <= {1}


REFUSALS = [
    (None, 401, "no_key"),
    ("unknown", 401, "unknown_key"),
    ("poor", 402, "exhausted"),
    ("suspended", 403, "suspended"),
]


@pytest.mark.parametrize(("who", "status", "reason"), REFUSALS)
@pytest.mark.parametrize("denial", [True, False])
def test_who_may_not_is_refused_before_the_app_hears_of_it(
    tmp_path: Path, who: str | None, status: int, reason: str, denial: bool
) -> None:
    shop = Shop(tmp_path, RULES.replace('usd: "0.001"}', 'usd: "9"}') if who == "poor" else RULES)
    if who == "suspended":
        customers.suspend(shop.engine, ALICE, "a test")
    token = shop.token if who in ("poor", "suspended") else who
    client = Client(shop)
    connect(shop, never, ws_scope("/talk", token, *([DENIAL] if denial else [])), client)
    if denial:
        head, body = client.sent
        assert (head["type"], head["status"]) == (f"{DENIAL}.start", status)
        assert dict(head["headers"])[b"content-type"] == b"application/problem+json"
        assert body["type"] == f"{DENIAL}.body"
        assert json.loads(body["body"])["reason"] == reason
        assert (status == 401) == (b"www-authenticate" in dict(head["headers"]))
    else:
        [close] = client.sent
        assert close == {"type": "websocket.close", "code": 1008, "reason": reason}
    shop.settled(calls=0)
    shop.close()


def test_a_client_that_left_before_it_was_refused_is_told_nothing(talks: Shop) -> None:
    client = Client(talks)
    client.incoming.popleft()
    connect(talks, never, ws_scope("/talk", None), client)
    assert client.sent == []


@pytest.mark.parametrize("path", ["/open", "/elsewhere", "/chat"])
def test_free_and_unmatched_websockets_pass_untouched(talks: Shop, path: str) -> None:
    client = Client(talks)
    scope = ws_scope(path, None)
    seen: list[object] = []

    async def app(*given: object) -> None:
        seen.extend(given)

    connect(talks, app, scope, client)
    assert seen == [scope, client.receive, client.send]
    assert seen[0] is scope
    assert "fino" not in scope["state"]
    talks.settled(calls=0)


def test_unmatched_websockets_are_refused_where_that_is_set(tmp_path: Path) -> None:
    shop = Shop(tmp_path, RULES.replace('buffer_usd: "0"', 'buffer_usd: "0"\nunmatched: refuse'))
    client = Client(shop)
    connect(shop, never, ws_scope("/elsewhere", shop.token, DENIAL), client)
    assert client.sent[0]["status"] == 404
    free = Client(shop)
    connect(shop, echo(close=True), ws_scope("/open", None), free)
    assert [message["type"] for message in free.sent] == ["websocket.accept", "websocket.close"]
    shop.close()


CUT = {
    "type": "websocket.close",
    "code": 1008,
    "reason": "The most that this connection may use was reached.",
}


def test_a_client_that_sends_too_much_is_cut_before_the_app_gets_it(talks: Shop) -> None:
    client = Client(talks, *"abcdefg")
    seen: list[str] = []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        socket = WebSocket(scope, receive, send)
        await socket.accept()
        while (message := await receive())["type"] == "websocket.receive":
            seen.append(message["text"])
        assert (message["type"], message["code"]) == ("websocket.disconnect", 1008)
        assert (await receive())["type"] == "websocket.disconnect"
        with pytest.raises(OSError, match="closed at its ceiling"):
            await send({"type": "websocket.send", "text": "more"})
        await send({"type": "websocket.close"})

    connect(talks, app, ws_scope("/talk", talks.token), client)
    assert "".join(seen) == "abcde"
    assert client.sent[-1] == CUT
    assert client.ended[-1] == 1
    assert client.flushed[-1]
    counts = {"messages": 5, "size": 5, "tokens": 0}
    assert talks.ended() == (
        5 * MESSAGE + 5 * BYTE,
        UsageStatus.KNOWN,
        "cut at the ceiling",
        counts,
    )


def test_a_message_that_is_too_large_is_not_counted(talks: Shop) -> None:
    client = Client(talks, "a" * 60, "b" * 60)
    connect(talks, echo(), ws_scope("/talk", talks.token), client)
    assert client.sent[-1] == CUT
    assert talks.ended().counts == {"messages": 1, "size": 60, "tokens": 0}


def test_an_app_that_used_too_much_is_cut_after_its_message(talks: Shop) -> None:
    client = Client(talks, *"abcd")
    app = echo(used(60), used(60), used(60))
    connect(talks, app, ws_scope("/talk", talks.token), client)
    kinds = [message["type"].removeprefix("websocket.") for message in client.sent]
    assert kinds == ["accept", "send", "send", "close"]
    assert client.sent[-1] == CUT
    ended = talks.ended()
    assert ended.charged == 2 * MESSAGE + 2 * BYTE + 100 * TOKEN
    assert ended.note == "cut at the ceiling"


def test_an_app_that_does_not_catch_the_cut_is_through_as_well(talks: Shop) -> None:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        socket = WebSocket(scope, receive, send)
        await socket.accept()
        while True:
            await socket.send_json(used(60))

    client = Client(talks)
    connect(talks, app, ws_scope("/talk", talks.token), client)
    assert client.sent[-1] == CUT
    assert talks.ended().charged == 100 * TOKEN


def test_a_rule_may_let_a_connection_finish(talks: Shop) -> None:
    scope = ws_scope("/total", talks.token)
    connect(talks, echo(used(60), used(160)), scope, Client(talks, "a", "b"))
    assert talks.ended().charged == 160 * TOKEN


def test_a_long_connection_is_settled_in_steps(talks: Shop) -> None:
    seen: list[int] = []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        socket = WebSocket(scope, receive, send)
        await socket.accept()
        for _ in range(4):
            await socket.send_json({"n": 6})
            seen.append(-sum(e.amount for e in talks.entries() if e.kind is EntryKind.SETTLEMENT))
        await socket.close()

    connect(talks, app, ws_scope("/steps", talks.token), Client(talks))
    assert seen == [0, 12 * TOKEN, 12 * TOKEN, 24 * TOKEN]
    assert talks.open_holds() == 0
    assert talks.balance == BALANCE - 24 * TOKEN


def test_the_app_adds_counts_until_it_returns(talks: Shop) -> None:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        socket = WebSocket(scope, receive, send)
        await socket.accept()
        assert socket.state.fino.customer == ALICE
        socket.state.fino.meter("pages", 1)
        assert (await socket.receive())["type"] == "websocket.disconnect"
        socket.state.fino.meter("pages", 2)

    connect(talks, app, ws_scope("/told", talks.token), Client(talks))
    assert talks.ended().charged == 3_000


def test_after_its_close_the_app_adds_nothing(talks: Shop) -> None:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        socket = WebSocket(scope, receive, send)
        await socket.accept()
        socket.state.fino.meter("pages", 1)
        await socket.close()
        with pytest.raises(CallEnded):
            socket.state.fino.meter("pages", 1)

    connect(talks, app, ws_scope("/told", talks.token), Client(talks))
    assert talks.ended().charged == 1_000


def test_what_the_app_added_beyond_the_ceiling_cuts_at_the_next_message(talks: Shop) -> None:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        socket = WebSocket(scope, receive, send)
        await socket.accept()
        socket.state.fino.meter("pages", 6)
        await socket.send_text("x")

    client = Client(talks)
    connect(talks, app, ws_scope("/told", talks.token), client)
    assert client.sent[-1] == CUT
    assert talks.ended().charged == 5_000


def test_a_failed_flush_refuses_the_handshake_and_cuts_a_connection(talks: Shop) -> None:
    async def fails(scope: Scope, receive: Receive, send: Send) -> None:
        socket = WebSocket(scope, receive, send)
        await socket.receive()
        talks.engine.control.fail()
        await socket.accept()
        with pytest.raises(RecordingFailed):
            await socket.send_text("x")

    client = Client(talks)
    connect(talks, fails, ws_scope("/talk", talks.token, DENIAL), client)
    assert client.sent[0]["status"] == 503
    refused = Client(talks)
    connect(talks, never, ws_scope("/talk", talks.token, DENIAL), refused)
    assert refused.sent[0]["status"] == 503


def test_the_test_client_sees_all_of_it(talks: Shop) -> None:
    async def serve(socket: WebSocket) -> None:
        await socket.accept("chat")
        await socket.send_json(used(len(await socket.receive_text())))
        await socket.close(3000)

    app = talks.middleware(Starlette(routes=[WebSocketRoute("/talk", serve)]))
    client = TestClient(app)
    headers = {"authorization": f"Bearer {talks.token}"}
    with client.websocket_connect("/talk", subprotocols=["chat"], headers=headers) as socket:
        assert socket.accepted_subprotocol == "chat"
        socket.send_text("1234567")
        assert socket.receive_json() == used(7)
        with pytest.raises(WebSocketDisconnect) as closed:
            socket.receive_text()
        assert closed.value.code == 3000
    with (
        pytest.raises(WebSocketDenialResponse) as denied,
        client.websocket_connect("/talk", headers={"authorization": "Bearer x"}),
    ):
        pass
    assert denied.value.status_code == 401
    assert denied.value.json()["reason"] == "unknown_key"
    assert talks.ended().charged == MESSAGE + 7 * BYTE + 7 * TOKEN


@pytest.mark.parametrize(
    ("rule", "problem"),
    [
        (
            "match: WS /a, name: a",
            "meter: expected at least one meter, here or in receive or send",
        ),
        (
            "match: WS /a, name: a, receive: {a: 1}",
            "hold.a: missing: how many at most may one connection use?",
        ),
        (
            "match: WS /a, name: a, meter: {a: 1}, hold: {a: 5}",
            "hold.a: the meter is always 1: it takes no hold",
        ),
        (
            "match: WS /a, name: a, meter: {a: 1}, send: {a: 1}",
            "send.a: the meter stands in meter as well: there it is one for each connection",
        ),
        (
            "match: WS /a, name: a, meter: {a: .x}, hold: {a: 5}",
            "meter.a: expected a whole number from 0 to 9007199254740992 or app (what is read "
            'from messages stands in receive or send), found ".x"',
        ),
        (
            "match: WS /a, name: a, send: {a: .x}, hold: {a: .max}",
            'hold.a: expected a whole number from 0 to 9007199254740992, found ".max"',
        ),
        (
            "match: WS /a, name: a, meter: {a: 1}, settle_every: 5s",
            "settle_every: the charge is fixed: leave this out",
        ),
        (
            'match: "GET,WS /a", name: a, meter: {a: 1}',
            "match: WS has to stand alone: a rule for WebSockets has other options",
        ),
        (
            "match: WS /a, name: a, meter: {a: 1}, max_body: 5",
            "max_body: unknown option; known here: match, free, name, meter, receive, send, "
            "splits, hold, merge, estimate, on_crash, overrun, settle_every, on_ceiling",
        ),
        (
            "match: GET /a, name: a, meter: {a: 1}, response: {transform: 5}",
            "response.transform: expected a jq program, found 5",
        ),
    ],
)
def test_what_is_wrong_with_a_rule_is_told(rule: str, problem: str) -> None:
    text = f'plans: {{default: {{prices: {{a: {{a: {{usd: "1"}}}}}}}}}}\nroutes: [{{{rule}}}]\n'
    with pytest.raises(ConfigError) as caught:
        parse(text, Path("/"))
    assert f"routes[0].{problem}" in [str(each) for each in caught.value.problems]
