"""What entries do to an account, and who may hold."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from finomw import limits
from finomw.errors import InvalidValue, InvariantBroken
from finomw.money.account import Account, After, admit, after, apply, remaining_percent
from finomw.money.entries import Entry
from finomw.types import EntryKind, Fund, PlanName, Refusal

AMOUNTS = st.integers(-2_000, 2_000)


def account(**fields: object) -> Account:
    return Account(PlanName("default"), 7, **fields)  # type: ignore[arg-type]


def entry(kind: EntryKind, amount: int) -> Entry:
    return Entry(kind, Fund.WALLET, amount, "test", "1", 9)


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
    with pytest.raises(InvariantBroken, match="30 micros given back, but only 29 are held"):
        apply(account(held=29), entry(EntryKind.HOLD_RELEASE, 30))


@pytest.mark.parametrize("kind", [EntryKind.REFUND, EntryKind.ADJUSTMENT])
def test_a_kind_without_a_rule_is_refused(kind: EntryKind) -> None:
    with pytest.raises(InvariantBroken, match=f"no rule applies a {kind.name.lower()} entry"):
        apply(account(balance=5), entry(kind, -1))


@pytest.mark.parametrize(
    ("before", "kind", "amount", "field"),
    [
        ({"balance": limits.MICROS_MAX}, EntryKind.GRANT, 1, "balance"),
        ({"balance": -limits.MICROS_MAX}, EntryKind.SETTLEMENT, -1, "balance"),
        ({"held": limits.MICROS_MAX}, EntryKind.HOLD, -1, "held"),
        ({"credited_total": limits.MICROS_MAX}, EntryKind.GRANT, 1, "total"),
        ({"spent_total": limits.MICROS_MAX}, EntryKind.SETTLEMENT, -1, "total"),
    ],
)
def test_no_sum_leaves_the_range_of_money(
    before: dict[str, int], kind: EntryKind, amount: int, field: str
) -> None:
    with pytest.raises(InvalidValue, match=f"^{field}: "):
        apply(account(**before), entry(kind, amount))


def test_after_is_what_a_record_carries() -> None:
    assert after(account(balance=1, held=2, blocked_at=3)) == After(1, 2, 3)


@pytest.mark.parametrize(
    ("fields", "amount", "buffer", "expected"),
    [
        ({"balance": 100}, 100, 0, None),
        ({"balance": 100}, 101, 0, Refusal.EXHAUSTED),
        ({"balance": 100}, 150, 50, None),
        ({"balance": 100}, 151, 50, Refusal.EXHAUSTED),
        ({"balance": 1}, 51, 50, None),
        ({"balance": 0}, 1, 50, Refusal.EXHAUSTED),
        ({"balance": -1}, 1, 50, Refusal.EXHAUSTED),
        ({"balance": 0}, 0, 0, None),
        ({"balance": -1}, 0, 0, None),
        ({"balance": 0, "held": 1}, 1, 0, Refusal.HELD),
        ({"balance": 40, "held": 60}, 100, 0, Refusal.HELD),
        ({"balance": 40, "held": 60}, 101, 0, Refusal.EXHAUSTED),
        ({"balance": -60, "held": 60}, 1, 100, Refusal.EXHAUSTED),
        ({"balance": 100, "blocked_at": 5}, 1, 0, Refusal.BLOCKED),
        ({"balance": 100, "blocked_at": 5}, 0, 0, Refusal.BLOCKED),
        ({"balance": 0, "held": 50, "blocked_at": 5}, 1, 0, Refusal.BLOCKED),
    ],
)
def test_who_may_hold(
    fields: dict[str, int], amount: int, buffer: int, expected: Refusal | None
) -> None:
    assert admit(account(**fields), amount, buffer) is expected


@given(
    balance=AMOUNTS, held=st.integers(0, 2_000), amount=AMOUNTS.map(abs), buffer=AMOUNTS.map(abs)
)
@settings(derandomize=True)
def test_what_is_admitted_never_reaches_below_the_buffer(
    balance: int, held: int, amount: int, buffer: int
) -> None:
    before = account(balance=balance, held=held)
    refusal = admit(before, amount, buffer)
    if refusal is None and amount:
        result = apply(before, entry(EntryKind.HOLD, -amount))
        assert result.balance >= -buffer
        assert before.balance > 0
        assert result.balance + result.held == balance + held
    if refusal is Refusal.HELD:
        assert admit(account(balance=balance + held), amount, buffer) is None
    if refusal is Refusal.EXHAUSTED:
        assert admit(account(balance=balance + held), amount, buffer) is Refusal.EXHAUSTED


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
