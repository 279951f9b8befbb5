"""What entries do to an account."""

from __future__ import annotations

import pytest

from finomw import limits
from finomw.errors import InvalidValue, InvariantBroken
from finomw.money.account import Account, After, after, apply, remaining_percent
from finomw.money.entries import Entry
from finomw.types import EntryKind, Fund, PlanName


def account(**fields: object) -> Account:
    return Account(PlanName("default"), 7, **fields)  # type: ignore[arg-type]


def entry(kind: EntryKind, amount: int, fund: Fund = Fund.WALLET) -> Entry:
    return Entry(kind, fund, amount, "test", "1", 9)


def test_a_grant_raises_the_balance_and_becomes_what_full_means() -> None:
    result = apply(account(balance=-5, blocked_at=3), entry(EntryKind.GRANT, 100))
    assert result == account(balance=95, credited_total=100, full=95, blocked_at=3)


def test_a_hold_moves_money_from_balance_to_held_and_its_release_moves_it_back() -> None:
    before = account(balance=100)
    during = apply(before, entry(EntryKind.HOLD, -30))
    assert during == account(balance=70, held=30)
    assert apply(during, entry(EntryKind.HOLD_RELEASE, 30)) == before


def test_a_settlement_is_spent() -> None:
    result = apply(account(balance=100, spent_total=1), entry(EntryKind.SETTLEMENT, -30))
    assert result == account(balance=70, spent_total=31)


def test_more_than_is_held_cannot_be_given_back() -> None:
    with pytest.raises(InvariantBroken, match="30 micros given back, but less is held"):
        apply(account(held=29), entry(EntryKind.HOLD_RELEASE, 30))


def test_a_refund_lowers_the_balance_and_is_not_spent() -> None:
    before = account(balance=5, credited_total=100, spent_total=95, full=100)
    result = apply(before, entry(EntryKind.REFUND, -30))
    assert result == account(balance=-25, credited_total=100, spent_total=95, full=100)


@pytest.mark.parametrize("fund", Fund)
@pytest.mark.parametrize("amount", [7, -7])
def test_an_adjustment_moves_nothing(fund: Fund, amount: int) -> None:
    before = account(balance=5, held=3, credit_used=4, credit_held=1)
    assert apply(before, entry(EntryKind.ADJUSTMENT, amount, fund)) == before


def test_credit_is_owed_when_it_is_used_and_less_when_it_is_paid() -> None:
    before = account(balance=9, credit_used=10, credit_held=2, credit_limit=50)
    held = apply(before, entry(EntryKind.HOLD, -30, Fund.CREDIT))
    assert held == account(balance=9, credit_used=40, credit_held=32, credit_limit=50)
    assert apply(held, entry(EntryKind.HOLD_RELEASE, 30, Fund.CREDIT)) == before
    settled = apply(before, entry(EntryKind.SETTLEMENT, -5, Fund.CREDIT))
    assert settled == account(
        balance=9, credit_used=15, credit_held=2, credit_limit=50, spent_total=5
    )
    paid = apply(before, entry(EntryKind.GRANT, 12, Fund.CREDIT))
    assert paid == account(balance=9, credit_used=-2, credit_held=2, credit_limit=50)
    assert apply(paid, entry(EntryKind.REFUND, -12, Fund.CREDIT)) == before
    with pytest.raises(InvariantBroken, match="3 micros given back, but less is held"):
        apply(before, entry(EntryKind.HOLD_RELEASE, 3, Fund.CREDIT))


@pytest.mark.parametrize(
    ("before", "kind", "amount", "field"),
    [
        ({"balance": limits.MICROS_MAX}, EntryKind.GRANT, 1, "balance"),
        ({"balance": -limits.MICROS_MAX}, EntryKind.SETTLEMENT, -1, "balance"),
        ({"held": limits.MICROS_MAX}, EntryKind.HOLD, -1, "held"),
        ({"credited_total": limits.MICROS_MAX}, EntryKind.GRANT, 1, "credited_total"),
        ({"spent_total": limits.MICROS_MAX}, EntryKind.SETTLEMENT, -1, "spent_total"),
    ],
)
def test_no_sum_leaves_the_range_of_money(
    before: dict[str, int], kind: EntryKind, amount: int, field: str
) -> None:
    with pytest.raises(InvalidValue, match=f"^{field}: "):
        apply(account(**before), entry(kind, amount))


@pytest.mark.parametrize(("used", "amount"), [(limits.MICROS_MAX, -1), (-limits.MICROS_MAX, 1)])
def test_what_is_owed_does_not_leave_the_range_of_money(used: int, amount: int) -> None:
    kind = EntryKind.SETTLEMENT if amount < 0 else EntryKind.GRANT
    with pytest.raises(InvalidValue, match=r"^credit_used: "):
        apply(account(credit_used=used), entry(kind, amount, Fund.CREDIT))


def test_after_is_what_a_record_carries() -> None:
    assert after(account(balance=1, held=2, blocked_at=3)) == After(1, 2, 3, 0, 0)
    assert after(account(balance=1, credit_used=4), 5) == After(1, 0, None, 4, 5)


@pytest.mark.parametrize(
    ("balance", "full", "percent"),
    [(0, 0, 0), (5, 0, 0), (-1, 100, 0), (0, 100, 0), (1, 1000, 0), (999, 1000, 99), (7, 7, 100)],
)
def test_what_is_left_is_a_whole_percentage_rounded_down(
    balance: int, full: int, percent: int
) -> None:
    assert remaining_percent(account(balance=balance, full=full)) == percent


def test_more_than_the_last_grant_left_is_still_a_hundred_percent() -> None:
    assert remaining_percent(account(balance=150, full=100)) == 100
