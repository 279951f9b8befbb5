"""Reading the file: every option, every default, and problems that name their place."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from finomw import limits
from finomw.config.load import load, parse
from finomw.config.model import (
    Config,
    FreeRoute,
    MeteredRoute,
    Minimum,
    Package,
    Plan,
    PlanQuota,
    Price,
    Prices,
    RoutePrice,
    Storage,
    Tier,
)
from finomw.errors import ConfigError
from finomw.types import OnCrash, PlanName, RouteName

WHOLE = """
data: ./billing
durability: relaxed
on_failure: pass
unmatched: refuse
buffer_usd: 2
topup_url: https://example.com/billing?from=api
storage: {segment_size: 128KiB, state_size: 2097152, keep: 0, checkpoint_every: 1MiB}
plans:
  default:
    rounding: half_up
    unpriced: free
    period: week
    fund: [quota, wallet]
    quotas:
      free: {meters: [input_tokens, output_tokens], units: 100000, per: day, roll_over: true}
      welcome: {meters: [cost], usd: "5.00", per: once}
    prices:
      chat:
        by: .model
        small-1.5: {input_tokens: {usd_per_million: "0.50"}, output_tokens: {usd: 1}}
        "*": {input_tokens: {usd: "0.1"}, output_tokens: {usd: "0.2"}}
      search:
        - {minimum: {usd: "0.01"}, requests: {package: {units: 100, usd: "0.10"}}}
        - valid_from: 2027-01-01T00:00:00Z
          requests: {tiered: [{up_to: 9, usd: 1}, {usd_per_million: "0.5"}]}
        - valid_from: 2028-01-01T01:00:00.5+01:00
          by: path.index
          "*": {minimum: {usd: 0}, requests: {volume: [{usd: 2}]}}
routes:
  - name: chat
    match: POST /v1/chat/completions
    meter: {input_tokens: .usage.prompt_tokens, output_tokens: .usage.completion_tokens}
    hold: {input_tokens: 4096, output_tokens: ".max_tokens // 512"}
    estimate: {output_tokens: bytes / 4}
    settle_every: 1000 units
    on_ceiling: cut
    on_crash: settle
    charge_errors: true
    overrun: cap
    max_request: 1
    max_body: 1GiB
    too_large: tail
    merge: sum
    ends: [bye]
  - {name: search, match: "GET,POST /v1/search/{index}", meter: {requests: 1}}
  - {match: "* /health", free: true}
"""


def problems_of(text: str) -> list[str]:
    """Each problem of a configuration's text as its line."""
    with pytest.raises(ConfigError) as raised:
        parse(text, Path("/srv"))
    return [str(problem) for problem in raised.value.problems]


def test_every_option_is_read() -> None:
    config = parse(WHOLE, Path("/srv"))
    assert config.data == Path("/srv/billing")
    assert (config.durability, config.on_failure) == ("relaxed", "pass")
    assert config.unmatched == "refuse"
    assert config.buffer_usd == 2
    assert config.topup_url == "https://example.com/billing?from=api"
    assert config.storage == Storage(
        segment_size=128 * limits.KIB,
        state_size=2 * limits.MIB,
        keep=0,
        checkpoint_every=limits.MIB,
    )
    plan = config.plans[PlanName("default")]
    assert plan.rounding == "half_up"
    assert (plan.unpriced, plan.period, plan.fund) == ("free", "week", ("quota", "wallet"))
    assert plan.quotas == {
        "free": PlanQuota(
            meters=("input_tokens", "output_tokens"), units=100_000, per="day", roll_over=True
        ),
        "welcome": PlanQuota(meters=("cost",), usd="5.00", per="once"),
    }
    [chat_price], search_prices = plan.prices.values()
    assert chat_price.by == ".model"
    assert chat_price.lists["small-1.5"].meters == {
        "input_tokens": Price(usd_per_million="0.50"),
        "output_tokens": Price(usd=1),
    }
    first = {"requests": Price(package=Package(units=100, usd="0.10"))}
    second = {"requests": Price(tiered=(Tier(up_to=9, usd=1), Tier(usd_per_million="0.5")))}
    third = {"requests": Price(volume=(Tier(usd=2),))}
    assert search_prices == (
        RoutePrice(lists={"*": Prices(meters=first, minimum=Minimum(usd="0.01"))}, index=0),
        RoutePrice(valid_from=1_798_761_600_000_000, lists={"*": Prices(meters=second)}, index=1),
        RoutePrice(
            valid_from=1_830_297_600_500_000,
            by="path.index",
            lists={"*": Prices(meters=third, minimum=Minimum(usd=0))},
            index=2,
        ),
    )
    chat, search, health = config.routes
    assert isinstance(chat, MeteredRoute)
    assert chat.hold == {"input_tokens": 4096, "output_tokens": ".max_tokens // 512"}
    assert chat.estimate == {"output_tokens": "bytes / 4"}
    assert (chat.settle_every, chat.on_ceiling) == ("1000 units", "cut")
    assert (chat.charge_errors, chat.crash) == (True, OnCrash.SETTLE)
    assert (chat.max_request, chat.max_body, chat.overrun) == (1, limits.GIB, "cap")
    assert (chat.too_large, chat.merge, chat.ends) == ("tail", "sum", ("bye",))
    assert search.match.methods == ("GET", "POST")
    assert search.match.parameters == ("index",)
    assert isinstance(health, FreeRoute)
    assert health.match.methods == ("*",)


def test_what_is_left_out_has_its_default() -> None:
    config = parse("routes: [{match: GET /health, free: true}]", Path("/srv"))
    assert config == Config(data=Path("/srv/fino-data"), routes=config.routes)
    assert (config.durability, config.unmatched, config.buffer_usd) == ("settled", "pass", "1.00")
    assert config.on_failure == "refuse"
    assert config.storage == Storage(segment_size=limits.SEGMENT_SIZE, state_size=limits.STATE_SIZE)
    assert config.storage.keep == 256 * limits.MIB
    assert config.storage.checkpoint_every == 64 * limits.MIB
    plan = Plan()
    assert (plan.rounding, plan.unpriced, plan.period) == ("up", "refuse", "month")
    assert plan.fund == ("quota", "wallet", "credit")
    [rule] = parse(
        "{plans: {a: {}}, routes: [{name: b, match: GET /b, meter: {requests: 1}}]}", Path()
    ).routes
    assert isinstance(rule, MeteredRoute)
    assert rule.overrun == "charge"
    assert (rule.estimate, rule.settle_every, rule.on_ceiling) == ("hold", None, "finish")


def test_the_default_of_on_crash_depends_on_the_meters() -> None:
    routes = parse(
        """
        plans: {default: {}}
        routes:
          - {name: flat, match: GET /a, meter: {requests: 1}}
          - {name: read, match: GET /b, meter: {requests: 1, tokens: .n}, hold: {tokens: 9}}
        """,
        Path("/srv"),
    ).routes
    assert [route.crash for route in routes if isinstance(route, MeteredRoute)] == [
        OnCrash.SETTLE,
        OnCrash.RELEASE,
    ]


def test_load_resolves_data_against_the_files_folder(tmp_path: Path) -> None:
    (tmp_path / "fino.yaml").write_text("data: here\nroutes: []\n")
    assert load(tmp_path / "fino.yaml").data == tmp_path / "here"
    (tmp_path / "fino.yaml").write_text("data: /var/lib/fino\nroutes: []\n")
    assert load(str(tmp_path / "fino.yaml")).data == Path("/var/lib/fino")


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"none\.yaml: cannot be read: No such file"):
        load(tmp_path / "none.yaml")
    (tmp_path / "latin.yaml").write_bytes(b"data: \xe9\n")
    with pytest.raises(ConfigError, match=r"latin\.yaml: not UTF-8 at byte 6"):
        load(tmp_path / "latin.yaml")


@pytest.mark.parametrize("value", ['""', '"a\\0"', "1", "[a]"])
def test_data_is_a_path(value: str) -> None:
    [problem] = problems_of(f"{{data: {value}, routes: []}}")
    assert problem.startswith("data: expected the path of a directory, found ")


@pytest.mark.parametrize("text", ["", "# nothing\n", "---\n", "null"])
def test_an_empty_file_is_refused(text: str) -> None:
    assert problems_of(text) == ["the file is empty: expected at least routes"]


def test_the_top_level_is_a_mapping() -> None:
    assert problems_of("- a")[0].endswith("topup_url, storage, plans, routes, found a list")


def test_all_problems_are_told_at_once_with_their_paths() -> None:
    assert problems_of(
        """
        durabilty: settled
        data:
        buffer_usd: 0.50
        topup_url: ftp://example.com
        storage: {segment_size: 16MB, state_size: 1052673, keep: -1, checkpoint_every: 1KiB}
        plans:
          default:
            rounding: upp
            quota: {}
            fund: [quota, cash]
            quotas: {a b: {meters: tokens, units: 0, per: months}}
            prices:
              chat: {input_tokens: {usd_per_million: {}}, output_tokens: {us: 1}}
              a: {minimum: "0.1", by: {usd: 1}}
              b: [{valid_from: 2027-01-01, x: {usd: 1}}, {valid_from: 5, by: .m, m: 3}, 7]
              c: {n: {tiered: {usd: 1}}, o: {volume: [{upto: 1, usd: 0.5}, 1]}}
              d: {n: {package: {units: 1.5}}}
        routes:
          - {name: chat, match: POST /v1/*, meter: {Tokens: .n}, hold: {tokens: -1}}
          - {match: GET /health, free: yes}
          - {match: GET /free, free: true, meter: {requests: 1}}
          - 5
          - {match: GET /a, name: a b, meter: [1], charge_errors: on, estimate: 1}
          - {}
        """
    ) == [
        "durabilty: unknown option; nearest: durability; known here: data, durability,"
        " on_failure, unmatched, buffer_usd, topup_url, storage, plans, routes",
        "data: expected the path of a directory, found nothing",
        'buffer_usd: a floating-point number: write it in quotes: "0.50"',
        'topup_url: expected an http or https address, found "ftp://example.com"',
        "storage.segment_size: expected a size from 64KiB to 1GiB, in bytes or such as 16MiB,"
        ' a multiple of 4KiB, found "16MB"',
        "storage.state_size: expected a size from 1MiB to 1024GiB, in bytes or such as 16MiB,"
        " a multiple of 4KiB, found 1052673",
        "storage.keep: expected a size from 0 to 1024GiB, in bytes or such as 16MiB, found -1",
        "storage.checkpoint_every: expected a size from 64KiB to 1024GiB, in bytes or such as"
        ' 16MiB, found "1KiB"',
        "plans.default.quota: unknown option; nearest: quotas; known here: rounding,"
        " unpriced, period, fund, quotas, prices",
        'plans.default.rounding: expected up or down or half_up, found "upp"',
        'plans.default.fund[1]: expected quota or wallet or credit, found "cash"',
        'plans.default.quotas["a b"]: expected a name of 1 to 64 letters, digits, _ . -,'
        ' found "a b"',
        'plans.default.quotas["a b"].meters: expected a list of meters, or [cost], found "tokens"',
        'plans.default.quotas["a b"].units: expected a whole number of units, 1 to'
        " 9007199254740992, found 0",
        'plans.default.quotas["a b"].per: expected hour or day or week or month or year or'
        ' once, found "months"',
        "plans.default.prices.chat.input_tokens.usd_per_million: expected a decimal amount in"
        ' quotes such as "0.50", found a mapping',
        "plans.default.prices.chat.output_tokens.us: unknown option; nearest: usd; known"
        " here: usd, usd_per_million, package, tiered, volume",
        "plans.default.prices.a.by: expected a text, found a mapping",
        'plans.default.prices.a.minimum: expected a mapping, found "0.1"',
        "plans.default.prices.b[0].valid_from: expected a time with its offset such as"
        ' 2027-01-01T00:00:00Z, found "2027-01-01"',
        "plans.default.prices.b[1].valid_from: expected a time with its offset such as"
        " 2027-01-01T00:00:00Z, found 5",
        "plans.default.prices.b[1].m: expected a mapping, found 3",
        "plans.default.prices.b[2]: expected a mapping, found 7",
        "plans.default.prices.c.n.tiered: expected a list of tiers, found a mapping",
        "plans.default.prices.c.o.volume[0].upto: unknown option; nearest: up_to; known here:"
        " usd, usd_per_million, up_to",
        "plans.default.prices.c.o.volume[0].usd: a floating-point number: write it in quotes:"
        ' "0.5"',
        "plans.default.prices.c.o.volume[1]: expected a mapping of usd, usd_per_million,"
        " up_to, found 1",
        "plans.default.prices.d.n.package.units: expected a whole number of units, 1 to"
        " 9007199254740992, found 1.5",
        "plans.default.prices.d.n.package.usd: missing: expected a decimal amount in quotes"
        ' such as "0.50"',
        "routes[0].match: expected METHOD PATH such as POST /v1/items/{id} (methods in"
        " capitals, several with commas, or *; WS for WebSockets; each segment of the path literal"
        " or a {name}),"
        ' found "POST /v1/*"',
        "routes[0].meter.Tokens: expected a meter's name in lower-case letters, digits and _,"
        ' other than by, minimum, valid_from, cost, found "Tokens"',
        "routes[0].hold.tokens: expected a whole number from 0 to 9007199254740992, a jq program"
        " on the request, or request_bytes / N, found -1",
        'routes[1].free: expected true or false, found "yes"',
        "routes[2].meter: not in a rule with free: true; known here: match, free, name",
        "routes[3]: expected a mapping of match, found 5",
        'routes[4].name: expected a name of 1 to 64 letters, digits, _ . -, found "a b"',
        "routes[4].meter: expected a mapping of meters, or the name of a preset, found a list",
        "routes[4].estimate: expected hold, none, or a mapping of meters to deltas or bytes / N, "
        "found 1",
        'routes[4].charge_errors: expected true or false, found "on"',
        "routes[5].match: missing: expected METHOD PATH such as POST /v1/items/{id} (methods"
        " in capitals, several with commas, or *; WS for WebSockets; each segment of the path"
        " literal or a {name})",
        "routes[5].name: missing: expected a name of 1 to 64 letters, digits, _ . -",
        "routes[5].meter: missing: expected a mapping of meters, or the name of a preset",
    ]


@pytest.mark.parametrize("value", ["0.5", ".5", "5.", "-1.5", "1.5e3", ".inf", ".nan"])
def test_money_is_never_a_floating_point_number(value: str) -> None:
    assert problems_of(f"{{buffer_usd: {value}, routes: []}}") == [
        f'buffer_usd: a floating-point number: write it in quotes: "{value}"'
    ]


@pytest.mark.parametrize(
    ("written", "read"),
    [("3", 3), ("010", 10), ("1_000", "1_000"), ("1:30", "1:30"), ("0x10", "0x10"), ("no", "no")],
)
def test_yaml_does_not_guess_numbers(written: str, read: object) -> None:
    assert parse(f"{{buffer_usd: {written}, routes: []}}", Path()).buffer_usd == read


@pytest.mark.parametrize("value", ["true", "", "~", "[]", "{}"])
def test_money_is_text_or_an_integer(value: str) -> None:
    [problem] = problems_of(f"{{buffer_usd: {value}, routes: []}}")
    assert problem.startswith('buffer_usd: expected a decimal amount in quotes such as "0.50"')


@pytest.mark.parametrize("key", ["4", "3.5", "on", "null", "2026-01-01"])
def test_keys_are_names_as_written(key: str) -> None:
    config = parse(
        f"""
        plans: {{default: {{prices: {{a: {{by: .m, {key}: {{requests: {{usd: 0}}}}}}}}}}}}
        routes: [{{name: a, match: GET /, meter: {{requests: 1}}}}]
        """,
        Path(),
    )
    [version] = config.plans[PlanName("default")].prices[RouteName("a")]
    assert list(version.lists) == [key]


@settings(derandomize=True, max_examples=300, deadline=None)
@given(st.text(alphabet="ab:{}[]-,\"'&*!#|>%@$?.~0 \n\t\\u\x00\ufeff", max_size=40))
def test_any_text_is_a_config_or_a_config_error(text: str) -> None:
    try:
        parse(text, Path())
    except ConfigError as error:
        problems = error.problems
    else:
        return
    assert problems


_NAMES = st.sampled_from(
    ["data", "durability", "storage", "plans", "default", "prices", "chat", "by", "*", "usd",
     "routes", "match", "name", "meter", "requests", "hold", "free", "on_crash"]
)  # fmt: skip
_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5) | _NAMES,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_NAMES, inner, max_size=4),
    max_leaves=12,
)


@settings(derandomize=True, max_examples=300, deadline=None)
@given(st.dictionaries(_NAMES, _VALUES, max_size=5))
def test_any_tree_is_a_config_or_a_config_error(tree: dict[str, object]) -> None:
    try:
        parse(yaml.safe_dump(tree), Path())
    except ConfigError as error:
        line = str(error)
    else:
        return
    assert line.isprintable()
