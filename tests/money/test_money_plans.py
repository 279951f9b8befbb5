"""Plans from their configuration: amounts, versions, ``by``, and what has no price."""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path

import msgspec
import pytest

from finomw.config.load import parse
from finomw.config.model import Minimum, Package, Plan, Price, Prices, RoutePrice, Tier
from finomw.errors import InvariantBroken, Problem
from finomw.money import rates
from finomw.money.periods import Per
from finomw.money.plans import PricePlan, RoutePrices, compile_plan
from finomw.money.pricing import PriceList, Rounding
from finomw.money.quotas import Quota
from finomw.types import PlanName, RouteName

CHAT = RouteName("chat")
IN_2027 = 1_798_761_600_000_000


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


def flat(rounding: Rounding = "up", **prices: Price) -> PriceList:
    """Compile a plan that prices one route, without ``by``, and return its list."""
    route = RoutePrice(lists={"*": Prices(meters=prices)})
    [version] = compiled(Plan(rounding=rounding, prices={CHAT: (route,)})).routes["chat"]
    return version.lists["*"]


@pytest.mark.parametrize(("rounding", "micros"), [("up", 100_000), ("down", 0), ("half_up", 0)])
def test_many_small_calls_add_up_to_the_documented_rounding(
    rounding: Rounding, micros: int
) -> None:
    """Seven tokens at 0.05 dollars a million are 0.35 micros, rounded for each call."""
    prices = flat(rounding, tokens=Price(usd_per_million="0.05"))
    assert sum(prices.price({"tokens": 7}, {}) for _ in range(100_000)) == micros
    assert prices.price({"tokens": 700_000}, {}) == 35_000


def test_dollars_for_a_million_are_micros_for_one() -> None:
    prices = flat(
        one=Price(usd="0.002"), many=Price(usd_per_million="0.50"), three=Price(usd_per_million=3)
    )
    assert prices.price({"one": 3}, {}) == 6_000
    assert prices.price({"many": 10}, {}) == 5
    assert prices.price({"three": 7}, {}) == 21
    assert prices.price({"many": 1, "three": 1, "one": 1}, {}) == 2_004
    assert prices.price({}, {}) == 0


def test_a_plan_compiles_from_its_file() -> None:
    config = parse(
        """
        plans:
          default:
            rounding: down
            period: day
            fund: [quota, credit]
            quotas: {free: {meters: [tokens], units: 10, per: week}}
            prices:
              chat:
                - by: .model
                  small: {minimum: {usd: "0.000005"}, tokens: {usd_per_million: "1.50"}}
                  "*": {tokens: {usd: "0.01"}}
                - valid_from: 2027-01-01T00:00:00Z
                  tokens: {package: {units: 1000, usd: "0.10"}}
              search:
                requests: {tiered: [{up_to: 1000, usd: "0.0001"}, {usd_per_million: 50}]}
                pages: {volume: [{usd: "0.002"}]}
        routes:
          - {name: chat, match: POST /chat, meter: {tokens: .n}, hold: {tokens: 10}}
          - {name: search, match: POST /search, meter: {requests: 1, pages: 1}}
        """,
        Path(),
    )
    plan = compiled(config.plans[PlanName("default")])
    assert plan.routes == {
        "chat": (
            RoutePrices(
                ".model",
                {
                    "small": PriceList.of(
                        {"tokens": Fraction(3, 2)}, "down", minimum=Fraction(5), period=Per.DAY
                    ),
                    "*": PriceList.of({"tokens": Fraction(10_000)}, "down"),
                },
            ),
            RoutePrices(
                None,
                {
                    "*": PriceList.of(
                        {"tokens": rates.Package(1000, Fraction(100_000))},
                        "down",
                        valid_from=IN_2027,
                    )
                },
                IN_2027,
            ),
        ),
        "search": (
            RoutePrices(
                None,
                {
                    "*": PriceList.of(
                        {
                            "requests": rates.Tiers(
                                "tiered", (1000,), (Fraction(100), Fraction(50))
                            ),
                            "pages": rates.Tiers("volume", (), (Fraction(2000),)),
                        },
                        "down",
                        period=Per.DAY,
                    )
                },
            ),
        ),
    }
    assert (plan.name, plan.period, plan.fund) == ("default", Per.DAY, ("quota", "credit"))
    assert plan.quotas == (Quota("free", ("tokens",), 10, False, Per.WEEK, False),)
    assert plan.unpriced is None


def test_every_wrong_amount_is_told_with_its_path() -> None:
    tiers = (Tier(up_to=1, usd="x"), Tier(up_to=2, usd="9" * 20), Tier(usd_per_million="-"))
    plan = Plan(
        prices={
            CHAT: (
                RoutePrice(
                    by=".model",
                    lists={
                        "small-1": Prices(meters={"tokens": Price(usd="1e3")}),
                        "gpt 4": Prices(meters={"tokens": Price(usd_per_million=-1)}),
                    },
                    index=0,
                ),
                RoutePrice(
                    valid_from=1,
                    lists={
                        "*": Prices(
                            meters={
                                "tokens": Price(tiered=tiers),
                                "pages": Price(volume=tiers[:1]),
                            },
                            minimum=Minimum(usd="?"),
                        )
                    },
                    index=1,
                ),
            ),
            RouteName("search"): (
                RoutePrice(
                    lists={
                        "*": Prices(
                            meters={
                                "requests": Price(package=Package(units=2, usd="")),
                                "pages": Price(usd="9" * 20),
                            }
                        )
                    }
                ),
            ),
        }
    )
    prices = "plans.default.prices"
    expected = 'expected a decimal amount in quotes such as "0.50", found'
    most = "expected at most 9007199254.740992 dollars for a unit"
    assert problems_of(plan) == [
        f'{prices}.chat[0].small-1.tokens.usd: {expected} "1e3"',
        f'{prices}.chat[0]["gpt 4"].tokens.usd_per_million: {expected} "-1"',
        f'{prices}.chat[1].tokens.tiered[0].usd: {expected} "x"',
        f"{prices}.chat[1].tokens.tiered[1].usd: {most}",
        f'{prices}.chat[1].tokens.tiered[2].usd_per_million: {expected} "-"',
        f'{prices}.chat[1].pages.volume[0].usd: {expected} "x"',
        f'{prices}.chat[1].minimum.usd: {expected} "?"',
        f'{prices}.search.requests.package.usd: {expected} ""',
        f"{prices}.search.pages.usd: {most}",
    ]


def test_a_price_without_an_amount_is_for_the_checks_to_find() -> None:
    with pytest.raises(InvariantBroken, match=r"plans\.default\.prices\.chat\.tokens"):
        flat(tokens=Price())


def test_the_version_is_the_last_one_that_began() -> None:
    lists = {"*": PriceList.of({"a": Fraction(1)}, "up")}
    first, second, third = (RoutePrices(None, lists, at) for at in (None, 100, 200))
    plan = PricePlan(
        PlanName("p"),
        {"always": (first, second, third), "later": (second, third)},
        unpriced=None,
        period=Per.MONTH,
        fund=(),
        quotas=(),
    )
    for now, version in [(-5, first), (99, first), (100, second), (199, second), (200, third)]:
        assert plan.at("always", now) is version
    assert plan.at("later", 99) is None
    assert plan.at("later", 100) is second
    assert plan.at("other", 100) is None


def test_what_has_no_price_is_refused_or_free_as_the_plan_says() -> None:
    own = Prices(meters={"tokens": Price(usd=1)})
    plan = Plan(prices={CHAT: (RoutePrice(by=".model", lists={"small": own}, valid_from=100),)})
    refused = compiled(plan)
    assert refused.at("chat", 99) is None
    assert refused.at("other", 100) is None
    version = refused.at("chat", 100)
    assert version is not None
    assert version.select("large") is None

    free = compiled(msgspec.structs.replace(plan, unpriced="free"))
    for route, now, value, micros in [
        ("chat", 99, "small", 0),
        ("other", 100, "small", 0),
        ("chat", 100, "large", 0),
        ("chat", 100, None, 0),
        ("chat", 100, "small", 7_000_000),
    ]:
        version = free.at(route, now)
        assert version is not None
        selected = version.select(value)
        assert selected is not None
        assert selected.price({"tokens": 7}, {}) == micros


def test_a_free_plan_keeps_its_prices_for_the_rest() -> None:
    rest = Prices(meters={"tokens": Price(usd=1)})
    plan = compiled(Plan(prices={CHAT: (RoutePrice(lists={"*": rest}),)}, unpriced="free"))
    version = plan.at("chat", 0)
    assert version is not None
    selected = version.select(None)
    assert selected is not None
    assert selected.price({"tokens": 2}, {}) == 2_000_000


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
