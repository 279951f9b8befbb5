"""A price told line by line is the price."""

from __future__ import annotations

import math
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from finomw.errors import Unpriced
from finomw.money.explain import Line, explain
from finomw.money.pricing import PriceList, Rounding
from finomw.money.rates import MeterPrice, Package, Tiers

TIERS = (Fraction(100), Fraction(50), Fraction(1, 2))
PRICES: dict[str, MeterPrice] = {
    "requests": Fraction(2000),
    "tokens": Fraction(3, 2),
    "pages": Package(1000, Fraction(100_000)),
    "files": Package(1, Fraction(250)),
    "graduated": Tiers("tiered", (1000, 2000), TIERS),
    "volume": Tiers("volume", (1000, 2000), TIERS),
    "single": Tiers("volume", (), (Fraction(0),)),
}


def lines(counts: dict[str, int], used: dict[str, int]) -> list[Line]:
    return list(explain(PriceList.of(PRICES, "up"), counts, used).lines)


def test_a_rate_is_told_for_one_unit_or_for_a_million() -> None:
    assert lines({"requests": 3, "tokens": 7, "files": 2}, {}) == [
        Line("requests", 3, "", "0.002 each", Fraction(6000)),
        Line("tokens", 7, "", "1.50 per million", Fraction(21, 2)),
        Line("files", 2, "", "0.00025 each", Fraction(500)),
    ]


def test_a_package_is_told_by_its_block() -> None:
    assert lines({"pages": 1001}, {}) == [
        Line("pages", 1001, "", "0.10 for each 1000 started", Fraction(200_000))
    ]


def test_graduated_units_are_told_tier_by_tier() -> None:
    assert lines({"graduated": 1500}, {"graduated": 900}) == [
        Line("graduated", 100, "1 to 1000", "0.0001 each", Fraction(10_000)),
        Line("graduated", 1000, "1001 to 2000", "50.00 per million", Fraction(50_000)),
        Line("graduated", 400, "above 2000", "0.50 per million", Fraction(200)),
    ]
    assert lines({"graduated": 1}, {"graduated": 1000}) == [
        Line("graduated", 1, "1001 to 2000", "50.00 per million", Fraction(50))
    ]


def test_volume_units_are_told_in_one_tier() -> None:
    assert lines({"volume": 1500, "single": 2}, {"volume": 500}) == [
        Line("volume", 1500, "1001 to 2000", "50.00 per million", Fraction(75_000)),
        Line("single", 2, "all", "0.00 each", Fraction(0)),
    ]


def test_the_minimum_is_told_where_it_raised_the_price() -> None:
    prices = PriceList.of(PRICES, "half_up", minimum=Fraction(5, 2))
    raised = explain(prices, {"tokens": 1}, {})
    assert (raised.minimum, raised.exact, raised.rounding) == (
        Fraction(5, 2),
        Fraction(5, 2),
        "half_up",
    )
    assert (raised.total, raised.version) == (3, prices.version)
    above = explain(prices, {"tokens": 3}, {})
    assert (above.minimum, above.exact, above.total) == (None, Fraction(9, 2), 5)
    unused = explain(prices, {"tokens": 0}, {})
    assert (unused.lines, unused.minimum, unused.exact, unused.total) == ((), None, Fraction(0), 0)


def test_a_free_price_is_told_too() -> None:
    told = explain(PriceList.free(), {"any": 5}, {})
    assert told.lines == (Line("any", 5, "", "0.00 each", Fraction(0)),)
    assert told.total == 0


def test_what_has_no_price_is_not_explained() -> None:
    with pytest.raises(Unpriced):
        explain(PriceList.of(PRICES, "up"), {"other": 0}, {})


@settings(derandomize=True, max_examples=200)
@given(
    st.dictionaries(st.sampled_from(sorted(PRICES)), st.integers(0, 4000)),
    st.dictionaries(st.sampled_from(sorted(PRICES)), st.integers(0, 4000)),
    st.integers(0, 300_000),
    st.sampled_from(["up", "down", "half_up"]),
)
def test_the_lines_add_up_to_the_price(
    counts: dict[str, int], used: dict[str, int], minimum: int, rounding: Rounding
) -> None:
    prices = PriceList.of(PRICES, rounding, minimum=Fraction(minimum))
    told = explain(prices, counts, used)
    total = sum((line.amount for line in told.lines), Fraction(0))
    if any(counts.values()):
        total = max(total, Fraction(minimum))
    assert told.exact == total
    rounded = {"up": math.ceil(total), "down": math.floor(total)}
    assert told.total == rounded.get(rounding, math.floor(total + Fraction(1, 2)))
    assert told.total == prices.price(counts, used)
    for meter in counts:
        assert sum(line.units for line in told.lines if line.meter == meter) == counts[meter]
