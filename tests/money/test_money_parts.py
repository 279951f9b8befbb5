"""Meters that are parts of others: priced as they are, or apart; held and given together."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from finomw import limits
from finomw.config.model import PlanQuota
from finomw.errors import InvalidValue, InvariantBroken, Problem, Unpriced
from finomw.money.explain import explain
from finomw.money.funding import cover
from finomw.money.pricing import PriceList
from finomw.money.quotas import compile_quotas
from finomw.money.rates import MeterPrice, Package, Tiers

PARENTS = {"cached": "input", "write": "input", "write_1h": "write", "thoughts": "output"}
METERS = ("input", "cached", "write", "write_1h", "output", "thoughts")

rates = st.fractions(0, 100, max_denominator=50)
tiers = st.builds(
    lambda kind, bound, low, high: Tiers(kind, (bound,), (low, high)),
    st.sampled_from(["tiered", "volume"]),
    st.integers(1, 200),
    rates,
    rates,
)
any_price: st.SearchStrategy[MeterPrice] = (
    rates | tiers | st.builds(Package, st.integers(1, 50), rates)
)
units = st.integers(0, 300)


def price_list(prices: dict[str, MeterPrice]) -> PriceList:
    return PriceList.of(prices, "up", parents=PARENTS)


def both(price: MeterPrice, **others: MeterPrice) -> PriceList:
    return price_list({"input": price, "output": Fraction(1), **others})


@settings(derandomize=True, max_examples=300)
@given(any_price, st.fixed_dictionaries(dict.fromkeys(METERS, units)), units, units)
def test_a_part_without_a_price_is_priced_as_if_nobody_had_told_it_apart(
    price: MeterPrice, counts: dict[str, int], used: int, used_of_part: int
) -> None:
    whole = counts["input"] + counts["cached"] + counts["write"] + counts["write_1h"]
    output = counts["output"] + counts["thoughts"]
    alone = PriceList.of({"input": price, "output": Fraction(1)}, "up")
    expected = alone.price({"input": whole, "output": output}, {"input": used + used_of_part})
    told = both(price)
    before = {"input": used, "cached": used_of_part}
    assert told.price(counts, before) == expected
    assert explain(told, counts, before).total == expected


@settings(derandomize=True, max_examples=300)
@given(
    st.dictionaries(st.sampled_from(["cached", "write", "write_1h"]), any_price),
    any_price,
    st.fixed_dictionaries(dict.fromkeys(METERS, units)),
    st.fixed_dictionaries(dict.fromkeys(METERS, units)),
    st.fixed_dictionaries(dict.fromkeys(METERS, units)),
)
def test_a_hold_covers_whatever_a_whole_divides_into(
    parts: dict[str, MeterPrice],
    price: MeterPrice,
    counts: dict[str, int],
    used: dict[str, int],
    others: dict[str, int],
) -> None:
    prices = both(price, **parts)
    ceiling = {
        "input": sum(counts[meter] for meter in ("input", "cached", "write", "write_1h")),
        "output": counts["output"] + counts["thoughts"],
    }
    held = prices.worst(ceiling, used, others)
    assert held >= prices.price(counts, used)
    after = {meter: used[meter] + others[meter] for meter in METERS}
    assert held >= prices.price(counts, after)


def test_a_hold_of_rates_is_exactly_that_of_the_dearest() -> None:
    prices = both(Fraction(3), cached=Fraction("0.3"), write=Fraction("3.75"))
    assert prices.worst({"input": 1000, "output": 10}, {}, {}) == 3750 + 10
    assert both(Fraction(3)).worst({"input": 1000, "output": 10}, {}, {}) == 3010


def test_a_part_with_a_price_of_its_own_is_priced_by_it() -> None:
    prices = both(Fraction(3), cached=Fraction("0.3"), thoughts=Fraction(5))
    counts = {"input": 10, "cached": 100, "write": 1, "output": 2, "thoughts": 4}
    assert prices.price(counts, {}) == 30 + 30 + 3 + 2 + 20


def test_a_part_of_a_part_is_priced_as_the_nearest_that_has_a_price() -> None:
    counts = {"write_1h": 10}
    assert both(Fraction(1)).price(counts, {}) == 10
    assert both(Fraction(1), write=Fraction(2)).price(counts, {}) == 20
    assert both(Fraction(1), write_1h=Fraction(4)).price(counts, {}) == 40
    assert both(Fraction(1), write_1h=Fraction(4)).worst({"input": 10}, {}, {}) == 40


def test_what_is_counted_for_tiers_are_all_the_parts_of_them() -> None:
    rising = Tiers("tiered", (10,), (Fraction(1), Fraction(2)))
    assert both(rising).tiered_meters == {"input", "cached", "write", "write_1h"}
    assert both(Fraction(1), cached=rising).tiered_meters == {"cached", "input"}
    assert both(Fraction(1), cached=Fraction(2)).tiered_meters == set()


def test_a_part_whose_whole_has_no_price_has_none() -> None:
    with pytest.raises(Unpriced):
        PriceList.of({"output": Fraction(1)}, "up", parents=PARENTS).price({"cached": 1}, {})


def test_parts_that_are_too_many_together_are_beyond_price() -> None:
    most = limits.COUNT_MAX
    with pytest.raises(InvalidValue, match="input and its parts are more than"):
        both(Fraction(0)).price({"input": most, "cached": most}, {})
    with pytest.raises(InvariantBroken):
        both(Fraction(0)).price({"input": -1, "cached": 0}, {})


def test_the_version_tells_what_is_priced_as_what() -> None:
    plain = PriceList.of({"input": Fraction(1), "output": Fraction(1)}, "up")
    assert both(Fraction(1)).version != plain.version
    assert PriceList.of({"a": Fraction(1)}, "up", parents=PARENTS).version == (
        PriceList.of({"a": Fraction(1)}, "up").version
    )


def test_a_quota_covers_the_parts_of_its_meters() -> None:
    problems: list[Problem] = []
    wanted = {"free": PlanQuota(meters=("output", "input"), units=100, per="month")}
    (quota,) = compile_quotas("quotas", wanted, problems, PARENTS)
    assert quota.meters == ("output", "thoughts", "input", "cached", "write", "write_1h")
    counts = {"input": 10, "write_1h": 200, "output": 20, "thoughts": 30}
    assert cover(counts, quota.meters, 100) == (
        100,
        {"input": 0, "write_1h": 160, "output": 0, "thoughts": 0},
    )
