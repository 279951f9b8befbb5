"""Keys: a token is made here, returned once, and forgotten; only its SHA-256 is recorded.

Whoever reads the directory learns no token from it, and whoever loses a token needs another key.
"""

from __future__ import annotations

import hashlib
import secrets
from typing import NamedTuple

from finomw import limits
from finomw.engine import records
from finomw.engine.durably import durably
from finomw.engine.engine import Engine
from finomw.errors import Conflict, InvalidValue, NotFound
from finomw.money.entries import check_name
from finomw.store.keys import KeyRow
from finomw.types import CustomerId, KeyHash

TOKEN_PREFIX = "fino_"


class NewKey(NamedTuple):
    """A key just made, with the only copy of its token there will ever be."""

    token: str
    key: KeyHash


def hash_token(token: str) -> KeyHash:
    """Return under which hash a bearer token is known."""
    return KeyHash(hashlib.sha256(token.encode()).digest())


def create_key(engine: Engine, customer: CustomerId, name: str = "") -> NewKey:
    """Make a key for a customer, durably. Raises `NotFound`, `InvalidValue`."""
    if name:
        check_name("name", name, limits.NAME_BYTES)
    token = TOKEN_PREFIX + secrets.token_urlsafe(32)
    key = hash_token(token)
    durably(engine, records.CreateKey(engine.clock.now(), key, customer, token[-4:], name))
    return NewKey(token, key)


def revoke_key(engine: Engine, key: KeyHash) -> None:
    """Refuse a key from now on, durably. Raises `Conflict` when it was revoked before."""
    with engine.store.read() as txn:
        row = engine.store.keys.get(txn, key)
    if row is None:
        raise NotFound("this key does not exist")
    if row.revoked is not None:
        raise Conflict("this key was revoked before")
    durably(engine, records.RevokeKey(engine.clock.now(), key))


def find_key(engine: Engine, start: str) -> tuple[KeyHash, KeyRow]:
    """Return the one key whose hash begins with these hex digits, or whose token this is.

    Raises `NotFound`, `InvalidValue` where several keys begin so.
    """
    wanted = hash_token(start).hex() if start.startswith(TOKEN_PREFIX) else start.lower()
    with engine.store.read() as txn:
        found = [item for item in engine.store.keys.items(txn) if item[0].hex().startswith(wanted)]
    if not wanted or not found:
        raise NotFound(f"no key begins with {start[:12]!r}")
    if len(found) > 1:
        raise InvalidValue(f"key: {len(found)} keys begin with {start[:12]!r}; give more digits")
    return found[0]
