"""The few values of a node that are no table: the journal's tail and the worker counter.

The tail moves in the transaction that applies the record, so LMDB and the journal can always be
compared: what is committed is exactly what lies before the tail.
"""

from __future__ import annotations

import struct

from finomw.journal.format import START, Tail
from finomw.store.env import Environment, Txn
from finomw.types import WorkerId

_TAIL = struct.Struct("<QQIQ")
_COUNTER = struct.Struct("<Q")
TABLE = "meta"
TAIL_KEY = b"tail"
_WORKERS_KEY = b"workers"


def decode_tail(value: bytes | memoryview | None) -> Tail:
    """Return the tail that a row says; none has been written where there is no record."""
    return START if value is None else Tail(*_TAIL.unpack(value))


class Meta:
    """Values kept under fixed names."""

    def __init__(self, env: Environment) -> None:
        self._table = env.table(TABLE)

    def tail(self, txn: Txn) -> Tail:
        """Return the committed tail of the journal."""
        return decode_tail(txn.get(TAIL_KEY, db=self._table))

    def set_tail(self, txn: Txn, tail: Tail) -> None:
        """Move the tail."""
        txn.put(TAIL_KEY, _TAIL.pack(*tail), db=self._table)

    def last_worker(self, txn: Txn) -> WorkerId:
        """Return the highest worker id given out, 0 before the first."""
        value = txn.get(_WORKERS_KEY, db=self._table)
        return WorkerId(0 if value is None else _COUNTER.unpack(value)[0])

    def set_last_worker(self, txn: Txn, worker: WorkerId) -> None:
        """Remember a worker id as given out."""
        txn.put(_WORKERS_KEY, _COUNTER.pack(worker), db=self._table)
