"""Prices against an oracle that takes its time, and plans from their configuration."""

from __future__ import annotations

import math
from fractions import Fraction
from pathlib import Path
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from finomw import limits
from finomw.config.load import parse
from finomw.config.model import Plan, Price, RoutePrice
from finomw.errors import InvalidValue, InvariantBroken, Problem, Unpriced
from finomw.money.pricing import PriceList, PricePlan, Rounding, RoutePrices, compile_plan
from finomw.types import PlanName, RouteName

CHAT = RouteName("chat")
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


def compiled(plan: Plan) -> PricePlan:
    problems: list[Problem] = []
    result = compile_plan("default", plan, problems)
    assert problems == []
    assert result is not None
    return result


def problems_of(plan: Plan) -> list[str]:
    problems: list[Problem] = []
    assert compile_plan("default", plan, problems) is None
    return [str(problem) for problem in problems]


def flat(**prices: Price) -> Plan:
    """Make a plan that prices one route, without ``by``."""
    return Plan(prices={CHAT: RoutePrice(lists={"*": prices})})


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
            prices.price(counts)
    else:
        assert prices.price(counts) == expected


@settings(derandomize=True)
@given(st.fractions(0, 10), st.sampled_from(ROUNDINGS))
def test_halves_round_as_documented(rate: Fraction, rounding: Rounding) -> None:
    half = math.floor(rate) + Fraction(1, 2)
    floor = math.floor(half)
    expected = {"up": floor + 1, "down": floor, "half_up": floor + 1}[rounding]
    assert PriceList.of({"a": half}, rounding).price({"a": 1}) == expected


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
    assert one.price(counts) == other.price({meter: counts[meter] for meter, _ in shuffled})


@settings(derandomize=True)
@given(decimals.filter(bool), st.integers(1, 1000))
def test_a_call_that_used_something_priced_never_costs_nothing(rate: Fraction, count: int) -> None:
    assert PriceList.of({"a": rate, "b": Fraction(0)}, "up").price({"a": count, "b": 9}) > 0


@pytest.mark.parametrize(("rounding", "micros"), [("up", 100_000), ("down", 0), ("half_up", 0)])
def test_many_small_calls_add_up_to_the_documented_rounding(
    rounding: Rounding, micros: int
) -> None:
    """Seven tokens at 0.05 dollars a million are 0.35 micros, rounded for each call."""
    plan = Plan(
        rounding=rounding,
        prices={CHAT: RoutePrice(lists={"*": {"tokens": Price(usd_per_million="0.05")}})},
    )
    prices = compiled(plan).routes["chat"].select(None)
    assert prices is not None
    assert sum(prices.price({"tokens": 7}) for _ in range(100_000)) == micros
    assert prices.price({"tokens": 700_000}) == 35_000


def test_dollars_for_a_million_are_micros_for_one() -> None:
    plan = flat(
        one=Price(usd="0.002"), many=Price(usd_per_million="0.50"), three=Price(usd_per_million=3)
    )
    prices = compiled(plan).routes["chat"].select(None)
    assert prices is not None
    assert prices.price({"one": 3}) == 6_000
    assert prices.price({"many": 10}) == 5
    assert prices.price({"three": 7}) == 21
    assert prices.price({"many": 1, "three": 1, "one": 1}) == 2_004
    assert prices.price({}) == 0


def test_a_meter_without_a_rate_is_unpriced() -> None:
    with pytest.raises(Unpriced, match='no price for the meter "b"') as raised:
        PriceList.of({"a": Fraction(1)}, "up").price({"a": 1, "b": 0})
    assert raised.value.meter == "b"


@pytest.mark.parametrize("count", [-1, True, 1.0, "1", None, limits.COUNT_MAX + 1])
def test_a_count_that_is_no_count_breaks_an_invariant(count: int) -> None:
    with pytest.raises(InvariantBroken):
        PriceList.of({"a": Fraction(1)}, "up").price({"a": count})


def test_a_price_above_the_largest_amount_is_refused() -> None:
    prices = PriceList.of({"a": Fraction(1), "b": Fraction(1, 2)}, "up")
    assert prices.price({"a": limits.AMOUNT_MAX}) == limits.AMOUNT_MAX
    with pytest.raises(InvalidValue, match=r"above the largest amount, 9007199254\.740992 dollars"):
        prices.price({"a": limits.AMOUNT_MAX, "b": 1})


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


def test_by_selects_a_list_by_the_exact_value() -> None:
    small, four, rest = (PriceList.of({"a": Fraction(n)}, "up") for n in (1, 4, 9))
    prices = RoutePrices(".model", {"small": small, "4": four, "*": rest})
    assert prices.select("small") is small
    assert prices.select("4") is four
    assert prices.select(4) is four
    for value in ["Small", "small ", "", "*", 5, True, None, 4.0, ["small"], {}, 10**5000]:
        assert prices.select(value) is rest


def test_a_value_without_a_list_is_unpriced() -> None:
    prices = RoutePrices(".model", {"1": PriceList.of({"a": Fraction(1)}, "up")})
    for value in ["other", None, True, "*"]:
        assert prices.select(value) is None


def test_without_by_any_value_gets_the_one_list() -> None:
    only = PriceList.of({"a": Fraction(1)}, "up")
    prices = RoutePrices(None, {"*": only})
    assert prices.select(None) is only
    assert prices.select("anything") is only


def test_a_plan_compiles_from_its_file() -> None:
    config = parse(
        """
        plans:
          default:
            rounding: down
            prices:
              chat:
                by: .model
                small: {tokens: {usd_per_million: "1.50"}}
                "*": {tokens: {usd: "0.01"}}
              search: {requests: {usd: "0.002"}}
        routes:
          - {name: chat, match: POST /chat, meter: {tokens: .n}, hold: {tokens: 10}}
          - {name: search, match: POST /search, meter: {requests: 1}}
        """,
        Path(),
    )
    plan = compiled(config.plans[PlanName("default")])
    assert plan.name == "default"
    assert plan.routes == {
        "chat": RoutePrices(
            ".model",
            {
                "small": PriceList.of({"tokens": Fraction(3, 2)}, "down"),
                "*": PriceList.of({"tokens": Fraction(10_000)}, "down"),
            },
        ),
        "search": RoutePrices(None, {"*": PriceList.of({"requests": Fraction(2_000)}, "down")}),
    }


def test_every_wrong_price_is_told_with_its_path() -> None:
    plan = Plan(
        prices={
            CHAT: RoutePrice(
                by=".model",
                lists={
                    "small-1": {"tokens": Price(usd="1e3"), "requests": Price()},
                    "gpt 4": {"tokens": Price(usd_per_million=-1)},
                },
            ),
            RouteName("search"): RoutePrice(
                lists={
                    "*": {
                        "requests": Price(usd="1", usd_per_million="1"),
                        "pages": Price(usd="9" * 20),
                    }
                }
            ),
        }
    )
    prices = "plans.default.prices"
    assert problems_of(plan) == [
        f"{prices}.chat.small-1.tokens.usd: expected a decimal amount in quotes such as"
        ' "0.50", found "1e3"',
        f"{prices}.chat.small-1.requests: expected exactly one of usd, usd_per_million",
        f'{prices}.chat["gpt 4"].tokens.usd_per_million: expected a decimal amount in quotes'
        ' such as "0.50", found "-1"',
        f"{prices}.search.requests: expected exactly one of usd, usd_per_million",
        f"{prices}.search.pages.usd: expected at most 9007199254.740992 dollars for a unit",
    ]
