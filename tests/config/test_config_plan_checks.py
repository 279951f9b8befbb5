"""Plans that are wrong in themselves, or do not fit the rules."""

from __future__ import annotations

from pathlib import Path

from finomw.config.load import parse
from finomw.errors import ConfigError

CHAT = "{name: chat, match: POST /chat, meter: {tokens: .n, requests: 1}, hold: {tokens: 9}}"
ITEM = "{name: item, match: 'GET /items/{id}', meter: {requests: 1}}"
FREE = "{name: open, match: GET /open, free: true}"
PRICES = "plans.default.prices"


def problems_of(routes: str, plans: str = "default: {}") -> list[str]:
    """Each problem of a configuration as its line; none when it is good."""
    try:
        parse(f"plans: {{{plans}}}\nroutes: [{routes}]\n", Path("/srv"))
    except ConfigError as error:
        return [str(problem) for problem in error.problems]
    return []


def priced(prices: str, *routes: str) -> list[str]:
    return problems_of(", ".join(routes or (CHAT, ITEM, FREE)), f"default: {{prices: {prices}}}")


def plan(options: str) -> list[str]:
    return problems_of(", ".join((CHAT, ITEM, FREE)), f"default: {{{options}}}")


def item(price: str) -> list[str]:
    """Return the problems of a plan that prices the one meter of a route."""
    return priced(f"{{item: {{requests: {price}}}}}")


def test_a_metered_rule_needs_a_plan() -> None:
    expected = "plans: missing: metered routes need at least one price plan"
    assert problems_of(CHAT, plans="") == [expected]
    assert problems_of(FREE, plans="") == []


def test_a_plan_need_not_price_every_route() -> None:
    assert problems_of(f"{CHAT}, {ITEM}, {FREE}") == []


def test_prices_name_metered_routes() -> None:
    assert priced("{caht: {tokens: {usd: 1}}, open: {requests: {usd: 1}}, zzz: {}}") == [
        "plans.default.prices.caht: no route has this name; nearest: chat",
        "plans.default.prices.open: the route is free and takes no prices",
        "plans.default.prices.zzz: no route has this name",
    ]


def test_a_price_list_has_exactly_the_routes_meters() -> None:
    assert priced("{chat: {tokens: {usd: 1}, requests: {usd: 0}}}") == []
    assert priced(
        "{chat: {by: .m, a: {tokens: {usd: 1}, request: {usd: 1}}, '*': {}}, item: {}}"
    ) == [
        "plans.default.prices.chat.a.request: unknown meter; nearest: requests; meters here:"
        " tokens, requests",
        "plans.default.prices.chat.a.requests: missing: each meter of the route needs a price;"
        " {usd: 0} for no charge",
        "plans.default.prices.chat.*.tokens: missing: each meter of the route needs a price;"
        " {usd: 0} for no charge",
        "plans.default.prices.chat.*.requests: missing: each meter of the route needs a price;"
        " {usd: 0} for no charge",
        "plans.default.prices.item.requests: missing: each meter of the route needs a price;"
        " {usd: 0} for no charge",
    ]


def test_rules_of_one_name_share_its_prices() -> None:
    rules = (CHAT, "{name: chat, match: GET /chat, meter: {pages: 1}}")
    assert priced("{chat: {tokens: {usd: 1}, requests: {usd: 1}}}", *rules) == [
        "plans.default.prices.chat.pages: missing: each meter of the route needs a price;"
        " {usd: 0} for no charge",
    ]
    everything = "{tokens: {usd: 1}, requests: {usd: 1}, pages: {usd: 1}}"
    assert priced(f"{{chat: {everything}}}", *rules) == []


def test_by_is_a_program_or_a_parameter_of_every_rule_of_the_name() -> None:
    prices = "{item: {by: %s, '*': {requests: {usd: 1}}}}"
    assert priced(prices % "path.id") == []
    assert priced(prices % ".model") == []
    assert priced(prices % "model") == [
        "plans.default.prices.item.by: expected a jq program such as .model, or path.NAME, found"
        ' "model"'
    ]
    assert priced(prices % "path.id", ITEM, ITEM.replace("{id}", "{key}/x")) == [
        "plans.default.prices.item.by: routes[1] has no {id} in its path /items/{key}/x"
    ]
    assert priced("{item: {by: .model}}") == [
        'plans.default.prices.item: expected prices for values of by, or for the rest: "*"'
    ]


def test_a_price_is_told_in_exactly_one_way() -> None:
    expected = f"{PRICES}.item.requests: expected exactly one of usd, usd_per_million, package,"
    for price in ("{}", "{usd: 1, usd_per_million: 1}", "{usd: 0, tiered: [{usd: 1}]}"):
        assert item(price) == [f"{expected} tiered, volume"]
    for price in (
        "{usd: 1}", "{usd_per_million: 1}", "{package: {units: 9, usd: 1}}", "{tiered: [{usd: 0}]}",
        "{volume: [{up_to: 1, usd_per_million: 1}, {up_to: 2, usd: 1}, {usd: 1}]}",
    ):  # fmt: skip
        assert item(price) == []


def test_tiers_rise_and_the_last_has_no_bound() -> None:
    assert item("{tiered: []}") == [f"{PRICES}.item.requests.tiered: expected at least one tier"]
    tiers = f"{PRICES}.item.requests.volume"
    assert item(
        "{volume: [{usd: 1}, {up_to: 5, usd: 1}, {up_to: 5, usd: 1, usd_per_million: 1},"
        " {up_to: 4}, {up_to: 9, usd: 1}]}"
    ) == [
        f"{tiers}[0].up_to: missing: only the last tier is for all the rest",
        f"{tiers}[2]: expected exactly one of usd, usd_per_million",
        f"{tiers}[2].up_to: expected more than the 5 of the tier before, found 5",
        f"{tiers}[3]: expected exactly one of usd, usd_per_million",
        f"{tiers}[3].up_to: expected more than the 5 of the tier before, found 4",
        f"{tiers}[4].up_to: the last tier is for all the rest: leave this out",
    ]


def test_versions_follow_each_other() -> None:
    def versions(*times: str) -> list[str]:
        listed = ", ".join(f"{{{time} requests: {{usd: 1}}}}" for time in times)
        return priced(f"{{item: [{listed}]}}")

    first, same, later = (
        f"valid_from: {time},"
        for time in ("2027-01-01T00:00:00Z", "2027-01-01T01:00:00+01:00", "2027-01-01T00:00:00.1Z")
    )
    assert versions("") == versions(first) == versions("", first, later) == []
    assert priced(f"{{item: {{{first} requests: {{usd: 1}}}}}}") == []
    assert versions() == [f"{PRICES}.item: expected at least one version"]
    order = "valid_from: expected a later time than the version before"
    assert versions("", later, first, same) == [
        f"{PRICES}.item[2].{order}",
        f"{PRICES}.item[3].{order}",
    ]
    assert versions(first, "") == [
        f"{PRICES}.item[1].valid_from: missing: only the first version may have always been valid"
    ]


def test_each_version_has_the_meters_and_its_own_by() -> None:
    assert priced(
        "{item: [{by: path.id, '*': {requests: {usd: 1}}}, {valid_from: 2027-01-01T00:00:00Z,"
        " by: path.key, x: {request: {usd: 1}}}]}"
    ) == [
        f"{PRICES}.item[1].by: routes[1] has no {{key}} in its path /items/{{id}}",
        f"{PRICES}.item[1].x.request: unknown meter; nearest: requests; meters here: requests",
        f"{PRICES}.item[1].x.requests: missing: each meter of the route needs a price; {{usd: 0}}"
        " for no charge",
    ]


def test_what_is_wrong_in_a_plan_is_told_though_a_rule_cannot_be_read() -> None:
    broken = CHAT.replace("tokens: .n", "tokens: 1.5")
    assert problems_of(
        broken, "default: {fund: [], quotas: {q: {meters: [x], units: 1, per: day}}}"
    ) == [
        "routes[0].meter.tokens: expected a whole number from 0 to 9007199254740992 or a jq"
        " program, found 1.5",
        "plans.default.fund: expected at least one of quota, wallet, credit",
        "plans.default.quotas: fund has no quota: these would never pay for anything",
    ]


def test_a_fund_names_each_source_once() -> None:
    for fund in ("[quota]", "[credit, wallet]", "[quota, credit, wallet]"):
        assert plan(f"fund: {fund}") == []
    assert plan("fund: [wallet, credit, quota]") == [
        "plans.default.fund: quota has to come first: what it covers is not priced at all"
    ]
    assert plan("fund: []") == [
        "plans.default.fund: expected at least one of quota, wallet, credit"
    ]
    assert plan("fund: [quota, wallet, wallet, wallet]") == [
        'plans.default.fund[2]: "wallet" stands twice',
        'plans.default.fund[3]: "wallet" stands twice',
    ]


def test_a_quota_gives_units_of_meters_or_money() -> None:
    def quota(options: str) -> list[str]:
        where = "plans.default.quotas.q"
        return [line.removeprefix(where) for line in plan(f"quotas: {{q: {{{options}}}}}")]

    assert quota("meters: [tokens, requests], units: 5, per: hour") == []
    assert quota("meters: [cost], usd: 5, per: once") == []
    assert quota("meters: [tokens, token, pages], units: 5, per: day") == [
        ".meters[1]: unknown meter; nearest: tokens; meters here: tokens, requests",
        ".meters[2]: unknown meter; meters here: tokens, requests",
    ]
    assert quota("meters: [], units: 5, per: day") == [
        ".meters: expected at least one meter, or [cost]"
    ]
    assert quota("meters: [tokens, tokens], units: 5, per: day") == [
        '.meters[1]: "tokens" stands twice'
    ]
    assert quota("meters: [tokens], usd: 5, per: day") == [
        ".units: missing: how much is given each time?",
        ".usd: a quota of meters is given in units",
    ]
    assert quota("meters: [cost], units: 5, per: day") == [
        ".usd: missing: how much is given each time?",
        ".units: a quota of money is given in usd",
    ]
    assert quota("meters: [cost, tokens], usd: 5, per: day") == [
        ".meters: cost stands alone: the price covers all meters"
    ]
    assert quota("meters: [tokens], units: 5, per: once, roll_over: true") == [
        ".roll_over: what is given once has no next period"
    ]


def test_a_quota_name_is_given_once_or_for_each_period() -> None:
    once = "quotas: {gift: {meters: [tokens], units: 5, per: once}}"
    monthly = "quotas: {gift: {meters: [tokens], units: 5, per: month}}"
    assert problems_of(CHAT, f"a: {{{once}}}, b: {{{once}}}") == []
    assert problems_of(CHAT, f"a: {{{once}}}, b: {{{monthly}}}") == [
        "plans.b.quotas.gift.per: once here or in plans.a.quotas.gift, but not in both: "
        "give it another name"
    ]
