"""Prices of a rate for each unit, against an oracle that takes its time."""

from __future__ import annotations

import math
from fractions import Fraction
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from finomw import limits
from finomw.errors import InvalidValue, InvariantBroken, Unpriced
from finomw.money.pricing import PriceList, Rounding

METERS = ["a", "b", "c", "d"]
ROUNDINGS: list[Rounding] = ["up", "down", "half_up"]

decimals = st.builds(
    lambda n, places: Fraction(n, 10**places), st.integers(0, 10**6), st.integers(0, 24)
)
rationals = decimals | st.fractions(0, 1000, max_denominator=1000)
calls = st.dictionaries(st.sampled_from(METERS), st.tuples(rationals, st.integers(0, 10**9)))


def oracle(rates: dict[str, Fraction], counts: dict[str, int], rounding: Rounding) -> int:
    exact = sum((rates[meter] * count for meter, count in counts.items()), Fraction(0))
    if rounding == "up":
        return math.ceil(exact)
    if rounding == "down":
        return math.floor(exact)
    return math.floor(exact + Fraction(1, 2))


@settings(derandomize=True, max_examples=500)
@given(calls, st.sampled_from(ROUNDINGS))
def test_a_price_is_the_exact_sum_rounded_once(
    call: dict[str, tuple[Fraction, int]], rounding: Rounding
) -> None:
    rates = {meter: rate for meter, (rate, _) in call.items()}
    counts = {meter: count for meter, (_, count) in call.items()}
    expected = oracle(rates, counts, rounding)
    prices = PriceList.of(rates, rounding)
    if expected > limits.AMOUNT_MAX:
        with pytest.raises(InvalidValue):
            prices.price(counts, {})
    else:
        assert prices.price(counts, {}) == expected


@settings(derandomize=True)
@given(st.fractions(0, 10), st.sampled_from(ROUNDINGS))
def test_halves_round_as_documented(rate: Fraction, rounding: Rounding) -> None:
    half = math.floor(rate) + Fraction(1, 2)
    floor = math.floor(half)
    expected = {"up": floor + 1, "down": floor, "half_up": floor + 1}[rounding]
    assert PriceList.of({"a": half}, rounding).price({"a": 1}, {}) == expected


@settings(derandomize=True)
@given(calls, st.randoms(use_true_random=False), st.sampled_from(ROUNDINGS))
def test_the_order_of_meters_does_not_matter(
    call: dict[str, tuple[Fraction, int]], random: Random, rounding: Rounding
) -> None:
    shuffled = list(call.items())
    random.shuffle(shuffled)
    one = PriceList.of({meter: rate for meter, (rate, _) in call.items()}, rounding)
    other = PriceList.of({meter: rate for meter, (rate, _) in shuffled}, rounding)
    assert one == other
    counts = {meter: min(count, 10**6) for meter, (_, count) in call.items()}
    assert one.price(counts, {}) == other.price({meter: counts[meter] for meter, _ in shuffled}, {})


@settings(derandomize=True)
@given(decimals.filter(bool), st.integers(1, 1000))
def test_a_call_that_used_something_priced_never_costs_nothing(rate: Fraction, count: int) -> None:
    assert PriceList.of({"a": rate, "b": Fraction(0)}, "up").price({"a": count, "b": 9}, {}) > 0


def test_a_meter_without_a_rate_is_unpriced() -> None:
    with pytest.raises(Unpriced, match='no price for the meter "b"') as raised:
        PriceList.of({"a": Fraction(1)}, "up").price({"a": 1, "b": 0}, {})
    assert raised.value.meter == "b"


@pytest.mark.parametrize("count", [-1, True, 1.0, "1", None, limits.COUNT_MAX + 1])
def test_a_count_that_is_no_count_breaks_an_invariant(count: int) -> None:
    with pytest.raises(InvariantBroken):
        PriceList.of({"a": Fraction(1)}, "up").price({"a": count}, {})


def test_a_price_above_the_largest_amount_is_refused() -> None:
    prices = PriceList.of({"a": Fraction(1), "b": Fraction(1, 2)}, "up")
    assert prices.price({"a": limits.AMOUNT_MAX}, {}) == limits.AMOUNT_MAX
    with pytest.raises(InvalidValue, match=r"above the largest amount, 9007199254\.740992 dollars"):
        prices.price({"a": limits.AMOUNT_MAX, "b": 1}, {})


def test_a_version_names_rates_and_rounding() -> None:
    rates = {"a": Fraction(1, 2), "b": Fraction(3)}
    version = PriceList.of(rates, "up").version
    assert version == "46957abfa33e"
    others = [
        PriceList.of({**rates, "b": Fraction(2)}, "up"),
        PriceList.of({"a": rates["a"]}, "up"),
        PriceList.of({"a": rates["a"], "c": rates["b"]}, "up"),
        PriceList.of(rates, "down"),
    ]
    assert len({version, *(prices.version for prices in others)}) == 5
    assert PriceList.of({"a": Fraction("0.5"), "b": Fraction("3.00")}, "up").version == version
