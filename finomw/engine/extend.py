"""Explicit holds live on: what the public API asks for while work without a request goes on.

A request's hold ends with its call. One that belongs to no worker ends by its expiry, unless it is
moved first; and may be made larger with it, out of money, never out of quotas.
"""

from __future__ import annotations

from typing import NamedTuple

from finomw.engine import records
from finomw.engine.charge import Worst, checked, executed, only
from finomw.engine.engine import Engine
from finomw.money.funding import divide_more, uncovered
from finomw.store.env import Txn
from finomw.types import Counts, HoldId, Lsn, Micros, Refusal, UnixMicroseconds


class Extension(NamedTuple):
    """Until when an explicit hold lives at least, and for what; as in `HoldRequest`."""

    expires: UnixMicroseconds
    amount: Worst
    ceiling: Counts | None
    buffer: Micros


def extend(engine: Engine, hold: HoldId, extension: Extension) -> Lsn | Refusal:
    """Move an explicit hold's expiry and, with a ceiling, set more aside for it.

    What it has is never made less, and its quotas stay as they are: what is added is money.
    Raises `NotFound`, `InvalidValue`.
    """

    def decide(txn: Txn) -> records.Extend | Refusal:
        _, row, _ = engine.store.holds.need_explicit(txn, hold)
        now, ceiling = engine.clock.now(), extension.ceiling
        if ceiling is None:
            return records.Extend(
                now,
                hold,
                extension.expires,
                0,
                0,
                row.ceiling,
                row.counted,
                extension.buffer,
                row.used,
                row.others,
            )
        usage = engine.store.quotas.usage(txn, row.customer) if row.counted else None
        used = only(usage.used, tuple(row.counted)) if usage else {}
        held = only(usage.held, tuple(row.counted)) if usage else {}
        others = {meter: held[meter] - row.counted[meter] for meter in held}
        rest = uncovered(row.parts, ceiling)
        quota_money = sum(part.amount for part in row.parts.quotas if part.money)
        wanted = checked("hold", extension.amount(rest, used, others)) - quota_money
        account = engine.store.accounts.need(txn, row.customer)
        buffer = extension.buffer if account.buffer is None else account.buffer
        more = max(0, wanted - row.amount)
        divided = divide_more(account, buffer, row.parts.order, more)
        if isinstance(divided, Refusal):
            return divided
        counted = only(rest, tuple(row.counted))
        return records.Extend(
            now, hold, extension.expires, *divided, ceiling, counted, extension.buffer, used, others
        )

    done = engine.decide(decide)
    return done if isinstance(done, Refusal) else executed(done).end
