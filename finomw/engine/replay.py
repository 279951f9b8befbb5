"""Replay: rebuild the state from the journal, and prove every step.

Each record's command runs through the same rules as when it was made, and must reach the result
that the record carries. A difference means that the journal, the rules or the memory are not what
they were; it stops the start and is shown, because going on would invent or lose money.
"""

from __future__ import annotations

from itertools import islice

import msgspec

from finomw.engine import records
from finomw.engine.apply import Apply
from finomw.errors import FinomwError, ReplayDiffers
from finomw.journal.format import StoredRecord, Tail
from finomw.journal.reader import Reader
from finomw.store import Store
from finomw.store.env import StateFull, Txn

_BATCH = 32
"""Records a transaction. LMDB reuses a page that a transaction frees only after its commit, and
each hold that leaves its table empty frees one: long transactions overflow a small state."""


def replay(store: Store, apply: Apply, reader: Reader) -> int:
    """Apply every record that ``reader`` yields; return how many there were.

    Raises `ReplayDiffers`, and `RecordingFailed` where the state has to grow and cannot. The
    store's tail ends up behind the last record.
    """
    count = 0
    entries = iter(reader)
    while batch := list(islice(entries, _BATCH)):
        while not _redo_all(store, apply, batch, reader.tail):
            store.grow()
        count += len(batch)
    return count


def _redo_all(store: Store, apply: Apply, batch: list[StoredRecord], tail: Tail) -> bool:
    """Apply the records before ``tail`` in one transaction; ``False`` where the state is full."""
    try:
        with store.write() as txn:
            for number, record in enumerate(batch, start=tail.number - len(batch) + 1):
                _redo(txn, apply, record, number)
            store.meta.set_tail(txn, tail)
    except StateFull:
        return False
    return True


def _redo(txn: Txn, apply: Apply, record: StoredRecord, number: int) -> None:
    """Apply one record and compare."""
    try:
        command, expected = records.decode(record.body)
    except msgspec.MsgspecError as error:
        raise ReplayDiffers(record.lsn, f"the record cannot be read: {error}") from error
    try:
        result = apply(txn, command, number)
    except FinomwError as error:
        raise ReplayDiffers(record.lsn, f"{command}: {error}") from error
    if result != expected:
        raise ReplayDiffers(record.lsn, f"{command} gave {result}, but the record says {expected}")
