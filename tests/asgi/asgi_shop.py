"""A small shop for tests: a node, one customer, an app behind the middleware, a fake server."""

from __future__ import annotations

import asyncio
import atexit
import functools
import json
import shutil
import tempfile
from collections import Counter, deque
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import msgspec
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from finomw import limits
from finomw.asgi.middleware import FinoMiddleware
from finomw.config.load import parse
from finomw.config.model import Config
from finomw.engine import customers, grants, keys, ledger
from finomw.engine.directory import create
from finomw.engine.engine import Engine, close_engine, open_engine
from finomw.engine.sweep import sweep
from finomw.engine.verify import verify
from finomw.journal.files import Files
from finomw.money.entries import CALL_SOURCE, Entry
from finomw.types import CustomerId, EntryKind, PlanName, UsageStatus

ResultT = TypeVar("ResultT")

ALICE = CustomerId("alice")
BALANCE = 10_000_000
FLAT = 2_000
"""Micros of a flat call."""
TOKEN = 10
"""Micros of a token."""
HOLD = 100 * TOKEN
"""Micros that a metered call holds."""
PATIENCE = 10
"""Seconds after which a test takes a call for hung."""

CONFIG = """
data: node
buffer_usd: "0"
topup_url: https://example.com/billing
{top}
plans:
  default:
    prices:
      flat: {{requests: {{usd: "0.002"}}}}
      flat_errors: {{requests: {{usd: "0.002"}}}}
      chat: {{tokens: {{usd: "0.00001"}}}}
      chat_none: {{tokens: {{usd: "0.00001"}}}}
      chat_errors: {{tokens: {{usd: "0.00001"}}}}
      chat_small: {{tokens: {{usd: "0.00001"}}}}
      chat_settle: {{tokens: {{usd: "0.00001"}}}}
      asked: {{tokens: {{usd: "0.00001"}}}}
{prices}
routes:
  - {{match: GET /health, free: true}}
  - {{match: "GET,POST /flat", name: flat, meter: {{requests: 1}}}}
  - {{match: POST /flat_errors, name: flat_errors, meter: {{requests: 1}}, charge_errors: true}}
  - {{match: "GET,POST /chat", name: chat, meter: {{tokens: .usage.tokens}}, hold: {{tokens: 100}}}}
  - match: POST /chat_none
    name: chat_none
    meter: {{tokens: .usage.tokens}}
    hold: {{tokens: 100}}
    estimate: none
  - match: POST /chat_errors
    name: chat_errors
    meter: {{tokens: .usage.tokens}}
    hold: {{tokens: 100}}
    charge_errors: true
  - match: POST /chat_small
    name: chat_small
    meter: {{tokens: .usage.tokens}}
    hold: {{tokens: 100}}
    max_body: 64
  - match: POST /chat_settle
    name: chat_settle
    meter: {{tokens: .usage.tokens}}
    hold: {{tokens: 100}}
    on_crash: settle
  - match: "GET,POST /asked"
    name: asked
    meter: {{tokens: .usage.tokens}}
    hold: {{tokens: .max_tokens // 100}}
    max_request: 4096
{routes}
"""


def config_text(top: str = "", prices: str = "", routes: str = "") -> str:
    """Return the shop's YAML, with more options, prices and rules."""
    return CONFIG.format(top=top, prices=prices, routes=routes)


@functools.cache
def _parsed(text: str) -> Config:
    return parse(text, Path("/"))


def _config(text: str, directory: Path) -> Config:
    """Return a configuration whose node is in a directory; each text is read once."""
    return msgspec.structs.replace(_parsed(text), data=directory / "node")


@functools.cache
def _template() -> Path:
    """Return a node directory that was made and never opened; copies need no flushes."""
    path = Path(tempfile.mkdtemp(prefix="finomw-shop-")) / "node"
    atexit.register(shutil.rmtree, path.parent)
    create(path, limits.SEGMENT_SIZE_MIN, 8 * limits.MIB)
    return path


class Ended(NamedTuple):
    """What became of one call: micros charged, how its usage was known, and its note."""

    charged: int
    usage: UsageStatus | None
    note: str
    counts: dict[str, int]


class Shop:
    """A node directory with one customer, and everything a test asks about it."""

    def __init__(self, directory: Path, text: str = "", files: Files | None = None) -> None:
        self.directory = directory
        self.path = directory / "node"
        self.config = _config(text or config_text(), directory)
        self._files = files
        shutil.copytree(_template(), self.path)
        self.engine = self._open()
        customers.add_customer(self.engine, ALICE, PlanName("default"))
        grants.grant(self.engine, ALICE, BALANCE, "test", "first")
        self.token = keys.create_key(self.engine, ALICE).token
        self._middlewares: list[FinoMiddleware] = []

    def _open(self) -> Engine:
        return open_engine(self.path, files=self._files)

    def middleware(self, app: ASGIApp) -> FinoMiddleware:
        """Put the middleware around an app; it shares this shop's engine."""
        middleware = FinoMiddleware(app, self.config)
        self._middlewares.append(middleware)
        return middleware

    def close(self) -> None:
        """Close everything."""
        for middleware in self._middlewares:
            middleware.close()
        close_engine(self.engine)

    def restart(self) -> None:
        """Close everything and open again, as another process would."""
        self.close()
        self.reopen()

    def reopen(self) -> None:
        """Open again after `close`, with a disk that works, and end what was left open."""
        self._middlewares.clear()
        self._files = None
        self.engine = self._open()
        sweep(self.engine)

    @property
    def balance(self) -> int:
        return customers.get_account(self.engine, ALICE).balance

    def entries(self) -> list[Entry]:
        """Return the customer's ledger entries, oldest first."""
        rows = ledger.ledger(self.engine, ALICE, 1_000_000)
        return [row.entry for row in reversed(rows)]

    def open_holds(self) -> int:
        with self.engine.store.read() as txn:
            return len(list(self.engine.store.holds.items(txn)))

    def calls(self) -> list[Ended]:
        """Return how each call ended, oldest first, having proved that each ended once."""
        holds: Counter[str] = Counter()
        ended: dict[str, Ended] = {}
        for entry in self.entries():
            if entry.source != CALL_SOURCE:
                continue
            hold = entry.source_id.split("/")[0]
            holds[hold] += entry.amount if entry.kind is not EntryKind.SETTLEMENT else 0
            if entry.kind is EntryKind.HOLD_RELEASE:
                assert hold not in ended
                ended[hold] = Ended(0, None, entry.note, {})
            elif entry.kind is EntryKind.SETTLEMENT:
                # A hold of nothing has no entries of its own.
                assert hold not in ended or ended[hold].usage is None
                assert entry.call is not None
                usage = UsageStatus(entry.call.usage)
                ended[hold] = Ended(-entry.amount, usage, entry.note, entry.call.counts)
        assert set(holds) == set(ended)
        assert set(holds.values()) <= {0}
        return list(ended.values())

    def settled(self, calls: int = 1) -> list[Ended]:
        """Return how the calls ended: all of them, none open, and every sum right."""
        found = self.calls()
        assert len(found) == calls
        assert self.open_holds() == 0
        assert self.balance == sum(entry.amount for entry in self.entries())
        assert self.balance == BALANCE - sum(call.charged for call in found)
        assert verify(self.engine).faults == ()
        return found

    def ended(self) -> Ended:
        """Return how the one call ended."""
        [call] = self.settled()
        return call


class Sent(NamedTuple):
    """A message that left, and how far the ledger and the disk were at that moment."""

    message: Message
    tail: int
    durable: int
    ended: int
    """Calls that had ended."""


class Server:
    """Plays the ASGI server for one call."""

    def __init__(self, shop: Shop | None, parts: Sequence[bytes] = (b"",)) -> None:
        self._shop = shop
        last = len(parts) - 1
        self._requests = deque[Message](
            {"type": "http.request", "body": part, "more_body": index < last}
            for index, part in enumerate(parts)
        )
        self.sent: list[Sent] = []
        self.left = asyncio.Event()
        self.waiting = asyncio.Event()
        """Somebody waits for the client to leave."""
        self.on_send: Callable[[Message], Awaitable[None]] | None = None

    async def receive(self) -> Message:
        if self._requests:
            return self._requests.popleft()
        self.waiting.set()
        await self.left.wait()
        return {"type": "http.disconnect"}

    async def send(self, message: Message) -> None:
        if self.on_send is not None:
            await self.on_send(message)
        tail = durable = ended = 0
        if self._shop is not None and not self._shop.engine.control.failed:
            tail, durable = self._shop.engine.tail(), self._shop.engine.durable()
            kinds = Counter(entry.kind for entry in self._shop.entries())
            ended = kinds[EntryKind.HOLD_RELEASE]
        self.sent.append(Sent(message, tail, durable, ended))

    @property
    def messages(self) -> list[Message]:
        return [sent.message for sent in self.sent]

    @property
    def status(self) -> int:
        [status] = [m["status"] for m in self.messages if m["type"] == "http.response.start"]
        assert isinstance(status, int)
        return status

    @property
    def headers(self) -> dict[bytes, bytes]:
        return dict(self.messages[0]["headers"])

    @property
    def body(self) -> bytes:
        return b"".join(message.get("body", b"") for message in self.messages)

    @property
    def problem(self) -> dict[str, Any]:
        """The refusal that was sent, having proved that it is a well-formed one."""
        assert self.headers[b"content-type"] == b"application/problem+json"
        assert self.headers[b"content-length"] == b"%d" % len(self.body)
        problem: dict[str, Any] = json.loads(self.body)
        assert problem["status"] == self.status
        assert problem["type"] == f"urn:finomw:problem:{problem['reason']}"
        assert problem["title"]
        assert [message["type"] for message in self.messages] == [
            "http.response.start",
            "http.response.body",
        ]
        return problem


def http_scope(
    path: str = "/chat",
    method: str = "POST",
    token: str | None = None,
    headers: Iterable[tuple[bytes, bytes]] = (),
    **more: Any,
) -> Scope:
    """Make a scope by hand."""
    given = list(headers)
    if token is not None:
        given.append((b"authorization", b"Bearer " + token.encode()))
    return {
        "type": "http",
        "asgi": {"version": "3.0", "spec_version": "2.3"},
        "http_version": "1.1",
        "method": method,
        "scheme": "http",
        "path": path,
        "raw_path": path.encode(),
        "query_string": b"",
        "root_path": "",
        "headers": given,
        "client": ("127.0.0.1", 5),
        "server": ("127.0.0.1", 80),
        "state": {},
        **more,
    }


async def patiently(awaitable: Awaitable[ResultT]) -> ResultT:
    """Wait, but not for ever."""
    return await asyncio.wait_for(awaitable, PATIENCE)


async def serve(app: ASGIApp, scope: Scope, server: Server) -> Server:
    """Run one call through an app."""
    await patiently(app(scope, server.receive, server.send))
    return server


def run(main: Coroutine[Any, Any, ResultT]) -> ResultT:
    """Run a test's coroutine on a loop of its own."""
    return asyncio.run(main)


def call(shop: Shop, app: ASGIApp, path: str = "/chat", method: str = "POST") -> Server:
    """Run one call of the customer on a loop of its own; return what the server saw."""

    async def main() -> Server:
        scope = http_scope(path, method, shop.token)
        return await serve(shop.middleware(app), scope, Server(shop))

    return run(main())


def script(*messages: Message) -> ASGIApp:
    """Make an app that sends these messages, and proves that nobody changed them."""

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        for message in messages:
            before = {**message, "headers": list(message.get("headers", ()))}
            await send(message)
            assert {**message, "headers": list(message.get("headers", ()))} == before

    return app


def start(
    status: int = 200, kind: bytes | None = b"application/json", *more: tuple[bytes, bytes]
) -> Message:
    """Make the first message of an answer."""
    headers = [] if kind is None else [(b"content-type", kind)]
    return {"type": "http.response.start", "status": status, "headers": [*headers, *more]}


def body(data: bytes | bytearray | memoryview = b"", more: bool = False) -> Message:
    """Make a body message."""
    return {"type": "http.response.body", "body": data, "more_body": more}


def answer(document: object, status: int = 200) -> list[Message]:
    """Make a whole JSON answer."""
    return [start(status), body(json.dumps(document).encode())]


def used(tokens: object) -> dict[str, object]:
    """Make an answer that says what it used."""
    return {"text": "hello", "usage": {"tokens": tokens}}


SSE = b"text/event-stream; charset=utf-8"


def event(document: object) -> bytes:
    """Make one server-sent event."""
    return b"data: " + json.dumps(document).encode() + b"\n\n"


DONE = b"data: [DONE]\n\n"


def stream(*chunks: bytes, empty_last: bool = True) -> list[Message]:
    """Make a streamed answer as Starlette sends it: with an empty last message."""
    messages = [start(200, SSE), *(body(chunk, more=True) for chunk in chunks)]
    if empty_last:
        return [*messages, body()]
    messages[-1] = {**messages[-1], "more_body": False}
    return messages
