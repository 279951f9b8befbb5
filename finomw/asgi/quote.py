"""The price step: the most a call may cost, before it is let in.

The ceiling is the worst case that the rule's ``hold`` finds in the request, priced by the
customer's plan. A call without a price is refused here, before the app does any work, and never
charged nothing by silence. A request that has to be read and is not JSON is refused as well: the
app may be able to read it (``NaN``, UTF-16), and would serve more than was held for.
"""

from __future__ import annotations

from typing import NamedTuple

from finomw.asgi.problems import Refused
from finomw.asgi.routes import Matched
from finomw.asgi.rules import PricedRule, Rule, SocketRule
from finomw.errors import InvalidValue, quoted
from finomw.metering.choosing import CompiledPlan, Mixed
from finomw.metering.documents import Document
from finomw.metering.estimate import Unestimable
from finomw.money.pricing import PriceList
from finomw.money.terms import Terms
from finomw.types import Counts, UnixMicroseconds


class Quote(NamedTuple):
    """By which prices and terms a call is held, for at most the counts in ``ceiling``."""

    prices: PriceList
    terms: Terms
    choice: str
    ceiling: Counts


def quote(
    rule: PricedRule,
    plan: CompiledPlan | None,
    matched: Matched[Rule] | Matched[SocketRule],
    document: Document,
    size: int,
    now: UnixMicroseconds,
) -> Quote | Refused:
    """Find the prices and the worst case of a call, or say why it has none.

    ``plan`` is the customer's, ``None`` where the configuration has none of its name; ``document``
    is the request as far as the rule reads it, ``size`` that of all of it in bytes.
    Raises `NotInline` where that may take long.
    """
    if plan is None:
        return Refused("unpriced", "The customer's plan has no prices.")
    if document.lost:
        return Refused("invalid_request", "The request takes too long to read.")
    if rule.reads_json and not document.blank and not document.strict:
        return Refused("invalid_request", "The request's body is not JSON.")
    try:
        choice = plan.choose(rule.name, document, matched.parameters, now)
    except Mixed as error:
        return Refused("invalid_request", f"Send them one by one: {error}.")
    if choice.prices is None:
        found = f" for {quoted(choice.value)}" if choice.value else ""
        return Refused("unpriced", f"The customer's plan has no price of {rule.name}{found}.")
    try:
        ceiling = rule.ceiling.counts(document, size)
        choice.prices.worst(ceiling, {}, {})
    except Unestimable as error:
        return Refused("invalid_request", str(error))
    except InvalidValue:
        return Refused("invalid_request", "The request may use more than one call can cost.")
    return Quote(choice.prices, plan.terms, choice.value, ceiling)
