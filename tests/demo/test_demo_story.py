"""The demo's proofs, each shown an outcome that is wrong in one way."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from finomw.cli.demo.story import Call, Outcome, TopUp, prove
from finomw.types import EntryKind

PRICES, REFUSAL, AFTER, RECKONING, BALANCE, JOURNAL = range(6)


def change_call(outcome: Outcome, name: str, change: Callable[[Call], Call]) -> Outcome:
    """Change the first call of this name."""
    events = list(outcome.events)
    for index, event in enumerate(events):
        if isinstance(event, Call) and event.ask.name == name:
            events[index] = change(event)
            break
    return outcome._replace(events=events)


def overcharged(outcome: Outcome) -> Outcome:
    return change_call(outcome, "embeddings", lambda call: call._replace(charged=call.charged + 1))


def miscounted(outcome: Outcome) -> Outcome:
    return change_call(
        outcome,
        "chat demo-small",
        lambda call: call._replace(counted={**call.counted, "output_tokens": 1}),
    )


def charged_for_free(outcome: Outcome) -> Outcome:
    return change_call(outcome, "health (free)", lambda call: call._replace(charged=1))


def never_refused(outcome: Outcome) -> Outcome:
    return outcome._replace(
        events=[
            event
            for event in outcome.events
            if not isinstance(event, Call) or event.seen.status == 200
        ]
    )


def refused_otherwise(outcome: Outcome) -> Outcome:
    return outcome._replace(
        events=[
            event._replace(seen=event.seen._replace(status=503, reason="cannot_record"))
            if isinstance(event, Call) and event.seen.status != 200
            else event
            for event in outcome.events
        ]
    )


def ended_after_top_up(outcome: Outcome) -> Outcome:
    last = max(i for i, event in enumerate(outcome.events) if isinstance(event, TopUp))
    return outcome._replace(events=outcome.events[: last + 1])


def never_topped_up(outcome: Outcome) -> Outcome:
    return outcome._replace(events=[e for e in outcome.events if not isinstance(e, TopUp)])


def settlement_lost(outcome: Outcome) -> Outcome:
    entries = list(outcome.entries)
    entries.remove(next(entry for entry in entries if entry.kind is EntryKind.SETTLEMENT))
    return outcome._replace(entries=entries)


def balance_off(outcome: Outcome) -> Outcome:
    account = type(outcome.account)(outcome.account.plan, 0, balance=outcome.account.balance + 1)
    return outcome._replace(account=account)


def hold_left_open(outcome: Outcome) -> Outcome:
    return outcome._replace(verified=outcome.verified._replace(open_holds=1))


def faulty(outcome: Outcome) -> Outcome:
    return outcome._replace(verified=outcome.verified._replace(faults=("the chain ends early",)))


def failing(outcome: Outcome) -> set[int]:
    return {index for index, check in enumerate(prove(outcome)) if not check.holds}


def test_every_claim_holds_for_the_real_outcome(outcome) -> None:
    assert failing(outcome) == set()
    assert outcome.succeeded


@pytest.mark.parametrize(
    ("spoil", "expected"),
    [
        (overcharged, {PRICES}),
        (miscounted, {PRICES}),
        (charged_for_free, {PRICES}),
        (never_refused, {REFUSAL}),
        (refused_otherwise, {REFUSAL}),
        (ended_after_top_up, {AFTER, RECKONING, BALANCE}),
        (never_topped_up, {AFTER, BALANCE}),
        (settlement_lost, {RECKONING, BALANCE}),
        (balance_off, {BALANCE}),
        (hold_left_open, {JOURNAL}),
        (faulty, {JOURNAL}),
    ],
)
def test_a_claim_that_is_not_true_fails(outcome, spoil, expected) -> None:
    assert failing(spoil(outcome)) == expected


def test_trouble_on_the_way_fails_the_demo(outcome) -> None:
    spoiled = outcome._replace(
        checks=[check._replace(detail="ReadTimeout: timed out") for check in outcome.checks[:1]]
    )
    assert not spoiled.succeeded
