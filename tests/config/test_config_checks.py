"""Rules and durability that do not fit each other."""

from __future__ import annotations

from pathlib import Path

import pytest

from finomw.config.load import parse
from finomw.errors import ConfigError

CHAT = "{name: chat, match: POST /chat, meter: {tokens: .n, requests: 1}, hold: {tokens: 9}}"
ITEM = "{name: item, match: 'GET /items/{id}', meter: {requests: 1}}"
FREE = "{name: open, match: GET /open, free: true}"


def problems_of(routes: str, plans: str = "default: {}", top: str = "") -> list[str]:
    """Each problem of a configuration as its line; none when it is good."""
    try:
        parse(f"{top}\nplans: {{{plans}}}\nroutes: [{routes}]\n", Path("/srv"))
    except ConfigError as error:
        return [str(problem) for problem in error.problems]
    return []


def test_hold_has_exactly_the_meters_that_are_no_constants() -> None:
    rule = "{name: a, match: GET /, meter: {tokens: .n, pages: .p, requests: 1}, hold: %s}"
    assert problems_of(rule % "{tokens: 4, pages: .pages}") == []
    assert problems_of(rule % "{token: 4, requests: 1, pages: 2}") == [
        "routes[0].hold.tokens: missing: how many at most may one call use?",
        "routes[0].hold.requests: the meter is always 1: it takes no hold",
        "routes[0].hold.token: unknown meter; nearest: tokens; meters here: tokens, pages,"
        " requests",
    ]


def test_a_metered_rule_has_a_meter() -> None:
    assert problems_of("{name: a, match: GET /, meter: {}}") == [
        "routes[0].meter: expected at least one meter"
    ]


def test_a_metered_rule_has_not_more_meters_than_an_ending_has_room_for() -> None:
    meters = [f"m{number}: 1" for number in range(17)]
    rule = "{name: a, match: GET /, meter: {%s}}"
    assert problems_of(rule % ", ".join(meters[:16])) == []
    assert problems_of(rule % ", ".join(meters)) == [
        "routes[0].meter: expected at most 16 meters, found 17"
    ]


def test_a_flat_rule_is_never_released_by_a_crash() -> None:
    flat = "{name: a, match: GET /, meter: {requests: 1}, on_crash: %s}"
    assert problems_of(flat % "settle") == []
    assert problems_of(flat % "release") == [
        "routes[0].on_crash: a flat charge is durable with its hold: leave this out, or write"
        " settle"
    ]


def test_durability_held_needs_settle_on_every_metered_rule() -> None:
    assert problems_of(f"{ITEM}, {FREE}, {CHAT}", top="durability: held") == [
        "routes[2].on_crash: durability: held answers before the settlement is on disk: needs"
        " settle here"
    ]
    settling = CHAT.replace("hold:", "on_crash: settle, hold:")
    assert problems_of(f"{ITEM}, {FREE}, {settling}", top="durability: held") == []


def test_two_rules_cannot_match_the_same_calls() -> None:
    def rules(*matches: str) -> list[str]:
        return problems_of(", ".join(f"{{match: '{match}', free: true}}" for match in matches))

    assert rules("GET /a", "POST /a", "GET /a/", "* /a", "GET /{x}", "GET /{x}/b") == []
    assert rules("GET,POST /a", "PUT /a", "POST,GET /a") == [
        "routes[2].match: POST /a is already matched by routes[0]",
        "routes[2].match: GET /a is already matched by routes[0]",
    ]
    assert rules("* /a/{x}", "* /a/{y}") == [
        "routes[1].match: * /a/{y} is already matched by routes[0]"
    ]


@pytest.mark.parametrize(
    "match",
    ["/a", "GET", "GET a", "get /a", "GET  /a", "GET /a ", "GET /a b", "GET, POST /a", "GET,GET /a",
     "*,GET /a", "GET /a?b", "GET /a#b", "GET /a*", "GET /a%20b", "GET /a\\b", "GET /{a}b",
     "GET /{a:path}", "GET /{}", "GET /{a}/{a}"],
)  # fmt: skip
def test_a_match_that_would_match_nothing_is_refused(match: str) -> None:
    [problem] = problems_of(f"{{match: '{match}', free: true}}")
    assert problem.startswith("routes[0].match: expected METHOD PATH such as ")


def test_checks_do_not_complain_of_what_could_not_be_read() -> None:
    broken = CHAT.replace("tokens: .n", "tokens: 1.5")
    prices = "default: {prices: {chat: {tokens: {usd: 1}}}}"
    assert problems_of(f"{broken}, {ITEM}, {ITEM}", prices) == [
        "routes[0].meter.tokens: expected a whole number from 0 to 9007199254740992 or a jq"
        " program, found 1.5",
        "routes[2].match: GET /items/{id} is already matched by routes[1]",
    ]
    assert problems_of(CHAT, "default: {rounding: 1}, other: {prices: {caht: {}}}") == [
        "plans.default.rounding: expected up or down or half_up, found 1",
        "plans.other.prices.caht: no route has this name; nearest: chat",
    ]


def test_a_flat_rule_has_nothing_to_settle_in_steps_to_cut_or_to_estimate() -> None:
    flat = "{name: a, match: GET /, meter: {requests: 1}, %s}"
    for option in ("settle_every: 5s", "on_ceiling: cut", "estimate: {requests: deltas}"):
        where = option.partition(":")[0]
        assert problems_of(flat % option) == [
            f"routes[0].{where}: the charge is fixed: leave this out"
        ]
    assert problems_of(flat % "on_ceiling: finish") == []


def test_what_is_estimated_has_a_hold_of_its_own() -> None:
    rule = (
        "{name: a, match: POST /, meter: {tokens: .n, cached: .c, requests: 1}, hold: {tokens: 4}, "
        "splits: {cached: {of: tokens}}, estimate: {tokens: bytes/4, cached: deltas, "
        "requests: bytes, token: deltas}}"
    )
    own = "only what has a hold of its own can be estimated"
    assert problems_of(rule) == [
        f"routes[0].estimate.cached: {own}",
        f"routes[0].estimate.requests: {own}",
        "routes[0].estimate.token: unknown meter; nearest: tokens; meters here: tokens, cached,"
        " requests",
    ]


@pytest.mark.parametrize(
    ("option", "expected"),
    [
        ("settle_every: 0s", 'a number of seconds or units such as 5s or 1000 units, found "0s"'),
        ("settle_every: 5", "a number of seconds or units such as 5s or 1000 units, found 5"),
        ("settle_every: 5 tokens", "a number of seconds or units such as 5s or 1000 units"),
        ("estimate: {tokens: bytes / 0}", "hold, none, or a mapping of meters to deltas or bytes"),
        ("estimate: guess", "hold, none, or a mapping of meters to deltas or bytes / N"),
    ],
)
def test_what_streams_are_told_is_read_exactly(option: str, expected: str) -> None:
    rule = f"{{name: a, match: POST /, meter: {{tokens: .n}}, hold: {{tokens: 4}}, {option}}}"
    [problem] = problems_of(rule)
    assert problem.startswith(f"routes[0].{option.partition(':')[0]}: expected {expected}")
