"""Quotas from their configuration."""

from __future__ import annotations

import pytest

from finomw.config.model import PlanQuota
from finomw.errors import InvariantBroken, Problem
from finomw.money.periods import Per
from finomw.money.quotas import Quota, compile_quotas


def test_a_quota_is_units_of_meters_or_money_for_the_price_of_any() -> None:
    problems: list[Problem] = []
    assert compile_quotas(
        "quotas",
        {
            "free": PlanQuota(meters=("in", "out"), units=100_000, per="month", roll_over=True),
            "gift": PlanQuota(meters=("cost",), usd="5.00", per="once"),
        },
        problems,
    ) == (
        Quota("free", ("in", "out"), 100_000, money=False, per=Per.MONTH, roll_over=True),
        Quota("gift", (), 5_000_000, money=True, per=Per.ONCE, roll_over=False),
    )
    assert problems == []


@pytest.mark.parametrize("name", ["hour", "day", "week", "month", "year", "once"])
def test_every_period_of_the_file_is_one_of_the_calendar(name: str) -> None:
    quota = PlanQuota(meters=("a",), units=1, per=name)  # type: ignore[arg-type]
    [compiled] = compile_quotas("quotas", {"q": quota}, [])
    assert compiled.per.name == name.upper()


def test_wrong_amounts_are_told_with_their_paths() -> None:
    problems: list[Problem] = []
    amounts: dict[str, str | int] = {"a b": "x", "zero": 0, "fine": "0.0000001", "good": 1}
    quotas = {
        name: PlanQuota(meters=("cost",), usd=usd, per="day") for name, usd in amounts.items()
    }
    assert [quota.name for quota in compile_quotas("plans.p.quotas", quotas, problems)] == ["good"]
    assert [str(problem) for problem in problems] == [
        'plans.p.quotas["a b"].usd: expected a decimal amount in quotes such as "0.50", found "x"',
        "plans.p.quotas.zero.usd: expected at least 0.000001 dollars, found 0",
        "plans.p.quotas.fine.usd: finer than a micro-dollar (6 decimals at most): 0.0000001",
    ]


@pytest.mark.parametrize(
    "quota",
    [PlanQuota(meters=("cost",), per="day"), PlanQuota(meters=("a",), usd=1, per="day")],
)
def test_a_quota_without_its_amount_is_for_the_checks_to_find(quota: PlanQuota) -> None:
    with pytest.raises(InvariantBroken, match=r"quotas\.q: no amount"):
        compile_quotas("quotas", {"q": quota}, [])
