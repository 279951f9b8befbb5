"""Opening and closing: with the server's lifespan, without, on many loops; and what passes."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from pathlib import Path

import pytest
from asgi_shop import (
    TOKEN,
    Message,
    Server,
    Shop,
    answer,
    config_text,
    http_scope,
    patiently,
    run,
    script,
    serve,
    used,
)
from starlette.types import ASGIApp, Receive, Scope, Send

from finomw.asgi import middleware as middleware_module
from finomw.asgi.middleware import FinoMiddleware
from finomw.config.load import CONFIG_VARIABLE, parse
from finomw.errors import ConfigError, UnsupportedSystem

ANSWER = script(*answer(used(7)))
STARTUP: Message = {"type": "lifespan.startup"}
SHUTDOWN: Message = {"type": "lifespan.shutdown"}
COMPLETE = [{"type": "lifespan.startup.complete"}, {"type": "lifespan.shutdown.complete"}]


class Lifespan:
    """Plays the server's side of a lifespan."""

    def __init__(self) -> None:
        self.sent: list[Message] = []
        self.started = asyncio.Event()
        self.stopping = asyncio.Event()
        self._told = False

    async def receive(self) -> Message:
        if not self._told:
            self._told = True
            return STARTUP
        await self.stopping.wait()
        return SHUTDOWN

    async def send(self, message: Message) -> None:
        self.sent.append(message)
        self.started.set()


class Site:
    """An app with a lifespan of its own."""

    def __init__(self) -> None:
        self.heard: list[str] = []

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "lifespan":
            await ANSWER(scope, receive, send)
            return
        scope["state"]["pool"] = 5
        for message in COMPLETE:
            self.heard.append((await receive())["type"])
            await send(message)


def is_open(middleware: FinoMiddleware) -> bool:
    return middleware._serving._engine is not None


def test_a_lifespan_opens_before_the_app_and_closes_after_it(shop: Shop) -> None:
    async def main() -> None:
        site, lifespan = Site(), Lifespan()
        middleware = shop.middleware(site)
        scope: Scope = {"type": "lifespan", "asgi": {}, "state": {}}
        task = asyncio.ensure_future(middleware(scope, lifespan.receive, lifespan.send))
        await patiently(lifespan.started.wait())
        assert (site.heard, is_open(middleware)) == (["lifespan.startup"], True)
        assert scope["state"] == {"pool": 5}
        server = await serve(middleware, http_scope(token=shop.token), Server(shop))
        assert server.status == 200
        lifespan.stopping.set()
        await patiently(task)
        assert lifespan.sent == COMPLETE
        assert site.heard == ["lifespan.startup", "lifespan.shutdown"]
        assert not is_open(middleware)

    run(main())
    assert shop.ended().charged == 7 * TOKEN


def test_without_a_lifespan_the_first_call_opens(shop: Shop) -> None:
    async def main() -> None:
        middleware = shop.middleware(ANSWER)
        assert not is_open(middleware)
        for _ in range(3):
            await serve(middleware, http_scope(token=shop.token), Server(shop))
        assert is_open(middleware)

    run(main())
    shop.settled(calls=3)


def test_a_directory_that_cannot_be_opened_fails_the_start_in_one_line(tmp_path: Path) -> None:
    async def main() -> None:
        site, lifespan = Site(), Lifespan()
        middleware = FinoMiddleware(site, parse(config_text(), tmp_path))
        await middleware({"type": "lifespan", "state": {}}, lifespan.receive, lifespan.send)
        [failed] = lifespan.sent
        assert failed["type"] == "lifespan.startup.failed"
        assert failed["message"].startswith("finomw: ")
        assert str(tmp_path) in failed["message"]
        assert "\n" not in failed["message"]
        assert site.heard == []
        # Without a lifespan the call says so: never a free one.
        server = await serve(middleware, http_scope(token="fino_x"), Server(None))
        assert server.status == 503
        assert server.problem["reason"] == "cannot_record"

    run(main())


@pytest.mark.parametrize("raises", [True, False])
def test_an_app_that_knows_no_lifespan_is_served_all_the_same(shop: Shop, raises: bool) -> None:
    async def plain(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            await ANSWER(scope, receive, send)
        elif raises:
            raise NotImplementedError(scope["type"])

    async def main() -> None:
        middleware, lifespan = shop.middleware(plain), Lifespan()
        task = asyncio.ensure_future(
            middleware({"type": "lifespan"}, lifespan.receive, lifespan.send)
        )
        await asyncio.wait([task])
        assert type(task.exception()) is (NotImplementedError if raises else type(None))
        assert lifespan.sent == []
        server = await serve(middleware, http_scope(token=shop.token), Server(shop))
        assert server.status == 200

    run(main())
    assert shop.ended().charged == 7 * TOKEN


def test_closing_waits_for_the_last_call_under_way(shop: Shop) -> None:
    async def main() -> None:
        go, reached = asyncio.Event(), asyncio.Semaphore(0)

        async def slow(scope: Scope, receive: Receive, send: Send) -> None:
            reached.release()
            await go.wait()
            await ANSWER(scope, receive, send)

        middleware = shop.middleware(slow)
        calls = [
            asyncio.ensure_future(serve(middleware, http_scope(token=shop.token), Server(shop)))
            for _ in range(3)
        ]
        for _ in calls:
            await patiently(reached.acquire())
        middleware.close()
        assert is_open(middleware)
        go.set()
        assert {server.status for server in await asyncio.gather(*calls)} == {200}
        assert not is_open(middleware)
        # A server may call again, as one does whose lifespan is not supported.
        assert (await serve(middleware, http_scope(token=shop.token), Server(shop))).status == 200

    run(main())
    shop.settled(calls=4)


@pytest.mark.parametrize("kind", ["websocket", "made.up"])
def test_other_scopes_pass_untouched(shop: Shop, kind: str) -> None:
    async def main() -> None:
        seen: list[object] = []

        async def app(scope: Scope, receive: Receive, send: Send) -> None:
            seen.extend((scope, receive, send))

        scope, server = {"type": kind, "path": "/flat"}, Server(shop)
        await shop.middleware(app)(scope, server.receive, server.send)
        assert seen == [scope, server.receive, server.send]
        assert seen[0] is scope

    run(main())
    shop.settled(calls=0)


async def together(middleware: ASGIApp, shop: Shop, count: int) -> None:
    """Run calls at the same time."""
    calls = (serve(middleware, http_scope(token=shop.token), Server(None)) for _ in range(count))
    assert {server.status for server in await asyncio.gather(*calls)} == {200}


def test_one_middleware_serves_one_loop_after_another(shop: Shop) -> None:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await asyncio.sleep(0)
        await ANSWER(scope, receive, send)

    middleware = shop.middleware(app)
    for _ in range(2):
        asyncio.run(together(middleware, shop, 50))
    for _ in range(10):
        asyncio.run(together(middleware, shop, 1))
    shop.settled(calls=110)


def test_a_flush_in_a_thread_serves_one_loop_after_another(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a slow disk flushes run in a thread."""
    monkeypatch.setattr("finomw.engine.durable.INLINE_FLUSH_NS", -1)
    middleware = shop.middleware(ANSWER)
    for _ in range(3):
        asyncio.run(together(middleware, shop, 20))
    shop.settled(calls=60)


def test_two_middlewares_share_one_directory(shop: Shop) -> None:
    async def main() -> None:
        one, other = shop.middleware(ANSWER), shop.middleware(ANSWER)
        await asyncio.gather(together(one, shop, 10), together(other, shop, 10))
        one.close()
        await together(other, shop, 5)

    run(main())
    shop.settled(calls=25)


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_a_forked_child_opens_its_own_engine(shop: Shop) -> None:
    """A server that loads the app before it forks leaves nothing shared."""
    middleware = shop.middleware(ANSWER)
    run(together(middleware, shop, 2))
    child = os.fork()
    if not child:
        code = 1
        try:
            asyncio.run(together(middleware, shop, 3))
            middleware.close()
            code = 0
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    run(together(middleware, shop, 2))
    shop.settled(calls=7)


def test_the_configuration_is_a_path_a_value_or_the_environments(
    open_shop: Callable[..., Shop], monkeypatch: pytest.MonkeyPatch
) -> None:
    shop = open_shop()
    file = shop.directory / "fino.yaml"
    file.write_text(config_text())
    monkeypatch.setenv(CONFIG_VARIABLE, str(file))
    for config in (file, str(file), shop.config, None):
        middleware = FinoMiddleware(ANSWER, config)
        run(together(middleware, shop, 1))
        middleware.close()
    shop.settled(calls=4)


@pytest.mark.parametrize("value", [None, ""])
def test_no_configuration_is_an_error_that_says_what_to_do(
    monkeypatch: pytest.MonkeyPatch, value: str | None
) -> None:
    monkeypatch.delenv(CONFIG_VARIABLE, raising=False)
    if value is not None:
        monkeypatch.setenv(CONFIG_VARIABLE, value)
    with pytest.raises(ConfigError, match=f"pass config=..., or set {CONFIG_VARIABLE}"):
        FinoMiddleware(ANSWER)


def test_a_missing_file_is_an_error_that_names_it(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"nowhere\.yaml: cannot be read"):
        FinoMiddleware(ANSWER, tmp_path / "nowhere.yaml")


def test_whatever_only_compiling_finds_wrong_is_reported_at_once(tmp_path: Path) -> None:
    text = config_text(
        prices='      bad: {by: ".model |", "*": {n: {usd: "x"}, m: {usd: 0}}}\n',
        routes="  - {match: GET /bad, name: bad, meter: {n: '.a[', m: 1}, hold: {n: '.b['}}\n",
    ).replace('buffer_usd: "0"', 'buffer_usd: "-1"')
    with pytest.raises(ConfigError) as caught:
        FinoMiddleware(ANSWER, parse(text, tmp_path))
    paths = [problem.path for problem in caught.value.problems]
    assert paths[0] == "buffer_usd"
    assert any(path.endswith("meter.n") for path in paths)
    assert any(path.endswith("usd") and "bad" in path for path in paths)


def test_other_systems_are_refused(monkeypatch: pytest.MonkeyPatch, shop: Shop) -> None:
    def elsewhere() -> None:
        raise UnsupportedSystem("finomw runs on Linux only")

    monkeypatch.setattr(middleware_module, "require_linux", elsewhere)
    with pytest.raises(UnsupportedSystem):
        FinoMiddleware(ANSWER, shop.config)
