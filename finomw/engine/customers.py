"""What an owner does: customers, their keys, and the credit they are given.

A token is made here, returned once, and forgotten: only its SHA-256 is recorded. A grant is named
by its source and source id, so that giving it twice gives it once.
"""

from __future__ import annotations

import hashlib
import secrets
from typing import NamedTuple

from finomw import limits
from finomw.engine import records
from finomw.engine.apply import Earlier
from finomw.engine.engine import Engine, Executed
from finomw.errors import Conflict, InvalidValue, InvariantBroken, NotFound
from finomw.money.account import Account
from finomw.money.entries import check_name
from finomw.store.keys import KeyRow
from finomw.store.ledger import LedgerRow
from finomw.types import CustomerId, KeyHash, Lsn, Micros, PlanName

TOKEN_PREFIX = "fino_"


class NewKey(NamedTuple):
    """A key just made, with the only copy of its token there will ever be."""

    token: str
    key: KeyHash


class Granted(NamedTuple):
    """A grant: the balance after it, and whether it had been given before."""

    balance: Micros
    repeated: bool
    end: Lsn


def hash_token(token: str) -> KeyHash:
    """Return under which hash a bearer token is known."""
    return KeyHash(hashlib.sha256(token.encode()).digest())


def add_customer(
    engine: Engine,
    customer: CustomerId,
    plan: PlanName,
    name: str = "",
    buffer: Micros | None = None,
) -> Lsn:
    """Create a customer with an empty account, durably. Raises `Conflict`, `InvalidValue`.

    ``buffer`` in micros replaces the configured default for this customer.
    """
    check_name("customer", customer, limits.CUSTOMER_ID_BYTES)
    check_name("plan", plan, limits.NAME_BYTES)
    if name:
        check_name("name", name, limits.NOTE_BYTES)
    if buffer is not None and not 0 <= buffer <= limits.AMOUNT_MAX:
        raise InvalidValue(f"buffer: {buffer} micros is not from 0 to {limits.AMOUNT_MAX}")
    command = records.AddCustomer(engine.clock.now(), customer, plan, name, buffer)
    return _durably(engine, engine.execute(command))


def create_key(engine: Engine, customer: CustomerId, name: str = "") -> NewKey:
    """Make a key for a customer, durably. Raises `NotFound`, `InvalidValue`."""
    if name:
        check_name("name", name, limits.NAME_BYTES)
    token = TOKEN_PREFIX + secrets.token_urlsafe(32)
    key = hash_token(token)
    command = records.CreateKey(engine.clock.now(), key, customer, token[-4:], name)
    _durably(engine, engine.execute(command))
    return NewKey(token, key)


def revoke_key(engine: Engine, key: KeyHash) -> Lsn:
    """Refuse a key from now on, durably. Raises `Conflict` when it was revoked before."""
    with engine.store.read() as txn:
        row = engine.store.keys.get(txn, key)
    if row is None:
        raise NotFound("this key does not exist")
    if row.revoked is not None:
        raise Conflict("this key was revoked before")
    return _durably(engine, engine.execute(records.RevokeKey(engine.clock.now(), key)))


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


def grant(
    engine: Engine,
    customer: CustomerId,
    amount: Micros,
    source: str,
    source_id: str,
    note: str = "",
) -> Granted:
    """Give credit, durably, once for each ``(source, source_id)`` of a customer.

    Raises `NotFound`, `InvalidValue`, and `Conflict` when the name stands for another grant.
    """
    if not 0 < amount <= limits.AMOUNT_MAX:
        raise InvalidValue(f"amount: {amount} micros is not from 1 to {limits.AMOUNT_MAX}")
    if note:
        check_name("note", note, limits.NOTE_BYTES)
    command = records.Grant(engine.clock.now(), customer, amount, source, source_id, note)
    done = engine.execute(command)
    end = _durably(engine, done)
    return Granted(get_account(engine, customer).balance, isinstance(done, Earlier), end)


def get_account(engine: Engine, customer: CustomerId) -> Account:
    """Return a customer's account. Raises `NotFound`."""
    with engine.store.read() as txn:
        return engine.store.accounts.need(txn, customer)


def ledger(engine: Engine, customer: CustomerId, limit: int) -> list[LedgerRow]:
    """Return up to ``limit`` of a customer's entries, newest first. Raises `NotFound`."""
    with engine.store.read() as txn:
        engine.store.accounts.need(txn, customer)
        rows = engine.store.ledger.newest_first(txn, customer)
        return [row for row, _ in zip(rows, range(limit), strict=False)]


def _durably(engine: Engine, done: object) -> Lsn:
    """Wait until what was done, or found done before, is on disk."""
    if not isinstance(done, Executed | Earlier):
        raise InvariantBroken(f"an owner's command came back as {done}")
    return engine.flush()
