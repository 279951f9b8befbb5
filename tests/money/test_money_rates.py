"""Tiers, packages and minimums against an oracle that counts unit by unit, and tries every call."""

from __future__ import annotations

import math
from collections.abc import Iterator
from fractions import Fraction
from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from finomw import limits
from finomw.errors import InvalidValue, InvariantBroken, Unpriced
from finomw.money.periods import Per
from finomw.money.pricing import PriceList, Rounding
from finomw.money.rates import MeterPrice, Package, Tiers

ROUNDINGS: list[Rounding] = ["up", "down", "half_up"]
METERS = ["a", "b"]


def rate_of_unit(tiers: Tiers, number: int) -> Fraction:
    """Return the rate of the ``number``-th unit of the period."""
    for bound, rate in zip(tiers.bounds, tiers.rates, strict=False):
        if number <= bound:
            return rate
    return tiers.rates[-1]


def exact(price: MeterPrice, count: int, used: int) -> Fraction:
    """Return what ``count`` units of one meter cost, one by one."""
    if isinstance(price, Package):
        return sum((price.rate for _ in range(0, count, price.units)), Fraction(0))
    if isinstance(price, Fraction):
        return price * count
    if price.kind == "volume":
        return rate_of_unit(price, used + count) * count
    numbers = range(used + 1, used + count + 1)
    return sum((rate_of_unit(price, number) for number in numbers), Fraction(0))


def oracle(
    prices: dict[str, MeterPrice],
    minimum: Fraction,
    rounding: Rounding,
    counts: dict[str, int],
    used: dict[str, int],
) -> int:
    total = sum((exact(prices[m], counts[m], used.get(m, 0)) for m in counts), Fraction(0))
    if any(counts.values()):
        total = max(total, minimum)
    if rounding == "up":
        return math.ceil(total)
    return math.floor(total if rounding == "down" else total + Fraction(1, 2))


def box(most: dict[str, int], least: dict[str, int] | None = None) -> Iterator[dict[str, int]]:
    """Every choice of one count for each meter, from ``least`` to ``most``."""
    low = least or {}
    ranges = [range(low.get(meter, 0), most[meter] + 1) for meter in most]
    for chosen in product(*ranges):
        yield dict(zip(most, chosen, strict=True))


def tiers(bound: int) -> st.SearchStrategy[Tiers]:
    return st.builds(
        lambda kind, bounds, rates: Tiers(
            kind, tuple(sorted(bounds)), tuple(rates[: len(bounds) + 1])
        ),
        st.sampled_from(["tiered", "volume"]),
        st.sets(st.integers(1, bound), max_size=3),
        st.lists(rates, min_size=4, max_size=4),
    )


rates = st.builds(Fraction, st.integers(0, 30), st.integers(1, 7))
packages = st.builds(Package, st.integers(1, 6), rates)
minimums = st.just(Fraction(0)) | st.builds(Fraction, st.integers(0, 36), st.integers(1, 3))
roundings = st.sampled_from(ROUNDINGS)


def meter_prices(bound: int) -> st.SearchStrategy[MeterPrice]:
    return rates | packages | tiers(bound) | tiers(bound)


def each_meter(values: st.SearchStrategy[int]) -> st.SearchStrategy[dict[str, int]]:
    return st.fixed_dictionaries(dict.fromkeys(METERS, values))


@settings(derandomize=True, max_examples=250, deadline=None)
@given(
    st.fixed_dictionaries({meter: meter_prices(20) for meter in METERS}),
    minimums,
    roundings,
    each_meter(st.integers(0, 30)),
    each_meter(st.integers(0, 30)),
)
def test_a_price_is_what_counting_unit_by_unit_gives(
    prices: dict[str, MeterPrice],
    minimum: Fraction,
    rounding: Rounding,
    counts: dict[str, int],
    used: dict[str, int],
) -> None:
    compiled = PriceList.of(prices, rounding, minimum=minimum)
    assert compiled.price(counts, used) == oracle(prices, minimum, rounding, counts, used)


@settings(derandomize=True, max_examples=300, deadline=None)
@given(
    meter_prices(20),
    minimums,
    roundings,
    st.integers(0, 15),
    st.integers(0, 20),
    st.integers(0, 12),
)
def test_the_worst_of_one_meter_is_the_highest_price_of_all_calls(
    price: MeterPrice, minimum: Fraction, rounding: Rounding, ceiling: int, used: int, others: int
) -> None:
    highest = max(
        oracle({"a": price}, minimum, rounding, {"a": count}, {"a": usage})
        for count in range(ceiling + 1)
        for usage in range(used, used + others + 1)
    )
    compiled = PriceList.of({"a": price}, rounding, minimum=minimum)
    assert compiled.worst({"a": ceiling}, {"a": used}, {"a": others}) == highest


@settings(derandomize=True, max_examples=150, deadline=None)
@given(
    st.fixed_dictionaries({meter: meter_prices(8) for meter in METERS}),
    minimums,
    roundings,
    each_meter(st.integers(0, 4)),
    each_meter(st.integers(0, 8)),
    each_meter(st.integers(0, 3)),
)
def test_the_worst_of_two_meters_is_the_highest_price_of_all_calls(
    prices: dict[str, MeterPrice],
    minimum: Fraction,
    rounding: Rounding,
    ceiling: dict[str, int],
    used: dict[str, int],
    others: dict[str, int],
) -> None:
    compiled = PriceList.of(prices, rounding, minimum=minimum)
    latest = {meter: used[meter] + others[meter] for meter in METERS}
    highest = max(
        oracle(prices, minimum, rounding, counts, usage)
        for counts in box(ceiling)
        for usage in box(latest, used)
    )
    assert compiled.worst(ceiling, used, others) == highest


@settings(derandomize=True, max_examples=150)
@given(
    tiers(limits.COUNT_MAX),
    st.integers(0, limits.COUNT_MAX // 32),
    st.integers(0, limits.MICROS_MAX),
    st.integers(0, limits.MICROS_MAX),
    st.floats(0, 1, exclude_max=True),
    st.floats(0, 1, exclude_max=True),
)
def test_the_worst_holds_for_counts_of_any_size(
    price: Tiers, ceiling: int, used: int, others: int, of_count: float, of_others: float
) -> None:
    compiled = PriceList.of({"a": price}, "up")
    worst = compiled.worst({"a": ceiling}, {"a": used}, {"a": others})
    count, usage = int(ceiling * of_count), used + int(others * of_others)
    assert compiled.price({"a": count}, {"a": usage}) <= worst


@settings(derandomize=True)
@given(tiers(20), st.lists(st.integers(1, 9), max_size=8))
def test_graduated_calls_cost_together_what_one_call_for_all_costs(
    price: Tiers, calls: list[int]
) -> None:
    graduated = Tiers("tiered", price.bounds, tuple(map(Fraction, map(math.ceil, price.rates))))
    compiled = PriceList.of({"a": graduated}, "up")
    used = 0
    paid = 0
    for count in calls:
        paid += compiled.price({"a": count}, {"a": used})
        used += count
    assert paid == compiled.price({"a": used}, {"a": 0})


GRADUATED = Tiers("tiered", (10, 20), (Fraction(5), Fraction(3), Fraction(1)))
VOLUME = Tiers("volume", (10, 20), (Fraction(5), Fraction(3), Fraction(1)))


@pytest.mark.parametrize(
    ("count", "used", "graduated", "volume"),
    [
        (0, 0, 0, 0),
        (1, 0, 5, 5),
        (10, 0, 50, 50),  # a bound belongs to its tier
        (11, 0, 53, 33),
        (1, 9, 5, 5),
        (1, 10, 3, 3),
        (2, 9, 8, 6),
        (12, 9, 5 + 30 + 1, 12),
        (7, 20, 7, 7),
        (7, 10**12, 7, 7),
    ],
)
def test_tiers_include_their_bounds(count: int, used: int, graduated: int, volume: int) -> None:
    counts, usage = {"a": count}, {"a": used}
    assert PriceList.of({"a": GRADUATED}, "up").price(counts, usage) == graduated
    assert PriceList.of({"a": VOLUME}, "up").price(counts, usage) == volume


def test_the_worst_of_a_volume_price_may_be_fewer_units() -> None:
    volume = PriceList.of({"a": VOLUME}, "up")
    assert volume.price({"a": 11}, {}) == 33
    assert volume.worst({"a": 11}, {}, {}) == 50
    assert volume.worst({"a": 9}, {"a": 11}, {"a": 100}) == 27
    assert volume.worst({"a": 9}, {"a": 5}, {"a": 0}) == 27


def test_the_worst_counts_what_other_calls_may_use_before() -> None:
    dearer = PriceList.of({"a": Tiers("tiered", (10,), (Fraction(1), Fraction(9)))}, "up")
    assert dearer.worst({"a": 4}, {"a": 2}, {}) == 4
    assert dearer.worst({"a": 4}, {"a": 2}, {"a": 6}) == 2 + 18
    assert dearer.worst({"a": 4}, {"a": 2}, {"a": 99, "b": 5}) == 36
    cheaper = PriceList.of({"a": GRADUATED}, "up")
    assert cheaper.worst({"a": 4}, {"a": 2}, {"a": 99}) == 20


@pytest.mark.parametrize(("count", "micros"), [(0, 0), (1, 7), (3, 7), (4, 14), (6, 14), (7, 21)])
def test_a_started_package_is_paid_whole(count: int, micros: int) -> None:
    prices = PriceList.of({"a": Package(3, Fraction(7))}, "up")
    assert prices.price({"a": count}, {"a": 1}) == micros
    assert prices.worst({"a": count}, {"a": 1}, {"a": 1}) == micros


def test_a_minimum_is_for_calls_that_used_anything() -> None:
    prices = PriceList.of({"a": Fraction(1), "b": Fraction(0)}, "down", minimum=Fraction(7, 2))
    assert prices.price({"a": 0, "b": 0}, {}) == 0
    assert prices.price({}, {}) == 0
    assert prices.price({"a": 0, "b": 1}, {}) == 3
    assert prices.price({"a": 3}, {}) == 3
    assert prices.price({"a": 4}, {}) == 4
    assert prices.worst({"a": 0, "b": 0}, {}, {}) == 0
    assert prices.worst({"a": 1}, {}, {}) == 3


def test_only_tiered_meters_need_their_usage() -> None:
    prices: dict[str, MeterPrice] = {"a": GRADUATED, "b": Fraction(1), "c": Package(2, Fraction(1))}
    assert PriceList.of({**prices, "d": VOLUME}, "up").tiered_meters == {"a", "d"}
    assert PriceList.of({"b": Fraction(1)}, "up").tiered_meters == frozenset()


def test_a_free_list_prices_any_meter_at_nothing() -> None:
    free = PriceList.free()
    assert free.price({"a": 5, "b": limits.COUNT_MAX}, {}) == 0
    assert free.worst({"a": 5}, {}, {"a": 1}) == 0
    assert free.tiered_meters == frozenset()
    assert free.version != PriceList.of({}, "up").version
    with pytest.raises(InvariantBroken):
        free.price({"a": -1}, {})


def test_a_meter_without_a_price_is_unpriced_beside_tiers_too() -> None:
    prices = PriceList.of({"a": GRADUATED}, "up")
    with pytest.raises(Unpriced):
        prices.price({"b": 0}, {})
    with pytest.raises(Unpriced):
        prices.worst({"b": 0}, {}, {})


@pytest.mark.parametrize("usage", [-1, True, 1.5, "1", None])
def test_usage_that_is_no_number_of_units_breaks_an_invariant(usage: int) -> None:
    prices = PriceList.of({"a": VOLUME}, "up")
    with pytest.raises(InvariantBroken, match="usage of a"):
        prices.price({"a": 1}, {"a": usage})
    with pytest.raises(InvariantBroken, match="usage of a"):
        prices.worst({"a": 1}, {}, {"a": usage})


@pytest.mark.parametrize("count", [-1, True, 1.0, None, limits.COUNT_MAX + 1])
def test_a_ceiling_that_is_no_count_breaks_an_invariant(count: int) -> None:
    with pytest.raises(InvariantBroken, match="a count of a"):
        PriceList.of({"a": VOLUME}, "up").worst({"a": count}, {}, {})


def test_a_worst_above_the_largest_amount_is_refused() -> None:
    prices = PriceList.of({"a": Tiers("volume", (10,), (Fraction(1), Fraction(2)))}, "up")
    assert prices.price({"a": limits.COUNT_MAX // 2}, {"a": 11}) == limits.AMOUNT_MAX
    with pytest.raises(InvalidValue, match="above the largest amount"):
        prices.worst({"a": limits.COUNT_MAX}, {}, {})


@pytest.mark.parametrize(
    ("bounds", "count"), [((), 0), ((), 2), ((5, 5), 3), ((5, 4), 3), ((0,), 2), ((-1,), 2)]
)
def test_tiers_that_are_none_break_an_invariant(bounds: tuple[int, ...], count: int) -> None:
    with pytest.raises(InvariantBroken, match="no tiers"):
        Tiers("tiered", bounds, (Fraction(1),) * count)


def test_a_version_names_all_that_makes_a_price() -> None:
    half, two = Fraction(1, 2), Fraction(2)
    versions = [
        PriceList.of({"a": Tiers("tiered", (10,), (half, two))}, "up"),
        PriceList.of({"a": Tiers("volume", (10,), (half, two))}, "up"),
        PriceList.of({"a": Tiers("tiered", (11,), (half, two))}, "up"),
        PriceList.of({"a": Tiers("tiered", (10,), (two, half))}, "up"),
        PriceList.of({"a": Tiers("tiered", (10, 20), (half, two, two))}, "up"),
        PriceList.of({"a": Tiers("tiered", (10,), (half, two))}, "down"),
        PriceList.of({"a": Tiers("tiered", (10,), (half, two))}, "up", period=Per.DAY),
        PriceList.of({"a": Tiers("tiered", (10,), (half, two))}, "up", minimum=half),
        PriceList.of({"a": Tiers("tiered", (10,), (half, two))}, "up", valid_from=1),
        PriceList.of({"a": Package(1, half)}, "up"),
        PriceList.of({"a": Package(2, half)}, "up"),
        PriceList.of({"a": Package(2, two)}, "up"),
        PriceList.of({"a": half}, "up"),
        PriceList.of({"a": half}, "up", minimum=half),
        PriceList.of({"a": half}, "up", valid_from=0),
    ]
    assert len({prices.version for prices in versions}) == len(versions)
    assert PriceList.of({"a": half}, "up", period=Per.DAY) == PriceList.of({"a": half}, "up")
