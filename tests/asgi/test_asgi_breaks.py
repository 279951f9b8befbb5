"""What broke once between the first byte of a request and its hold."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from asgi_shop import ALICE, Server, Shop, answer, config_text, http_scope, run, script, serve, used
from starlette.types import Message

from finomw.engine import customers, keys
from finomw.types import PlanName

PLANS = """
  large:
    quotas:
      free: {meters: [tokens], units: 500, per: month}
    prices:
      asked: {tokens: {usd: "0.00001"}}
  small:
    quotas:
      free: {meters: [tokens], units: 5, per: month}
    prices:
      asked: {tokens: {usd: "0.00001"}}
"""


@pytest.fixture
def shop(open_shop: Callable[..., Shop]) -> Shop:
    return open_shop(config_text(prices=PLANS))


class Slow(Server):
    """A client whose body comes only after something else has happened."""

    def __init__(self, shop: Shop, happens: str, sent: bytes) -> None:
        super().__init__(shop, [sent])
        self._owner = shop
        self._happens = happens

    async def receive(self) -> Message:
        happens, self._happens = self._happens, ""
        if happens == "subscribe":
            customers.subscribe(self._owner.engine, ALICE, PlanName("large"), "UTC")
        elif happens == "revoke":
            keys.revoke_key(self._owner.engine, keys.hash_token(self._owner.token))
        return await super().receive()


def post(shop: Shop, happens: str, sent: bytes = b'{"max_tokens": 5000}') -> Server:
    app = shop.middleware(script(*answer(used(50))))
    return run(serve(app, http_scope("/asked", token=shop.token), Slow(shop, happens, sent)))


def test_a_plan_that_began_while_the_body_came_gives_its_own_quotas(shop: Shop) -> None:
    customers.subscribe(shop.engine, ALICE, PlanName("small"), "UTC")
    assert post(shop, "subscribe").status == 200
    with shop.engine.store.read() as txn:
        quota = shop.engine.store.quotas.get(txn, ALICE, "free")
    assert quota is not None
    assert (quota.units, quota.used) == (500, 50)
    assert shop.ended().charged == 0


@pytest.mark.parametrize("sent", [b'{"max_tokens": 5000}', b""])
def test_a_key_that_was_revoked_while_the_body_came_is_refused(shop: Shop, sent: bytes) -> None:
    assert post(shop, "revoke", sent).problem["reason"] == "unknown_key"
    shop.settled(calls=0)
