"""Postpaid: credit is used after the wallet, owed until it is paid, and invoiced to the micro."""

from __future__ import annotations

import nodes
import pytest
from nodes import ALICE, MICRO, entries_of, price_list, terms

from finomw.engine import charge, customers, grants
from finomw.engine.engine import Engine
from finomw.engine.invoice import Invoice, InvoiceLine, invoice
from finomw.errors import NotFound
from finomw.money.account import Account
from finomw.money.periods import Period
from finomw.testing.clock import ManualClock
from finomw.types import CustomerId, EntryKind, Fund, Refusal, RouteName

AFTER_WALLET = terms(order=(Fund.WALLET, Fund.CREDIT))
POSTPAID = terms(order=(Fund.CREDIT,))
FOREVER = Period(0, None)


def account(engine: Engine) -> Account:
    return customers.get_account(engine, ALICE)


def test_credit_is_used_when_the_wallet_is_empty_and_up_to_its_limit(engine: Engine) -> None:
    customers.set_terms(engine, ALICE, credit_limit=300)
    assert nodes.plan_call(engine, MICRO, {"n": 950}, AFTER_WALLET) == 950
    assert (account(engine).balance, account(engine).credit_used) == (50, 0)
    assert nodes.plan_call(engine, MICRO, {"n": 100}, AFTER_WALLET) == 100
    assert (account(engine).balance, account(engine).credit_used) == (0, 50)
    assert nodes.plan_hold(engine, MICRO, {"n": 251}, AFTER_WALLET) is Refusal.EXHAUSTED
    held = nodes.plan_hold(engine, MICRO, {"n": 250}, AFTER_WALLET)
    assert isinstance(held, charge.Held)
    assert nodes.plan_hold(engine, MICRO, {"n": 250}, AFTER_WALLET) is Refusal.HELD
    assert (account(engine).credit_used, account(engine).credit_held) == (300, 250)
    assert nodes.plan_settle(engine, held, MICRO, {"n": 240}) == 240
    assert (account(engine).credit_used, account(engine).credit_held) == (290, 0)
    assert account(engine).blocked_at is None
    assert account(engine).spent_total == 950 + 100 + 240


def test_a_settlement_of_two_funds_has_an_entry_for_each(engine: Engine) -> None:
    customers.set_terms(engine, ALICE, credit_limit=300)
    held = nodes.plan_hold(engine, MICRO, {"n": 1_200}, AFTER_WALLET)
    assert isinstance(held, charge.Held)
    nodes.plan_settle(engine, held, MICRO, {"n": 1_100})
    step = f"{held.hold}/1"
    assert [(e.fund, e.amount, e.source_id) for e in entries_of(engine)[1:]] == [
        (Fund.WALLET, -1_000, f"{step}/hold/wallet"),
        (Fund.CREDIT, -200, f"{step}/hold/credit"),
        (Fund.WALLET, 1_000, f"{step}/hold_release/wallet"),
        (Fund.CREDIT, 200, f"{step}/hold_release/credit"),
        (Fund.WALLET, -1_000, f"{step}/settlement/wallet"),
        (Fund.CREDIT, -100, f"{step}/settlement/credit"),
    ]


def test_without_a_limit_a_price_above_the_hold_is_the_wallet_s_and_blocks(
    engine: Engine,
) -> None:
    """Credit is the default plan's last source; who has none must not run it up unseen."""
    held = nodes.plan_hold(engine, MICRO, {"n": 10}, AFTER_WALLET)
    assert isinstance(held, charge.Held)
    nodes.plan_settle(engine, held, MICRO, {"n": 1_010})
    assert (account(engine).balance, account(engine).credit_used) == (-10, 0)
    assert account(engine).blocked_at is not None


def test_with_a_limit_a_price_above_the_hold_is_the_last_source_s(engine: Engine) -> None:
    customers.set_terms(engine, ALICE, credit_limit=50)
    held = nodes.plan_hold(engine, MICRO, {"n": 1_020}, AFTER_WALLET)
    assert isinstance(held, charge.Held)
    nodes.plan_settle(engine, held, MICRO, {"n": 1_100})
    assert (account(engine).balance, account(engine).credit_used) == (0, 100)
    assert account(engine).blocked_at is None
    assert nodes.plan_hold(engine, MICRO, {"n": 1}, AFTER_WALLET) is Refusal.EXHAUSTED


def test_a_payment_lowers_what_is_owed_and_is_no_top_up(engine: Engine) -> None:
    customers.set_terms(engine, ALICE, credit_limit=300)
    nodes.plan_call(engine, MICRO, {"n": 200}, POSTPAID)
    before = account(engine)
    done = grants.pay(engine, ALICE, 150, "bank", "1", "invoice 7")
    assert (done.repeated, done.account.credit_used) == (False, 50)
    assert (done.account.credited_total, done.account.full, done.account.balance) == (
        before.credited_total,
        before.full,
        before.balance,
    )
    assert grants.pay(engine, ALICE, 150, "bank", "1", "invoice 7").repeated
    entry = entries_of(engine)[-1]
    assert (entry.kind, entry.fund, entry.amount) == (EntryKind.GRANT, Fund.CREDIT, 150)
    assert isinstance(nodes.plan_hold(engine, MICRO, {"n": 250}, POSTPAID), charge.Held)


def test_a_lowered_limit_refuses_new_calls_only(engine: Engine) -> None:
    customers.set_terms(engine, ALICE, credit_limit=300)
    held = nodes.plan_hold(engine, MICRO, {"n": 300}, POSTPAID)
    customers.set_terms(engine, ALICE, credit_limit=100)
    assert isinstance(held, charge.Held)
    assert nodes.plan_settle(engine, held, MICRO, {"n": 200}) == 200
    assert nodes.plan_hold(engine, MICRO, {"n": 1}, POSTPAID) is Refusal.EXHAUSTED
    assert account(engine).buffer is None


def test_an_invoice_is_what_its_entries_are(engine: Engine) -> None:
    customers.set_terms(engine, ALICE, credit_limit=10_000)
    assert isinstance(engine.clock, ManualClock)
    start = engine.clock.now()
    search = RouteName("search")
    prices = price_list(n=10, b=1)
    for counts, route, choice in (
        ({"n": 3, "b": 1}, nodes.ROUTE, "small"),
        ({"n": 1}, search, ""),
        ({"b": 5}, nodes.ROUTE, "small"),
        ({"n": 2}, nodes.ROUTE, "large"),
        ({"n": 0}, search, ""),
    ):
        held = nodes.plan_hold(engine, prices, counts, POSTPAID, route=route, choice=choice)
        assert isinstance(held, charge.Held)
        nodes.plan_settle(engine, held, prices, counts)
    both = nodes.plan_hold(engine, prices, {"n": 110}, AFTER_WALLET)
    assert isinstance(both, charge.Held)
    nodes.plan_settle(engine, both, prices, {"n": 105})
    charge.release(engine, nodes.plan_hold(engine, prices, {"n": 9}, POSTPAID).hold)  # type: ignore[union-attr]
    grants.pay(engine, ALICE, 90, "bank", "1")
    grants.refund(engine, ALICE, 30, "bank", "back", ("bank", "1"))
    grants.grant(engine, ALICE, 500, "test", "wallet's own")
    engine.clock.advance(10)
    end = engine.clock.now()
    nodes.plan_call(engine, prices, {"n": 4}, POSTPAID)
    nodes.plan_hold(engine, prices, {"n": 7}, POSTPAID)
    made = invoice(engine, ALICE, Period(start, end))
    lines = (
        InvoiceLine(nodes.ROUTE, "", 1, {"n": 105}, 50),
        InvoiceLine(nodes.ROUTE, "large", 1, {"n": 2}, 20),
        InvoiceLine(nodes.ROUTE, "small", 2, {"b": 6, "n": 3}, 36),
        InvoiceLine(search, "", 1, {"n": 1}, 10),
    )
    owed = 116 + 40 - 90 + 30
    assert made == Invoice(ALICE, Period(start, end), lines, 116, 60, owed)
    settled = [
        -entry.amount
        for entry in entries_of(engine)
        if entry.kind is EntryKind.SETTLEMENT and entry.fund is Fund.CREDIT and entry.at < end
    ]
    assert made.total == sum(settled)
    later = invoice(engine, ALICE, Period(end, None))
    assert (later.total, later.paid, later.owed) == (40, 0, owed)
    assert invoice(engine, ALICE, FOREVER).total == 156


def test_an_invoice_of_nobody_is_not_found(engine: Engine) -> None:
    with pytest.raises(NotFound):
        invoice(engine, CustomerId("nobody"), FOREVER)
    assert invoice(engine, ALICE, FOREVER) == Invoice(ALICE, FOREVER, (), 0, 0, 0)
