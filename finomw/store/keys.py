"""Keys: the SHA-256 of a bearer token, and whose it is.

The token itself is never stored, so a look-up is by an exact hash: there is nothing to compare, and
nothing that a stolen directory could be used to call with.
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from finomw.errors import Conflict
from finomw.store.env import Environment, Txn
from finomw.types import CustomerId, KeyHash, UnixMicroseconds

_encode = msgspec.msgpack.Encoder().encode


class KeyRow(msgspec.Struct, frozen=True, array_like=True):
    """One key. ``last_four`` are the token's last characters, for people to tell keys apart."""

    customer: CustomerId
    created: UnixMicroseconds
    last_four: str
    name: str = ""
    revoked: UnixMicroseconds | None = None


_decode = msgspec.msgpack.Decoder(KeyRow).decode


class Keys:
    """Key rows by hash."""

    def __init__(self, env: Environment) -> None:
        self._table = env.table("keys")

    def get(self, txn: Txn, key: KeyHash) -> KeyRow | None:
        """Return the key with this hash."""
        row = txn.get(key, db=self._table)
        return None if row is None else _decode(row)

    def add(self, txn: Txn, key: KeyHash, row: KeyRow) -> None:
        """Write a new key; raises `Conflict` when the hash is known."""
        if not txn.put(key, _encode(row), db=self._table, overwrite=False):
            raise Conflict("this key exists already")

    def put(self, txn: Txn, key: KeyHash, row: KeyRow) -> None:
        """Write a key's row anew."""
        txn.put(key, _encode(row), db=self._table)

    def remove_all(self, txn: Txn, customer: CustomerId) -> int:
        """Remove a customer's keys; return how many."""
        mine = [key for key, row in self.items(txn) if row.customer == customer]
        for key in mine:
            txn.delete(key, db=self._table)
        return len(mine)

    def items(self, txn: Txn) -> Iterator[tuple[KeyHash, KeyRow]]:
        """Yield every key, in the order of the hashes."""
        for key, row in txn.cursor(db=self._table):
            yield KeyHash(bytes(key)), _decode(row)
