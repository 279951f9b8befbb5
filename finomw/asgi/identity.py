"""Who is calling: the bearer token of a request, and the customer behind it.

Only the token's SHA-256 is looked up, so there is no comparison that could leak by its timing. A
request with more than one Authorization header is refused rather than guessed at: the app might
read the other one.
"""

from __future__ import annotations

import hashlib
from typing import NamedTuple

from starlette.types import Scope

from finomw import limits
from finomw.asgi.problems import Refused
from finomw.engine.engine import Engine
from finomw.money.account import Account
from finomw.types import CustomerId, KeyHash


class Caller(NamedTuple):
    """A known key, its customer, and the customer's account as it was when asked."""

    key: KeyHash
    customer: CustomerId
    account: Account


def bearer(scope: Scope) -> KeyHash | Refused:
    """Return the hash of the request's bearer token, or why there is none."""
    values = [value for name, value in scope["headers"] if name.lower() == b"authorization"]
    if not values:
        return Refused("no_key", "Send the header Authorization: Bearer <key>.")
    if len(values) > 1:
        return Refused("unknown_key", "The request has more than one Authorization header.")
    scheme, _, token = bytes(values[0]).strip().partition(b" ")
    token = token.strip()
    if scheme.lower() != b"bearer" or not token:
        return Refused("no_key", "The Authorization header is not of the form: Bearer <key>.")
    if len(token) > limits.TOKEN_BYTES or b" " in token:
        return Refused("unknown_key")
    return KeyHash(hashlib.sha256(token).digest())


def identify(engine: Engine, scope: Scope) -> Caller | Refused:
    """Return who makes a call, or why that is not known."""
    key = bearer(scope)
    if isinstance(key, Refused):
        return key
    store = engine.store
    with store.read() as txn:
        row = store.keys.get(txn, key)
        if row is None:
            return Refused("unknown_key")
        if row.revoked is not None:
            return Refused("unknown_key", "The key was revoked.")
        account = store.accounts.get(txn, row.customer)
    if account is None:
        return Refused("unknown_customer")
    return Caller(key, row.customer, account)
