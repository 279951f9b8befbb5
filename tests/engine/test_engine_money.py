"""Blocking, refunds, expiry, adjustments, closing: what each moves, and what it leaves alone."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path

import nodes
import pytest
from msgspec.structs import replace
from nodes import ALICE, PLAN, entries_of, short

from finomw import limits
from finomw.engine import charge, customers, grants, keys, records
from finomw.engine.engine import Engine
from finomw.engine.reconcile import Difference, Reconciled, reconcile
from finomw.engine.sweep import expire_grants, sweep
from finomw.engine.verify import verify
from finomw.errors import Conflict, InvalidValue, InvariantBroken, NotFound
from finomw.journal.files import Files
from finomw.money.account import Account
from finomw.money.entries import Entry
from finomw.testing.clock import ManualClock
from finomw.types import CustomerId, EntryKind, Fund, PlanName, Refusal, Status

BOB = CustomerId("bob")
GIVEN = ("test", "first")
"""The grant of 1000 micros that alice begins with."""


def account(engine: Engine, customer: CustomerId = ALICE) -> Account:
    return customers.get_account(engine, customer)


def pass_time(engine: Engine, microseconds: int) -> int:
    """Let time pass; return the time then."""
    assert isinstance(engine.clock, ManualClock)
    engine.clock.advance(microseconds)
    return engine.clock.now()


def spend(engine: Engine, price: int) -> None:
    nodes.settle(engine, nodes.held(engine, price, buffer=10**6).hold, price)


# The block mark.


def test_the_mark_is_judged_on_what_is_free_and_held_together(engine: Engine) -> None:
    other, held = nodes.held(engine, 900), nodes.held(engine, 100)
    nodes.settle(engine, held.hold, 400)
    assert (account(engine).balance, account(engine).held) == (-300, 900)
    assert account(engine).blocked_at is None
    assert nodes.settle(engine, other.hold, 701).account.balance == -101
    assert account(engine).blocked_at == engine.clock.now()


def test_a_hold_that_reaches_below_zero_sets_no_mark(engine: Engine) -> None:
    nodes.held(engine, 1_500, buffer=500)
    assert (account(engine).balance, account(engine).blocked_at) == (-500, None)


def test_the_mark_stays_at_its_first_time_and_calls_under_way_finish(engine: Engine) -> None:
    first, second = nodes.held(engine, 10), nodes.held(engine, 20)
    blocked_at = pass_time(engine, 5)
    nodes.settle(engine, first.hold, 2_000)
    pass_time(engine, 5)
    assert nodes.hold(engine, 0) is Refusal.BLOCKED
    assert nodes.settle(engine, second.hold, 20).charged == 20
    grants.refund(engine, ALICE, 100, "test", "r", GIVEN)
    assert account(engine).balance == -1_120
    assert account(engine).blocked_at == blocked_at


def test_the_grant_that_brings_the_account_above_zero_clears_the_mark(engine: Engine) -> None:
    spend(engine, 1_050)
    grants.grant(engine, ALICE, 50, "test", "to zero")
    assert (account(engine).balance, account(engine).blocked_at is None) == (0, False)
    assert nodes.hold(engine, 0) is Refusal.BLOCKED
    grants.grant(engine, ALICE, 1, "test", "above")
    assert (account(engine).balance, account(engine).blocked_at) == (1, None)


def test_a_payment_of_the_credit_does_not_unblock_the_wallet(engine: Engine) -> None:
    spend(engine, 1_050)
    grants.pay(engine, ALICE, 500, "bank", "1")
    assert account(engine).blocked_at is not None


def test_a_refund_blocks_too_but_not_while_calls_hold_the_money(engine: Engine) -> None:
    held = nodes.held(engine, 1_000)
    grants.refund(engine, ALICE, 1_000, "test", "r", GIVEN)
    assert (account(engine).balance, account(engine).held) == (-1_000, 1_000)
    assert account(engine).blocked_at is None
    nodes.settle(engine, held.hold, 1)
    assert (account(engine).balance, account(engine).blocked_at is None) == (-1, False)


class Lenient:
    """Nobody is blocked before they owe 500, and a grant of anything helps."""

    def blocks(self, account: Account) -> bool:
        return account.balance + account.held <= -500

    def clears(self, account: Account) -> bool:
        return True


def test_who_is_blocked_is_a_policy_that_the_store_is_handed(path: Path) -> None:
    engine = Engine(path, ManualClock(), Files(), Lenient())
    customers.add_customer(engine, ALICE, PLAN)
    grants.grant(engine, ALICE, 100, "test", "first")
    spend(engine, 599)
    assert (account(engine).balance, account(engine).blocked_at) == (-499, None)
    grants.refund(engine, ALICE, 1, "test", "r", GIVEN)
    assert account(engine).blocked_at == engine.clock.now()
    grants.grant(engine, ALICE, 1, "test", "second")
    assert (account(engine).balance, account(engine).blocked_at) == (-499, None)
    engine.close()


# Suspension.


def test_a_suspension_is_no_grant_s_business(engine: Engine) -> None:
    held = nodes.held(engine, 100)
    customers.suspend(engine, ALICE, "chargeback")
    for amount in (0, 1):
        assert nodes.hold(engine, amount) is Refusal.SUSPENDED
    grants.grant(engine, ALICE, 5_000, "test", "much")
    assert account(engine).status is Status.SUSPENDED
    assert nodes.hold(engine, 1) is Refusal.SUSPENDED
    assert nodes.settle(engine, held.hold, 60).charged == 60
    with pytest.raises(Conflict, match="'alice' is suspended already"):
        customers.suspend(engine, ALICE, "again")
    customers.resume(engine, ALICE, "settled")
    assert nodes.held(engine, 1).amount == 1
    with pytest.raises(Conflict, match="'alice' is not suspended"):
        customers.resume(engine, ALICE, "again")


def test_suspension_and_block_mark_stand_apart(engine: Engine) -> None:
    spend(engine, 1_001)
    customers.suspend(engine, ALICE, "late")
    grants.grant(engine, ALICE, 100, "test", "2")
    assert (account(engine).blocked_at, account(engine).status) == (None, Status.SUSPENDED)
    spent = grants.refund(engine, ALICE, 1_000, "test", "r", GIVEN).account
    assert spent.blocked_at is not None
    customers.resume(engine, ALICE, "paid")
    assert nodes.hold(engine, 0) is Refusal.BLOCKED


# Refunds.


def test_a_refund_takes_the_stated_amount_whole_without_asking_the_buffer(engine: Engine) -> None:
    spend(engine, 900)
    before = account(engine)
    booked = grants.refund(engine, ALICE, 600, "stripe", "re_1", GIVEN, "disputed")
    assert booked == grants.Booked(
        replace(before, balance=-500, blocked_at=engine.clock.now()), repeated=False
    )
    assert (before.spent_total, before.credited_total, before.full) == (900, 1_000, 1_000)
    entry = entries_of(engine)[-1]
    assert (entry.kind, entry.fund, entry.amount) == (EntryKind.REFUND, Fund.WALLET, -600)
    assert (entry.source, entry.source_id) == ("stripe", "re_1")
    assert entry.note == "of test/first: disputed"


def test_a_refund_is_idempotent_by_its_own_name(engine: Engine) -> None:
    grants.refund(engine, ALICE, 400, "stripe", "re_1", GIVEN)
    again = grants.refund(engine, ALICE, 400, "stripe", "re_1", GIVEN)
    assert (again.repeated, again.account.balance) == (True, 600)
    grants.grant(engine, ALICE, 400, "test", "other")
    before = nodes.dump(engine)
    for amount, of, note, field in (
        (401, GIVEN, "", "amount"),
        (400, ("test", "other"), "", "note"),
        (400, GIVEN, "why", "note"),
    ):
        with pytest.raises(Conflict, match=f"stripe/re_1 was used before with {field} "):
            grants.refund(engine, ALICE, amount, "stripe", "re_1", of, note)
    with pytest.raises(Conflict, match="test/first was used before with kind "):
        grants.refund(engine, ALICE, 400, *GIVEN, GIVEN)
    with pytest.raises(Conflict, match="stripe/re_1 was used before with kind "):
        grants.grant(engine, ALICE, 400, "stripe", "re_1")
    assert nodes.dump(engine) == before


def test_all_refunds_of_a_grant_never_exceed_it(engine: Engine) -> None:
    grants.grant(engine, ALICE, 5_000, "test", "other")
    grants.refund(engine, ALICE, 700, "test", "r1", GIVEN)
    before = nodes.dump(engine)
    with pytest.raises(InvalidValue, match="amount: 301 micros is more than the 300 that refunds"):
        grants.refund(engine, ALICE, 301, "test", "r2", GIVEN)
    assert nodes.dump(engine) == before
    assert grants.refund(engine, ALICE, 300, "test", "r2", GIVEN).account.balance == 5_000
    with pytest.raises(InvalidValue, match="more than the 0 that"):
        grants.refund(engine, ALICE, 1, "test", "r3", GIVEN)
    with pytest.raises(NotFound, match="'alice' has no grant test/unknown"):
        grants.refund(engine, ALICE, 1, "test", "r3", ("test", "unknown"))


def test_a_payment_is_taken_back_from_the_credit(engine: Engine) -> None:
    grants.pay(engine, ALICE, 300, "bank", "1")
    after = grants.refund(engine, ALICE, 200, "bank", "back", ("bank", "1")).account
    assert (after.balance, after.credit_used, after.blocked_at) == (1_000, -100, None)
    with pytest.raises(InvalidValue, match="more than the 100 that"):
        grants.refund(engine, ALICE, 101, "bank", "more", ("bank", "1"))


def test_the_same_name_with_another_customer_is_another_entry(engine: Engine) -> None:
    customers.add_customer(engine, BOB, PLAN)
    assert not grants.grant(engine, BOB, 50, *GIVEN).repeated
    assert not grants.refund(engine, BOB, 20, "test", "r", GIVEN).repeated
    assert not grants.refund(engine, ALICE, 70, "test", "r", GIVEN).repeated
    assert (account(engine, BOB).balance, account(engine).balance) == (30, 930)


# Expiry.


def give(engine: Engine, amount: int, name: str, lasts: int) -> None:
    grants.grant(engine, ALICE, amount, "test", name, expires=engine.clock.now() + lasts)


def test_at_its_date_the_unspent_part_of_a_grant_is_taken_back(engine: Engine) -> None:
    give(engine, 100, "bonus", 50)
    spend(engine, 30)
    pass_time(engine, 49)
    assert expire_grants(engine) == 0
    pass_time(engine, 1)
    assert expire_grants(engine) == 1
    after = account(engine)
    assert (after.balance, after.spent_total, after.credited_total) == (1_000, 30, 1_100)
    assert (after.lots, after.blocked_at) == (0, None)
    entry = entries_of(engine)[-1]
    assert (entry.kind, entry.source, entry.amount) == (EntryKind.REFUND, "expiry", -70)
    assert entry.note == "of test/bonus"
    assert expire_grants(engine) == 0
    with pytest.raises(InvalidValue, match="more than the 30 that"):
        grants.refund(engine, ALICE, 31, "test", "r", ("test", "bonus"))
    assert grants.refund(engine, ALICE, 30, "test", "r", ("test", "bonus")).account.balance == 970


def test_the_next_call_finds_an_expired_grant_by_itself(engine: Engine) -> None:
    give(engine, 100, "bonus", 50)
    pass_time(engine, 50)
    assert nodes.hold(engine, 1_001) is Refusal.EXHAUSTED
    assert account(engine).balance == 1_000
    assert nodes.held(engine, 1_000).amount == 1_000


def test_charges_use_up_what_expires_soonest(engine: Engine) -> None:
    for name, lasts in (("late", 300), ("soon", 100), ("middle", 200)):
        give(engine, 100, name, lasts)
    spend(engine, 150)
    assert account(engine).lots == 2
    pass_time(engine, 100)
    assert expire_grants(engine) == 0
    pass_time(engine, 200)
    assert expire_grants(engine) == 2
    taken = [(e.note, e.amount) for e in entries_of(engine) if e.source == "expiry"]
    assert taken == [("of test/middle", -50), ("of test/late", -100)]
    assert account(engine).balance == 1_000


def test_expiry_takes_nothing_that_a_call_holds_until_the_call_has_ended(engine: Engine) -> None:
    give(engine, 100, "bonus", 50)
    held = nodes.held(engine, 1_050)
    pass_time(engine, 50)
    assert expire_grants(engine) == 0
    assert (account(engine).balance, account(engine).held, account(engine).lots) == (50, 1_050, 1)
    nodes.settle(engine, held.hold, 20)
    assert account(engine).balance == 1_080
    assert expire_grants(engine) == 1
    assert (account(engine).balance, account(engine).lots) == (1_000, 0)
    taken = [entry.amount for entry in entries_of(engine) if entry.source == "expiry"]
    assert taken == [-80]


def test_expiry_never_goes_below_zero(engine: Engine) -> None:
    give(engine, 500, "bonus", 50)
    grants.refund(engine, ALICE, 1_000, "test", "r", GIVEN)
    grants.grant(engine, ALICE, 10, "test", "small")
    spend(engine, 0)
    pass_time(engine, 50)
    held = nodes.held(engine, 10)
    assert (account(engine).balance, account(engine).lots) == (0, 0)
    charge.release(engine, held.hold)
    assert account(engine).balance == 10
    assert short(entries_of(engine))[-3:-1] == [("refund", "expiry", -500), ("hold", "call", -10)]


def test_a_refund_below_leaves_expiry_only_what_is_there(engine: Engine) -> None:
    give(engine, 500, "bonus", 50)
    spend(engine, 1_400)
    grants.refund(engine, ALICE, 90, "test", "r", GIVEN)
    assert account(engine).balance == 10
    pass_time(engine, 50)
    assert expire_grants(engine) == 0, "the charges had used it up"
    assert account(engine).balance == 10


def test_a_refund_of_an_expiring_grant_leaves_less_to_expire(engine: Engine) -> None:
    give(engine, 100, "bonus", 50)
    grants.refund(engine, ALICE, 60, "test", "r", ("test", "bonus"))
    assert account(engine).lots == 1
    pass_time(engine, 50)
    assert expire_grants(engine) == 1
    assert short(entries_of(engine))[-2:] == [("refund", "test", -60), ("refund", "expiry", -40)]
    give(engine, 100, "other", 50)
    grants.refund(engine, ALICE, 100, "test", "r2", ("test", "other"))
    assert account(engine).lots == 0


def test_what_was_owed_before_is_spent_of_an_expiring_grant(engine: Engine) -> None:
    held = nodes.held(engine, 900)
    spend(engine, 300)
    assert account(engine).balance == -200
    give(engine, 500, "bonus", 50)
    charge.release(engine, held.hold)
    pass_time(engine, 50)
    assert expire_grants(engine) == 1
    assert account(engine).balance == 700, "only what calls held was not spent"
    customers.add_customer(engine, BOB, PLAN)
    grants.grant(engine, BOB, 1, "test", "1")
    nodes.settle(engine, nodes.held(engine, 0, customer=BOB).hold, 301)
    expires = engine.clock.now() + 1
    grants.grant(engine, BOB, 500, "test", "2", expires=expires)
    grants.grant(engine, BOB, 100, "test", "3", expires=expires)
    pass_time(engine, 1)
    assert expire_grants(engine) == 2
    assert account(engine, BOB).balance == 0


def test_a_grant_that_pays_a_debt_only_has_nothing_to_expire(engine: Engine) -> None:
    spend(engine, 1_200)
    give(engine, 150, "bonus", 50)
    assert (account(engine).balance, account(engine).lots) == (-50, 0)
    pass_time(engine, 50)
    assert expire_grants(engine) == 0


def test_a_grant_s_date_belongs_to_its_content(engine: Engine) -> None:
    expires = engine.clock.now() + 50
    grants.grant(engine, ALICE, 100, "test", "bonus", expires=expires)
    assert grants.grant(engine, ALICE, 100, "test", "bonus", expires=expires).repeated
    for other in (None, expires + 1):
        with pytest.raises(Conflict, match=f"test/bonus was used before with expires {expires}, "):
            grants.grant(engine, ALICE, 100, "test", "bonus", expires=other)
    pass_time(engine, 50)
    assert grants.grant(engine, ALICE, 100, "test", "bonus", expires=expires).repeated
    for wrong in (expires, 0, -1, limits.INSTANT_MAX + 1, 1e15):
        with pytest.raises(InvalidValue, match=r"^expires: "):
            grants.grant(engine, ALICE, 100, "test", "late", expires=wrong)  # type: ignore[arg-type]
    with pytest.raises(InvalidValue, match="test/first does not expire now"):
        engine.execute(records.Expire(engine.clock.now(), ALICE, *GIVEN))


# Adjustments.


def corrupt(engine: Engine, **fields: int) -> None:
    with engine.store.write() as txn:
        row = engine.store.accounts.need(txn, ALICE)
        engine.store.accounts.put(txn, ALICE, replace(row, **fields))


@pytest.mark.parametrize(
    ("field", "fund", "found", "summed", "amount"),
    [
        ("balance", Fund.WALLET, 1_013, 990, 23),
        ("balance", Fund.WALLET, -5, 990, -995),
        ("balance", Fund.WALLET, limits.AMOUNT_MAX * 4, 990, limits.AMOUNT_MAX * 4 - 990),
        ("credit_used", Fund.CREDIT, -20, -7, 13),
        ("credit_used", Fund.CREDIT, 20, -7, -27),
    ],
)
def test_a_damaged_row_is_explained_once_and_never_moved(
    path: Path,
    engine: Engine,
    caplog: pytest.LogCaptureFixture,
    field: str,
    fund: Fund,
    found: int,
    summed: int,
    amount: int,
) -> None:
    nodes.held(engine, 10)
    grants.pay(engine, ALICE, 7, "bank", "1")
    corrupt(engine, **{field: found})
    before = account(engine)
    with caplog.at_level(logging.ERROR, "finomw"):
        done = reconcile(engine)
    assert done == Reconciled(1, (Difference(ALICE, fund, found, summed),), (), ())
    assert [record.getMessage() for record in caplog.records] == [
        "reconcile: an account of customer alice differed from its ledger on the fund "
        f"{fund.name.lower()}; one adjustment explains it"
    ]
    assert engine.health().alerts == 1
    assert account(engine) == before
    entry = entries_of(engine)[-1]
    assert (entry.kind, entry.fund, entry.amount) == (EntryKind.ADJUSTMENT, fund, amount)
    assert (entry.source, entry.note) == (
        "reconcile",
        f"found {found}, the ledger's sum was {summed}",
    )
    assert reconcile(engine) == Reconciled(1, (), (), ())
    assert (engine.health().alerts, verify(engine).faults) == (1, ())
    engine.flush()
    again = nodes.rebuilt(engine, path)
    assert verify(again).faults == ()
    again.close()


def test_a_difference_beyond_all_money_is_told_and_stops_nobody_else(
    engine: Engine, caplog: pytest.LogCaptureFixture
) -> None:
    customers.add_customer(engine, BOB, PLAN)
    corrupt(engine, balance=2**63)
    with engine.store.write() as txn:
        row = engine.store.accounts.need(txn, BOB)
        engine.store.accounts.put(txn, BOB, replace(row, balance=3))
    done = reconcile(engine)
    assert done.unexplained == (Difference(ALICE, Fund.WALLET, 2**63, 1_000),)
    assert done.differences == (Difference(BOB, Fund.WALLET, 3, 0),)
    assert engine.health().alerts == 2
    assert "customer alice: no entry explains it" in caplog.text
    assert account(engine).balance == 2**63


def test_a_row_that_was_mended_meanwhile_needs_no_entry(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    corrupt(engine, balance=1)
    decide = engine.decide

    def mend(command: Callable[..., records.Adjust]) -> object:
        corrupt(engine, balance=1_000)
        return decide(command)

    monkeypatch.setattr(engine, "decide", mend)
    assert reconcile(engine) == Reconciled(1, (), (), ())
    assert engine.health().alerts == 0


def test_reconciliation_tells_of_a_damaged_journal(
    engine: Engine, caplog: pytest.LogCaptureFixture
) -> None:
    damaged = engine.tail()
    nodes.held(engine, 5)
    file = engine.segments.at(0).file
    file.store(damaged + 30, bytes([file.load(damaged + 30, 1)[0] ^ 1]))
    [fault] = reconcile(engine).journal_faults
    assert f"the journal's chain ends at LSN {damaged}" in fault
    assert fault in caplog.text
    assert engine.health().alerts == 1


def test_nobody_else_adjusts_and_no_adjustment_is_without_a_note(engine: Engine) -> None:
    for source in ("call", "closing", "expiry", "reconcile"):
        with pytest.raises(InvalidValue, match=f"^source: '{source}' is kept"):
            grants.grant(engine, ALICE, 1, source, "1")
        with pytest.raises(InvalidValue, match=f"^source: '{source}' is kept"):
            grants.refund(engine, ALICE, 1, source, "1", GIVEN)
    before = nodes.dump(engine)
    with pytest.raises(InvariantBroken, match="a adjustment entry cannot have the amount 5"):
        engine.execute(records.Adjust(1, ALICE, Fund.WALLET, 5, 1_000, ""))
    assert nodes.dump(engine) == before


@pytest.mark.parametrize(
    ("kind", "amount"),
    [
        (EntryKind.GRANT, 0),
        (EntryKind.GRANT, -1),
        (EntryKind.HOLD, 0),
        (EntryKind.HOLD, 1),
        (EntryKind.HOLD_RELEASE, -1),
        (EntryKind.SETTLEMENT, 1),
        (EntryKind.REFUND, 0),
        (EntryKind.REFUND, 1),
        (EntryKind.ADJUSTMENT, 0),
    ],
)
def test_a_wrong_sign_is_refused_where_it_would_be_written(
    engine: Engine, kind: EntryKind, amount: int
) -> None:
    before = nodes.dump(engine)
    entry = Entry(kind, Fund.WALLET, amount, "test", "x", 1, "note")
    accounts = engine.store.accounts
    with (
        pytest.raises(InvariantBroken, match=f"a {kind.name.lower()} entry cannot have"),
        engine.store.write() as txn,
    ):
        accounts.post(txn, ALICE, accounts.need(txn, ALICE), [entry], 99, Lenient())
    assert nodes.dump(engine) == before


# Closing.


def test_what_is_left_at_closing_is_a_refund_and_what_is_owed_a_grant(engine: Engine) -> None:
    customers.set_terms(engine, ALICE, credit_limit=500)
    order = (Fund.CREDIT, Fund.WALLET)
    nodes.plan_call(engine, nodes.MICRO, {"n": 120}, nodes.terms(order=order))
    token = keys.create_key(engine, ALICE).token
    give(engine, 100, "bonus", 50)
    customers.delete_customer(engine, ALICE)
    closed = account(engine)
    assert (closed.balance, closed.credit_used, closed.status) == (0, 0, Status.CLOSED)
    assert (closed.plan, closed.lots, closed.spent_total) == ("", 0, 120)
    entries = entries_of(engine)[-2:]
    assert [(e.kind, e.fund, e.source, e.amount) for e in entries] == [
        (EntryKind.REFUND, Fund.WALLET, "closing", -1_100),
        (EntryKind.GRANT, Fund.CREDIT, "closing", 120),
    ]
    with pytest.raises(NotFound):
        keys.find_key(engine, token)
    assert nodes.hold(engine, 0) is Refusal.UNKNOWN_CUSTOMER
    assert verify(engine).faults == ()
    pass_time(engine, 50)
    assert expire_grants(engine) == 0


def test_a_debt_at_closing_is_granted(engine: Engine) -> None:
    spend(engine, 1_300)
    grants.pay(engine, ALICE, 40, "bank", "1")
    customers.delete_customer(engine, ALICE)
    entries = entries_of(engine)[-2:]
    assert [(e.kind, e.fund, e.source, e.amount) for e in entries] == [
        (EntryKind.GRANT, Fund.WALLET, "closing", 300),
        (EntryKind.REFUND, Fund.CREDIT, "closing", -40),
    ]
    assert (account(engine).balance, account(engine).credit_used) == (0, 0)


def test_an_account_at_zero_is_closed_by_its_journal_record_alone(
    path: Path, engine: Engine
) -> None:
    spend(engine, 1_000)
    count, tail = len(entries_of(engine)), engine.store.tail().number
    customers.delete_customer(engine, ALICE)
    assert (len(entries_of(engine)), engine.store.tail().number) == (count, tail + 1)
    again = nodes.rebuilt(engine, path)
    assert account(again).status is Status.CLOSED
    again.close()


def test_more_than_the_largest_amount_can_be_closed(engine: Engine) -> None:
    for number in range(3):
        grants.grant(engine, ALICE, limits.AMOUNT_MAX, "test", str(number))
    customers.delete_customer(engine, ALICE)
    assert entries_of(engine)[-1].amount == -3 * limits.AMOUNT_MAX - 1_000


def test_no_account_is_closed_while_calls_are_under_way(engine: Engine) -> None:
    held = nodes.held(engine, 0)
    before = nodes.dump(engine)
    with pytest.raises(Conflict, match="'alice' has 1 open holds; wait until its calls"):
        customers.delete_customer(engine, ALICE)
    assert nodes.dump(engine) == before
    charge.release(engine, held.hold)
    customers.delete_customer(engine, ALICE)


def test_a_closed_account_stays_closed(engine: Engine) -> None:
    customers.delete_customer(engine, ALICE)
    before = nodes.dump(engine)
    acts: list[Callable[[], object]] = [
        lambda: customers.delete_customer(engine, ALICE),
        lambda: grants.grant(engine, ALICE, 1, "test", "new"),
        lambda: grants.pay(engine, ALICE, 1, "test", "new"),
        lambda: grants.refund(engine, ALICE, 1, "test", "new", GIVEN),
        lambda: customers.suspend(engine, ALICE, "late"),
        lambda: customers.resume(engine, ALICE, "late"),
        lambda: customers.set_terms(engine, ALICE, credit_limit=5),
        lambda: customers.subscribe(engine, ALICE, PLAN, "UTC"),
        lambda: customers.unsubscribe(engine, ALICE),
        lambda: customers.change_plan(engine, ALICE, PlanName("other")),
        lambda: keys.create_key(engine, ALICE),
    ]
    for act in acts:
        with pytest.raises(Conflict, match="customer 'alice' is closed"):
            act()
    with pytest.raises(Conflict, match="'alice' exists already"):
        customers.add_customer(engine, ALICE, PLAN)
    quota = nodes.terms(nodes.units("free", 5, "n"))
    assert nodes.plan_hold(engine, nodes.MICRO, {"n": 1}, quota) is Refusal.UNKNOWN_CUSTOMER
    assert nodes.dump(engine) == before
    assert grants.grant(engine, ALICE, 1_000, *GIVEN).repeated


@pytest.mark.parametrize("in_two_steps", [False, True])
def test_erasing_removes_what_names_the_customer_and_keeps_the_sums_provable(
    path: Path, engine: Engine, in_two_steps: bool
) -> None:
    customers.add_customer(engine, BOB, PLAN, "Bob the Builder")
    grants.grant(engine, BOB, 70, "test", "1")
    keys.create_key(engine, BOB)
    if in_two_steps:
        customers.delete_customer(engine, BOB)
    customers.delete_customer(engine, BOB, erase=True)
    erased = account(engine, BOB)
    assert (erased.name, erased.status, erased.balance) == ("", Status.CLOSED, 0)
    assert (erased.credited_total, entries_of(engine, BOB)) == (70, [])
    assert verify(engine).faults == ()
    assert reconcile(engine) == Reconciled(2, (), (), ())
    with engine.store.read() as txn:
        assert list(engine.store.keys.items(txn)) == []
        assert engine.store.ledger.find(txn, BOB, "test", "1") is None
        assert engine.store.grants.get(txn, BOB, "test", "1") is None
    assert len(entries_of(engine)) == 1
    again = nodes.rebuilt(engine, path)
    again.close()


# Bounds.


@pytest.mark.parametrize("amount", [0, -1, limits.AMOUNT_MAX + 1, 5.0, True, "5"])
def test_an_amount_that_is_none_is_refused_by_its_field(engine: Engine, amount: int) -> None:
    before = nodes.dump(engine)
    acts: list[tuple[str, Callable[[], object]]] = [
        ("amount", lambda: grants.grant(engine, ALICE, amount, "test", "x")),
        ("amount", lambda: grants.pay(engine, ALICE, amount, "test", "x")),
        ("amount", lambda: grants.refund(engine, ALICE, amount, "test", "x", GIVEN)),
    ]
    if amount != 0:
        acts += [
            ("credit_limit", lambda: customers.set_terms(engine, ALICE, credit_limit=amount)),
            ("buffer", lambda: customers.set_terms(engine, ALICE, buffer=amount)),
            ("buffer", lambda: customers.add_customer(engine, BOB, PLAN, buffer=amount)),
        ]
    for field, act in acts:
        with pytest.raises(InvalidValue, match=f"^{field}: "):
            act()
    assert nodes.dump(engine) == before


@pytest.mark.parametrize(
    ("fields", "act", "field"),
    [
        (
            {"balance": limits.MICROS_MAX - 1},
            lambda engine: grants.grant(engine, ALICE, 2, "test", "x"),
            "balance",
        ),
        (
            {"credited_total": limits.MICROS_MAX - 1},
            lambda engine: grants.grant(engine, ALICE, 2, "test", "x"),
            "credited_total",
        ),
        (
            {"balance": 1 - limits.MICROS_MAX},
            lambda engine: grants.refund(engine, ALICE, 2, "test", "x", GIVEN),
            "balance",
        ),
        (
            {"credit_used": 1 - limits.MICROS_MAX},
            lambda engine: grants.pay(engine, ALICE, 2, "test", "x"),
            "credit_used",
        ),
        (
            {"spent_total": limits.MICROS_MAX - 1},
            lambda engine: nodes.settle(engine, nodes.held(engine, 2).hold, 2),
            "spent_total",
        ),
        ({"held": limits.MICROS_MAX - 1}, lambda engine: nodes.hold(engine, 2), "held"),
    ],
)
def test_a_sum_beyond_all_bounds_is_refused_and_nothing_is_written(
    engine: Engine, fields: dict[str, int], act: Callable[[Engine], object], field: str
) -> None:
    corrupt(engine, **fields)
    with pytest.raises(InvalidValue, match=f"^{field}: "):
        act(engine)
    after = account(engine)
    assert {name: getattr(after, name) for name in fields} == fields
    assert {kind: amount for kind, amount in counted(engine).items() if "hold" not in kind} == {
        "grant": 1
    }


def counted(engine: Engine) -> dict[str, int]:
    kinds = [kind for kind, _, _ in short(entries_of(engine))]
    return {kind: kinds.count(kind) for kind in kinds}


# The row of a hold.


def test_a_hold_is_kept_after_its_end_with_what_became_of_it(engine: Engine) -> None:
    settled, released, opened = (nodes.held(engine, 10) for _ in range(3))
    began = engine.clock.now()
    ended = pass_time(engine, 7)
    nodes.settle(engine, settled.hold, 4)
    charge.release(engine, released.hold)
    rows = [nodes.hold_row(engine, held.hold) for held in (settled, released, opened)]
    assert [(row.state.name, row.since, row.ended, row.charged, row.counts) for row in rows] == [
        ("SETTLED", began, ended, 4, {"requests": 1}),
        ("RELEASED", began, ended, 0, {}),
        ("OPEN", began, None, None, None),
    ]
    assert sweep(engine) == 0
