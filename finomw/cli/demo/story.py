"""What the demo does, and what has to be true of it.

Calls until the money is gone, a top-up, and calls again. After each call the ledger is asked, in
the same directory that the server writes to, what was charged. In the end the server is stopped
and everything is put to the proof; the demo has succeeded when every check holds.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Final, NamedTuple, TypeAlias

import httpx

from finomw.cli.demo import calls
from finomw.cli.demo.node import CUSTOMER, Node
from finomw.engine.ledger import ledger
from finomw.engine.verify import Verified, verify
from finomw.money.account import Account, remaining_percent
from finomw.money.entries import Entry
from finomw.money.micros import amount, to_usd
from finomw.types import Counts, EntryKind, Micros

GRANT: Final[Micros] = amount("0.01")
CALLS_MOST: Final = 100
"""More than the grant can pay for."""
CALLS_AFTER: Final = 5

_PAYMENT_REQUIRED: Final = 402
_OK: Final = 200
_ENTRIES_MOST: Final = 3 * (CALLS_MOST + CALLS_AFTER + 1)
"""A call leaves at most a hold, a release and a settlement."""

_QUESTIONS: Final = (
    "Who pays for this call?",
    "What is a hold?",
    "Where is the rest?",
    "Why no network hop?",
)


class Call(NamedTuple):
    """One call: what the client saw of it, and what the ledger has of it right after."""

    ask: calls.Ask
    seen: calls.Seen
    charged: Micros
    counted: Counts
    percent_left: int


class TopUp(NamedTuple):
    """A grant in micros, and what the customer then has left."""

    amount: Micros
    percent_left: int


Event: TypeAlias = Call | TopUp


class Check(NamedTuple):
    """Something that has to be true: what, and whether it is; ``detail`` says how it is not."""

    claim: str
    detail: str = ""

    @property
    def holds(self) -> bool:
        """Whether it is true."""
        return not self.detail


class Outcome(NamedTuple):
    """The end of the demo. ``flush_ns`` is what one flush of its disk takes, for comparison."""

    events: list[Event]
    account: Account
    entries: list[Entry]
    verified: Verified
    flush_ns: int
    checks: list[Check]

    @property
    def succeeded(self) -> bool:
        """Whether every check holds."""
        return all(check.holds for check in self.checks)


def tell(node: Node, show: Callable[[list[Event]], None]) -> Outcome:
    """Run the demo on a node; ``show`` is called after each event with all so far."""
    events: list[Event] = []
    trouble = ""
    client = calls.Client(node.server.url, node.token)
    try:
        for event in _events(node, client):
            events.append(event)
            show(events)
    except httpx.HTTPError as error:
        trouble = f"{type(error).__name__}: {error}"
    finally:
        client.close()
    node.server.stop()
    entries = [line.entry for line in ledger(node.engine, CUSTOMER, _ENTRIES_MOST)]
    verified = verify(node.engine)
    outcome = Outcome(events, node.account, entries[::-1], verified, node.flush_ns(), [])
    outcome.checks.append(Check("every call was answered", trouble))
    outcome.checks.extend(prove(outcome))
    return outcome


def _events(node: Node, client: calls.Client) -> Iterator[Event]:
    yield _top_up(node)
    asks = _asks()
    for ask in itertools.islice(asks, CALLS_MOST):
        call = _call(node, client, ask)
        yield call
        if call.seen.status != _OK:
            break
    yield _call(node, client, calls.HEALTH)
    yield _top_up(node)
    yield _call(node, client, ask)
    for ask in itertools.islice(asks, CALLS_AFTER - 1):
        yield _call(node, client, ask)


def _asks() -> Iterator[calls.Ask]:
    """Yield calls of all kinds, without end."""
    for question in itertools.cycle(_QUESTIONS):
        yield calls.chat("demo-small", question, max_tokens=64)
        yield calls.chat("demo-large", question, max_tokens=64, stream=True)
        yield calls.embeddings([question, "the customer", "the ledger"])
        yield calls.search(question)
        yield calls.HEALTH


def _top_up(node: Node) -> TopUp:
    node.grant(GRANT)
    return TopUp(GRANT, remaining_percent(node.account))


def _call(node: Node, client: calls.Client, ask: calls.Ask) -> Call:
    """Make a call, then read what it left in the ledger."""
    before = node.account.spent_total
    seen = client.make(ask)
    account = node.account
    charged = account.spent_total - before
    counted: Counts = {}
    for line in ledger(node.engine, CUSTOMER, 1):
        if charged and line.entry.call is not None:
            counted = line.entry.call.counts
    return Call(ask, seen, charged, counted, remaining_percent(account))


def prove(outcome: Outcome) -> Iterator[Check]:
    """Put everything that happened to the proof."""
    made = [event for event in outcome.events if isinstance(event, Call)]
    granted = sum(event.amount for event in outcome.events if isinstance(event, TopUp))
    settled = [-entry.amount for entry in outcome.entries if entry.kind is EntryKind.SETTLEMENT]
    seen = [call.seen.price for call in made if call.seen.price]
    account, verified = outcome.account, outcome.verified

    wrong = (_wrong_price(number, call) for number, call in enumerate(made, 1))
    yield Check(
        f"{len(seen)} calls were charged what their own counts cost",
        next(filter(None, wrong), "" if seen else "no call was charged"),
    )
    yield _check_refusal(made)
    yield _check_after_top_up(outcome.events)
    yield Check(
        f"the client reckons {to_usd(sum(seen))} USD, and so does the ledger, call by call",
        "" if seen == settled else f"the ledger has {to_usd(sum(settled))} USD",
    )
    total = sum(entry.amount for entry in outcome.entries)
    yield Check(
        f"the balance, {to_usd(account.balance)} USD, is the sum of {len(outcome.entries)} entries",
        _differs("the sum", total, account.balance)
        or _differs("granted minus charged", granted - sum(seen), account.balance),
    )
    left_open = f"open holds: {verified.open_holds}" if verified.open_holds else ""
    yield Check(
        f"the journal is whole, {verified.records} records, and no hold is left open",
        "; ".join(verified.faults) or left_open,
    )


def _wrong_price(number: int, call: Call) -> str:
    """Say how the ledger differs from what the client saw of a call."""
    if call.charged != call.seen.price:
        charged, price = to_usd(call.charged), to_usd(call.seen.price)
        return f"call {number}, {call.ask.name}: must cost {price} USD, was charged {charged} USD"
    if call.charged and call.counted != call.seen.counts:
        return f"call {number}, {call.ask.name}: used {call.seen.counts}, counted {call.counted}"
    return ""


def _check_refusal(made: list[Call]) -> Check:
    refused = [call for call in made if call.seen.status != _OK]
    claim = "when the money was gone the call got 402, exhausted, and cost nothing"
    if len(refused) != 1:
        return Check(claim, f"{len(refused)} calls were refused, not one")
    [call] = refused
    if (call.seen.status, call.seen.reason) != (_PAYMENT_REQUIRED, "exhausted"):
        return Check(claim, f"a call got {call.seen.status} {call.seen.reason}")
    return Check(claim, f"{to_usd(call.charged)} USD were charged" if call.charged else "")


def _check_after_top_up(events: list[Event]) -> Check:
    claim = "after the top-up the same call went through, and others"
    kinds = [type(event) for event in events]
    after = events[len(kinds) - kinds[::-1].index(TopUp) :] if kinds.count(TopUp) > 1 else []
    served = [event for event in after if isinstance(event, Call) and event.seen.status == _OK]
    return Check(claim, "" if len(served) == CALLS_AFTER else f"{len(served)} calls did")


def _differs(what: str, found: Micros, wanted: Micros) -> str:
    return "" if found == wanted else f"{what} is {to_usd(found)} USD"
