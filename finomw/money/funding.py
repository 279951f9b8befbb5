"""The funding walk: which source pays for a call, decided once at its hold.

Sources are walked in the plan's order: quotas first, then the wallet and the credit. A quota of
units covers as many of the call's counts as it has left, meter by meter in its own order; what it
leaves is priced. A quota of money covers as much of that price as it has left. The rest is money:
of the wallet, of the credit, or of both.

A hold remembers its parts. The settlement uses them in the same order, up to what each gave, and
the rest goes back to where it came from. So a call never uses what another one holds; a price
above the hold is paid by the last of the plan's money sources, without asking.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import msgspec
from msgspec.structs import replace

from finomw.money.account import Account
from finomw.types import Counts, Fund, Micros, Refusal, Status, UnixMicroseconds


class QuotaPart(msgspec.Struct, frozen=True, array_like=True):
    """What one quota gives to one hold: units, or micros for a quota of money.

    ``start`` names the quota's period: what goes back after that period ended is gone with it.
    """

    quota: str
    start: UnixMicroseconds
    meters: tuple[str, ...]
    money: bool
    amount: int


class Parts(msgspec.Struct, frozen=True, array_like=True):
    """What each source gives to one hold; ``order`` is that of the money sources."""

    quotas: tuple[QuotaPart, ...]
    wallet: Micros
    credit: Micros
    order: tuple[Fund, ...]

    @property
    def money(self) -> Micros:
        """Micros of wallet and credit together."""
        return self.wallet + self.credit


class Spent(NamedTuple):
    """What a settlement uses of a hold's parts, in their order; ``overrun`` is in the funds."""

    quotas: tuple[int, ...]
    wallet: Micros
    credit: Micros
    overrun: Micros


class Available(NamedTuple):
    """A quota that a call may use: how much it has left, and other calls hold of it."""

    quota: str
    start: UnixMicroseconds
    meters: tuple[str, ...]
    money: bool
    left: int
    held: int


def walk(
    account: Account,
    buffer: Micros,
    order: tuple[Fund, ...],
    quotas: Sequence[Available],
    ceiling: Counts,
    price: Callable[[Counts], Micros],
) -> Parts | Refusal:
    """Divide a call's worst case among its sources, or say why they do not cover it.

    ``price`` gives the worst price in micros of counts that no quota covers. ``HELD`` says that
    they would cover it, but for what is set aside for other calls in flight. Who has no credit
    limit has no credit: the wallet is then the last source, which may reach into its buffer.
    """
    if not account.credit_limit and Fund.WALLET in order:
        order = (Fund.WALLET,)
    parts = _parts(account, order, quotas, ceiling, price)
    refusal = admit(account, parts, buffer)
    if refusal is None:
        return parts
    if refusal is Refusal.EXHAUSTED:
        idle = replace(
            account,
            balance=account.balance + account.held,
            credit_used=account.credit_used - account.credit_held,
        )
        full = [quota._replace(left=quota.left + quota.held) for quota in quotas]
        if admit(idle, _parts(idle, order, full, ceiling, price), buffer) is None:
            return Refusal.HELD
    return refusal


def _parts(
    account: Account,
    order: tuple[Fund, ...],
    quotas: Sequence[Available],
    ceiling: Counts,
    price: Callable[[Counts], Micros],
) -> Parts:
    """Divide a call's worst case among its sources, whether or not the last has enough."""
    parts: list[QuotaPart] = []
    rest = ceiling
    for quota in quotas:
        if not quota.money:
            given, rest = cover(rest, quota.meters, quota.left)
            parts.append(_part(quota, given))
    amount = price(rest)
    for quota in quotas:
        if quota.money:
            given = min(amount, quota.left)
            amount -= given
            parts.append(_part(quota, given))
    used = tuple(part for part in parts if part.amount)
    wallet, credit = _divide(account, order, amount)
    return Parts(used, wallet, credit, order)


def cover(counts: Counts, meters: Sequence[str], units: int) -> tuple[int, Counts]:
    """Take up to ``units`` of the named meters out of ``counts``; return how many, and the rest."""
    rest = dict(counts)
    given = 0
    for meter in meters:
        taken = min(rest.get(meter, 0), units - given)
        if taken:
            rest[meter] -= taken
            given += taken
    return given, rest


def uncovered(parts: Parts, counts: Counts) -> Counts:
    """Return the counts that a hold's quotas of units leave to be priced."""
    rest = counts
    for part in parts.quotas:
        if not part.money:
            _, rest = cover(rest, part.meters, part.amount)
    return rest


def spend(parts: Parts, counts: Counts, price: Micros) -> Spent:
    """Say what a settlement uses of each part: ``price`` micros for what ``uncovered`` returns."""
    rest = counts
    quotas: list[int] = []
    for part in parts.quotas:
        if part.money:
            used = min(price, part.amount)
            price -= used
        else:
            used, rest = cover(rest, part.meters, part.amount)
        quotas.append(used)
    limits = {Fund.WALLET: parts.wallet, Fund.CREDIT: parts.credit}
    paid = {Fund.WALLET: 0, Fund.CREDIT: 0}
    for fund in parts.order:
        paid[fund] = min(price, limits[fund])
        price -= paid[fund]
    overrun = price
    if overrun:
        paid[parts.order[-1] if parts.order else Fund.WALLET] += overrun
    return Spent(tuple(quotas), paid[Fund.WALLET], paid[Fund.CREDIT], overrun)


def admit(account: Account, parts: Parts, buffer: Micros) -> Refusal | None:
    """Say why a hold with these parts may not be made, or ``None`` when it may.

    The wallet's part needs ``balance > 0`` and ``balance - part >= -buffer``: nobody starts on the
    buffer alone, and at most one call reaches into it. Where credit follows, the wallet gives what
    it has and the credit's part needs ``credit_used + part <= credit_limit``. A hold without a
    part of a source needs nothing of it.
    """
    if account.status is Status.CLOSED:
        return Refusal.UNKNOWN_CUSTOMER
    if account.status is Status.SUSPENDED:
        return Refusal.SUSPENDED
    if account.blocked_at is not None:
        return Refusal.BLOCKED
    wallet, credit = parts.wallet, parts.credit
    if wallet and (Fund.WALLET not in parts.order or account.balance <= 0):
        return Refusal.EXHAUSTED
    if wallet and account.balance - wallet < -buffer:
        return Refusal.EXHAUSTED
    if credit and account.credit_used + credit > account.credit_limit:
        return Refusal.EXHAUSTED
    return None


def divide_more(
    account: Account, buffer: Micros, order: tuple[Fund, ...], amount: Micros
) -> tuple[Micros, Micros] | Refusal:
    """Divide what a hold under way is extended by between wallet and credit, or say why not.

    An extension needs ``balance - part >= -buffer`` and no more: the work has begun.
    """
    wallet, credit = _divide(account, order, amount)
    if wallet and (Fund.WALLET not in order or account.balance - wallet < -buffer):
        return Refusal.EXHAUSTED
    if credit and account.credit_used + credit > account.credit_limit:
        return Refusal.EXHAUSTED
    return wallet, credit


def _divide(account: Account, order: tuple[Fund, ...], amount: Micros) -> tuple[Micros, Micros]:
    """Divide money between wallet and credit: the last source takes what those before leave."""
    if order == (Fund.WALLET, Fund.CREDIT):
        wallet = min(amount, max(account.balance, 0))
        return wallet, amount - wallet
    if order == (Fund.CREDIT, Fund.WALLET):
        credit = min(amount, max(account.credit_limit - account.credit_used, 0))
        return amount - credit, credit
    return (0, amount) if order == (Fund.CREDIT,) else (amount, 0)


def _part(quota: Available, amount: int) -> QuotaPart:
    return QuotaPart(quota.quota, quota.start, quota.meters, quota.money, amount)
