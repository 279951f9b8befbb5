"""A hold that is settled in steps: what was taken of its parts, and what they were and still are.

A step settles the price of the running total, divided among the hold's parts as if the call had
ended, less what the steps before it took. So nothing is divided anew, no rounding adds up, and
any number of steps takes from each source what one settlement of the last total takes. What was
taken is never given back: a total that falls takes nothing more.
"""

from __future__ import annotations

from msgspec.structs import replace

from finomw.money.funding import Parts, Spent
from finomw.types import Fund, Micros


def nothing_of(parts: Parts) -> Spent:
    """Return what no step has taken yet."""
    return Spent((0,) * len(parts.quotas), 0, 0, 0)


def whole(parts: Parts, spent: Spent) -> Parts:
    """Return what a hold was made of; ``parts`` is what it has after ``spent`` was taken."""
    wallet, credit = _within(parts, spent)
    quotas = zip(parts.quotas, spent.quotas, strict=True)
    return Parts(
        tuple(replace(part, amount=part.amount + used) for part, used in quotas),
        parts.wallet + wallet,
        parts.credit + credit,
        parts.order,
    )


def left(parts: Parts, spent: Spent) -> Parts:
    """Return what a whole hold still has when ``spent`` is taken of it."""
    wallet, credit = _within(parts, spent)
    quotas = zip(parts.quotas, spent.quotas, strict=True)
    return Parts(
        tuple(replace(part, amount=part.amount - used) for part, used in quotas),
        parts.wallet - wallet,
        parts.credit - credit,
        parts.order,
    )


def together(spent: Spent, total: Spent) -> Spent:
    """Return what is taken in the end: ``total``, but of no source less than was taken."""
    quotas = zip(spent.quotas, total.quotas, strict=True)
    return Spent(
        tuple(max(pair) for pair in quotas),
        max(spent.wallet, total.wallet),
        max(spent.credit, total.credit),
        max(spent.overrun, total.overrun),
    )


def beyond(spent: Spent, total: Spent) -> Spent:
    """Return what ``total`` takes more than ``spent``."""
    quotas = zip(spent.quotas, total.quotas, strict=True)
    return Spent(
        tuple(after - before for before, after in quotas),
        total.wallet - spent.wallet,
        total.credit - spent.credit,
        total.overrun - spent.overrun,
    )


def price_of(parts: Parts, spent: Spent) -> Micros:
    """Return the price that was divided into ``spent``: all of it that is money."""
    quotas = zip(parts.quotas, spent.quotas, strict=True)
    return sum(used for part, used in quotas if part.money) + spent.wallet + spent.credit


def _within(parts: Parts, spent: Spent) -> tuple[Micros, Micros]:
    """Return what was taken of a hold's money: without the overrun, which the last fund paid."""
    if spent.overrun and parts.order and parts.order[-1] is Fund.CREDIT:
        return spent.wallet, spent.credit - spent.overrun
    return spent.wallet - spent.overrun, spent.credit
