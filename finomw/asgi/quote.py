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
from finomw.asgi.rules import Rule
from finomw.errors import InvalidValue, quoted
from finomw.metering.documents import Document
from finomw.metering.estimate import Unestimable
from finomw.money.pricing import PriceList
from finomw.types import Counts, Micros, PlanName


class Quote(NamedTuple):
    """What a call may cost at most: ``amount`` micros for the counts in ``ceiling``."""

    prices: PriceList
    choice: str
    ceiling: Counts
    amount: Micros


def quote(rule: Rule, plan: PlanName, matched: Matched[Rule], request: bytes) -> Quote | Refused:
    """Price the worst case of a call, or say why it has no price. ``request`` is its body."""
    chooser = rule.choosers.get(plan)
    if chooser is None:
        return Refused("unpriced", f"The plan {quoted(plan)} has no prices for {rule.name}.")
    document = Document(request)
    if request and not request.isspace() and not document.valid:
        return Refused("invalid_request", "The request's body is not JSON.")
    choice = chooser.choose(document, matched.parameters)
    if choice.prices is None:
        found = quoted(choice.value) if choice.value else "a request that names none"
        return Refused("unpriced", f"{rule.name} has no price for {found}.")
    try:
        ceiling = rule.ceiling.counts(document)
        amount = choice.prices.price(ceiling)
    except Unestimable as error:
        return Refused("invalid_request", str(error))
    except InvalidValue:
        return Refused("invalid_request", "The request may use more than one call can cost.")
    return Quote(choice.prices, choice.value, ceiling, amount)
