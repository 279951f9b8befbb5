"""The funding walk: what each source gives to a hold, who may have one, and what it then pays."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from finomw.money.account import Account
from finomw.money.funding import (
    Available,
    Parts,
    QuotaPart,
    Spent,
    admit,
    cover,
    divide_more,
    spend,
    uncovered,
    walk,
)
from finomw.types import Counts, Fund, Micros, PlanName, Refusal, Status

WALLET, CREDIT = Fund.WALLET, Fund.CREDIT
PREPAID, POSTPAID = (WALLET,), (CREDIT,)
MONEY = st.integers(0, 2_000)


def account(**fields: object) -> Account:
    return Account(PlanName("default"), 7, **fields)  # type: ignore[arg-type]


def units(name: str, left: int, *meters: str, held: int = 0) -> Available:
    return Available(name, 1, meters, money=False, left=left, held=held)


def micros(name: str, left: int, held: int = 0) -> Available:
    return Available(name, 1, (), money=True, left=left, held=held)


def ten_each(counts: Counts) -> Micros:
    return 10 * sum(counts.values())


def walked(
    of: Account,
    amount: Micros,
    *quotas: Available,
    buffer: Micros = 0,
    order: tuple[Fund, ...] = PREPAID,
) -> Parts | Refusal:
    return walk(of, buffer, order, quotas, {"n": amount}, lambda counts: counts["n"])


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
        ({"balance": 100, "status": Status.SUSPENDED}, 0, 0, Refusal.SUSPENDED),
        ({"balance": 100, "status": Status.SUSPENDED, "blocked_at": 5}, 0, 0, Refusal.SUSPENDED),
        ({"balance": 100, "status": Status.CLOSED}, 0, 0, Refusal.UNKNOWN_CUSTOMER),
    ],
)
@pytest.mark.parametrize("order", [PREPAID, (WALLET, CREDIT), (CREDIT, WALLET)])
def test_who_may_hold(
    fields: dict[str, int],
    amount: int,
    buffer: int,
    expected: Refusal | None,
    order: tuple[Fund, ...],
) -> None:
    """Without a credit limit there is no credit, whatever the plan's order says."""
    done = walked(account(**fields), amount, buffer=buffer, order=order)
    assert done == (expected or Parts((), amount, 0, PREPAID))


@pytest.mark.parametrize(
    ("fields", "amount", "order", "expected"),
    [
        ({"balance": 100}, 30, (WALLET, CREDIT), (30, 0)),
        ({"balance": 100}, 150, (WALLET, CREDIT), (100, 50)),
        ({"balance": 100}, 151, (WALLET, CREDIT), Refusal.EXHAUSTED),
        ({"balance": 0}, 50, (WALLET, CREDIT), (0, 50)),
        ({"balance": -5}, 50, (WALLET, CREDIT), (0, 50)),
        ({"balance": 0, "credit_used": 1}, 50, (WALLET, CREDIT), Refusal.EXHAUSTED),
        ({"balance": 0, "credit_used": 9, "credit_held": 9}, 50, (WALLET, CREDIT), Refusal.HELD),
        ({"balance": 10, "held": 90}, 140, (WALLET, CREDIT), Refusal.HELD),
        ({"balance": 10, "held": 90}, 60, (WALLET, CREDIT), (10, 50)),
        ({"balance": 100}, 30, (CREDIT, WALLET), (0, 30)),
        ({"balance": 100}, 150, (CREDIT, WALLET), (100, 50)),
        ({"balance": 100}, 170, (CREDIT, WALLET), (120, 50)),
        ({"balance": 100}, 171, (CREDIT, WALLET), Refusal.EXHAUSTED),
        ({"balance": 0, "credit_used": 80}, 1, (CREDIT, WALLET), Refusal.EXHAUSTED),
        ({"balance": 0}, 50, POSTPAID, (0, 50)),
        ({"balance": 100}, 51, POSTPAID, Refusal.EXHAUSTED),
        ({"balance": 100}, 1, (), Refusal.EXHAUSTED),
        ({"balance": 0}, 0, (), (0, 0)),
    ],
)
def test_the_money_sources_are_walked_in_the_plan_s_order(
    fields: dict[str, int],
    amount: int,
    order: tuple[Fund, ...],
    expected: Refusal | tuple[int, int],
) -> None:
    done = walked(account(credit_limit=50, **fields), amount, buffer=20, order=order)
    if isinstance(expected, tuple):
        assert done == Parts((), *expected, order)
    else:
        assert done is expected


def test_credit_alone_needs_a_limit() -> None:
    assert walked(account(balance=100), 1, order=POSTPAID) is Refusal.EXHAUSTED
    assert walked(account(balance=100), 0, order=POSTPAID) == Parts((), 0, 0, POSTPAID)


def test_a_quota_covers_as_much_as_it_can_and_the_rest_is_priced() -> None:
    quotas = [units("free", 25, "b", "a"), micros("gift", 60)]
    parts = walk(account(balance=500), 0, PREPAID, quotas, {"a": 20, "b": 10, "c": 5}, ten_each)
    free = QuotaPart("free", 1, ("b", "a"), False, 25)
    assert parts == Parts((free, QuotaPart("gift", 1, (), True, 60)), 40, 0, PREPAID)
    assert uncovered(parts, {"a": 20, "b": 10, "c": 5}) == {"a": 5, "b": 0, "c": 5}
    assert parts.money == 40


def test_a_quota_that_gives_nothing_is_no_part() -> None:
    done = walked(account(balance=5), 5, units("none", 0, "n"), units("other", 9, "m"))
    assert done == Parts((), 5, 0, PREPAID)


def test_what_quotas_cover_needs_no_money() -> None:
    for quota in (units("q", 7, "n"), micros("q", 7)):
        done = walked(account(balance=0), 7, quota, order=())
        assert isinstance(done, Parts)
        assert (done.quotas[0].amount, done.money) == (7, 0)
        assert walked(account(balance=0), 8, quota) is Refusal.EXHAUSTED


def test_a_quota_that_other_calls_hold_is_held_and_not_exhausted() -> None:
    for quota in (units("q", 2, "n", held=5), micros("q", 2, held=5)):
        assert walked(account(balance=0), 7, quota) is Refusal.HELD
        assert walked(account(balance=0), 8, quota) is Refusal.EXHAUSTED
        assert walked(account(balance=0, held=1), 8, quota) is Refusal.HELD


def test_meters_are_covered_in_the_quota_s_order() -> None:
    assert cover({"a": 5, "b": 5}, ("b", "a"), 7) == (7, {"a": 3, "b": 0})
    assert cover({"a": 5}, ("b", "a"), 7) == (5, {"a": 0})
    assert cover({"a": 5}, ("b",), 7) == (0, {"a": 5})


FREE = QuotaPart("free", 1, ("a", "b"), False, 10)
GIFT = QuotaPart("gift", 1, (), True, 30)


@pytest.mark.parametrize(
    ("counts", "price", "expected"),
    [
        ({"a": 12}, 20, Spent((10, 20), 0, 0, 0)),
        ({"a": 3, "b": 1}, 0, Spent((4, 0), 0, 0, 0)),
        ({}, 0, Spent((0, 0), 0, 0, 0)),
        ({"a": 20}, 100, Spent((10, 30), 50, 20, 0)),
        ({"a": 20}, 75, Spent((10, 30), 45, 0, 0)),
        ({"a": 20}, 120, Spent((10, 30), 50, 40, 0)),
        ({"a": 20}, 125, Spent((10, 30), 50, 45, 5)),
    ],
)
def test_a_settlement_uses_the_parts_in_their_order(
    counts: Counts, price: Micros, expected: Spent
) -> None:
    parts = Parts((FREE, GIFT), 50, 40, (WALLET, CREDIT))
    assert spend(parts, counts, price) == expected


def test_a_price_above_the_hold_is_paid_by_the_last_source() -> None:
    assert spend(Parts((), 5, 5, (WALLET, CREDIT)), {}, 12) == Spent((), 5, 7, 2)
    assert spend(Parts((), 5, 5, (CREDIT, WALLET)), {}, 12) == Spent((), 7, 5, 2)
    assert spend(Parts((), 0, 5, POSTPAID), {}, 12) == Spent((), 0, 12, 7)
    assert spend(Parts((), 0, 0, ()), {}, 12) == Spent((), 12, 0, 12)


@pytest.mark.parametrize(
    ("fields", "amount", "order", "expected"),
    [
        ({"balance": 0}, 50, PREPAID, (50, 0)),
        ({"balance": -10}, 40, PREPAID, (40, 0)),
        ({"balance": -10}, 41, PREPAID, Refusal.EXHAUSTED),
        ({"balance": 0, "blocked_at": 3}, 50, PREPAID, (50, 0)),
        ({"balance": 10}, 0, (), (0, 0)),
        ({"balance": 10}, 1, (), Refusal.EXHAUSTED),
        ({"balance": 10, "credit_limit": 20}, 30, (WALLET, CREDIT), (10, 20)),
        ({"balance": 10, "credit_limit": 20}, 31, (WALLET, CREDIT), Refusal.EXHAUSTED),
        ({"balance": 10, "credit_limit": 20}, 80, (CREDIT, WALLET), (60, 20)),
        ({"balance": 10, "credit_limit": 20}, 81, (CREDIT, WALLET), Refusal.EXHAUSTED),
    ],
)
def test_work_under_way_may_reach_to_the_end_of_the_buffer(
    fields: dict[str, int],
    amount: int,
    order: tuple[Fund, ...],
    expected: Refusal | tuple[int, int],
) -> None:
    assert divide_more(account(**fields), 50, order, amount) == expected


@given(balance=st.integers(-2_000, 2_000), held=MONEY, amount=MONEY, buffer=MONEY)
@settings(derandomize=True)
def test_what_is_admitted_never_reaches_below_the_buffer(
    balance: int, held: int, amount: int, buffer: int
) -> None:
    done = walked(account(balance=balance, held=held), amount, buffer=buffer)
    idle = walked(account(balance=balance + held), amount, buffer=buffer)
    if isinstance(done, Parts) and amount:
        assert balance - done.wallet >= -buffer
        assert balance > 0
    if done is Refusal.HELD:
        assert idle == Parts((), amount, 0, PREPAID)
    if done is Refusal.EXHAUSTED:
        assert idle is Refusal.EXHAUSTED


COUNTS = st.fixed_dictionaries({"a": st.integers(0, 30), "b": st.integers(0, 30)})


@given(
    ceiling=COUNTS,
    less=COUNTS,
    lefts=st.lists(st.integers(0, 40), min_size=3, max_size=3),
    balance=st.integers(0, 500),
    limit=st.sampled_from([0, 100]),
    order=st.sampled_from([PREPAID, (WALLET, CREDIT), (CREDIT, WALLET)]),
)
@settings(derandomize=True, max_examples=300)
def test_a_hold_covers_whatever_is_used_within_its_ceiling(
    ceiling: Counts,
    less: Counts,
    lefts: list[int],
    balance: int,
    limit: int,
    order: tuple[Fund, ...],
) -> None:
    quotas = [units("u", lefts[0], "b", "a"), micros("m", lefts[1]), units("v", lefts[2], "a")]
    holder = account(balance=balance, credit_limit=limit)
    parts = walk(holder, 0, order, quotas, ceiling, ten_each)
    if isinstance(parts, Refusal):
        assert ten_each(ceiling) > balance + limit
        return
    assert admit(holder, parts, 0) is None
    used = {meter: min(less[meter], most) for meter, most in ceiling.items()}
    price = ten_each(uncovered(parts, used))
    spent = spend(parts, used, price)
    assert spent.overrun == 0
    assert all(u <= part.amount for u, part in zip(spent.quotas, parts.quotas, strict=True))
    assert spent.wallet <= parts.wallet
    assert spent.credit <= parts.credit
    gifts = [u for u, part in zip(spent.quotas, parts.quotas, strict=True) if part.money]
    assert sum(gifts) + spent.wallet + spent.credit == price
