"""Nobody serves without a housekeeper."""

from __future__ import annotations

from asgi_shop import Server, Shop, answer, http_scope, run, script, serve, used


def test_who_cannot_keep_house_serves_nothing_until_that_is_possible(shop: Shop) -> None:
    lock = shop.path / "housekeeper.lock"
    lock.mkdir()
    middleware = shop.middleware(script(*answer(used(7))))

    async def main() -> list[int]:
        seen = []
        for _ in range(3):
            server = await serve(middleware, http_scope(token=shop.token), Server(shop))
            seen.append(server.messages[0]["status"])
            if lock.is_dir() and len(seen) == 2:
                assert middleware.health() is None
                lock.rmdir()
        return seen

    assert run(main()) == [503, 503, 200]
    assert middleware._serving._housekeeper is not None
    assert middleware._serving._housekeeper._thread.is_alive()
