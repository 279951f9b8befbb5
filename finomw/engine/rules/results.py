"""What carrying out a command can come to.

An `After` or nothing stands in the journal; a refusal and a repetition are told to the caller and
leave no trace.
"""

from __future__ import annotations

from typing import NamedTuple, TypeAlias

from finomw.money.account import After
from finomw.store.ledger import LedgerRow
from finomw.types import Refusal


class Earlier(NamedTuple):
    """The command was carried out before; this is the ledger entry it made then."""

    row: LedgerRow


Result: TypeAlias = After | Refusal | Earlier | None
