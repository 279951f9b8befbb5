"""Credit given and taken back, outside of calls: grants, payments, refunds.

Each is named by its source and source id, so that doing it twice does it once: a retry with the
same content gets the earlier result, with other content a `Conflict` that names the difference.
"""

from __future__ import annotations

from typing import NamedTuple

from finomw import limits
from finomw.engine import records
from finomw.engine.apply import Earlier
from finomw.engine.customers import get_account
from finomw.engine.durably import durably
from finomw.engine.engine import Engine
from finomw.errors import InvalidValue
from finomw.money.account import Account
from finomw.money.entries import check_amount, check_name
from finomw.types import CustomerId, Fund, Micros, UnixMicroseconds


class Booked(NamedTuple):
    """A grant, payment or refund: the account after it, and whether it had been booked before."""

    account: Account
    repeated: bool


def grant(
    engine: Engine,
    customer: CustomerId,
    amount: Micros,
    source: str,
    source_id: str,
    note: str = "",
    expires: UnixMicroseconds | None = None,
) -> Booked:
    """Give credit in micros, durably; what is unspent at ``expires`` is taken back then.

    Raises `NotFound`, `InvalidValue`, `Conflict`.
    """
    if expires is not None and (type(expires) is not int or not 0 < expires <= limits.INSTANT_MAX):
        raise InvalidValue(f"expires: {expires} is no time from 1970 to 9999")
    return _grant(engine, customer, amount, source, source_id, note, Fund.WALLET, expires)


def pay(
    engine: Engine,
    customer: CustomerId,
    amount: Micros,
    source: str,
    source_id: str,
    note: str = "",
) -> Booked:
    """Book a payment in micros of what is owed on the credit, durably. It is no top-up."""
    return _grant(engine, customer, amount, source, source_id, note, Fund.CREDIT, None)


def refund(
    engine: Engine,
    customer: CustomerId,
    amount: Micros,
    source: str,
    source_id: str,
    of: tuple[str, str],
    note: str = "",
) -> Booked:
    """Take back a grant, or a part of it, in micros, durably: the stated amount, whole.

    ``of`` is the grant's source and source id. The balance may go below zero and block. All
    refunds of a grant together never exceed it. Raises `NotFound`, `InvalidValue`, `Conflict`.
    """
    _check(amount, note)
    command = records.Refund(
        engine.clock.now(), customer, amount, source, source_id, of[0], of[1], note
    )
    done = durably(engine, command)
    return Booked(get_account(engine, customer), isinstance(done, Earlier))


def _grant(
    engine: Engine,
    customer: CustomerId,
    amount: Micros,
    source: str,
    source_id: str,
    note: str,
    fund: Fund,
    expires: UnixMicroseconds | None,
) -> Booked:
    _check(amount, note)
    command = records.Grant(
        engine.clock.now(), customer, amount, source, source_id, note, fund, expires
    )
    done = durably(engine, command)
    return Booked(get_account(engine, customer), isinstance(done, Earlier))


def _check(amount: Micros, note: str) -> None:
    check_amount("amount", amount, least=1)
    if note:
        check_name("note", note, limits.NOTE_BYTES)
