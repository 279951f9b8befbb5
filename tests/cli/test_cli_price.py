"""finomw price: what a call costs, line by line, from the YAML alone."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from cli_nodes import Call, Node

PRICES = """\
plans:
  default:
    prices:
      chat:
        - by: .model
          small-1: {input: {usd_per_million: "0.50"}, output: {usd: "0.001"}}
        - valid_from: 2027-01-01T00:00:00Z
          by: .model
          small-1: {input: {usd_per_million: "0.25"}, output: {usd: "0.001"}}
          "*": {input: {usd_per_million: "5"}, output: {usd: "0.002"}, minimum: {usd: "0.01"}}
      search:
        requests: {tiered: [{up_to: 1000, usd: "0.002"}, {usd: "0.001"}]}
        pages: {package: {units: 100, usd: "0.01"}}
  later:
    rounding: down
    prices:
      search:
        - valid_from: 2027-01-01T00:00:00Z
          requests: {usd_per_million: "1.5"}
          pages: {usd: 0}
  open: {unpriced: free}
routes:
  - {name: chat, match: POST /chat, meter: {input: .i, output: .o}, hold: {input: 9, output: 9}}
  - {name: search, match: GET /search, meter: {requests: 1, pages: .n}, hold: {pages: 9}}
  - {name: health, match: GET /health, free: true}
"""


@pytest.fixture
def priced(folder: Path) -> Path:
    """Write the prices; there is no node directory."""
    (folder / "fino.yaml").write_text(PRICES)
    return folder


def test_a_price_is_told_tier_by_tier(priced: Path, call: Call) -> None:
    usage, used = '{"requests": 1500, "pages": 250}', '{"requests": 400}'
    done = call("price", "--plan", "default", "--route", "search", "--usage", usage, "--used", used)
    assert (done.status, done.err) == (0, "")
    lines = done.out.splitlines()
    version = lines[-1].split()[-1]
    assert len(version) == 12
    assert lines == [
        "METER     UNITS  TIER        RATE USD                   AMOUNT USD",
        "requests    600  1 to 1000   0.002 each                       1.20",
        "requests    900  above 1000  0.001 each                       0.90",
        "pages       250              0.01 for each 100 started        0.03",
        "",
        "exact     2.13 USD",
        "rounding  up",
        "total     2.13 USD",
        f"version   {version}",
    ]
    assert [path.name for path in priced.iterdir()] == ["fino.yaml"]


def test_a_price_is_rounded_once_and_a_choice_selects_its_list(priced: Path, call: Call) -> None:
    usage = '{"input": 3, "output": 1}'
    done = call(
        "price", "--route", "chat", "--choice", "small-1", "--usage", usage, "--at", "2026-12-31",
        "--json",
    )  # fmt: skip
    told = json.loads(done.out)
    assert len(told.pop("version")) == 12
    assert told == {
        "plan": "default",
        "route": "chat",
        "choice": "small-1",
        "at": "2026-12-31T00:00:00.000000Z",
        "usage": {"input": 3, "output": 1},
        "used": {},
        "lines": [
            {
                "meter": "input",
                "units": 3,
                "tier": "",
                "rate": "0.50 per million",
                "exact_usd": "0.0000015",
            },
            {
                "meter": "output",
                "units": 1,
                "tier": "",
                "rate": "0.001 each",
                "exact_usd": "0.001",
            },
        ],
        "minimum_usd": None,
        "exact_usd": "0.0010015",
        "rounding": "up",
        "total_micros": 1002,
    }


def test_a_version_holds_from_its_time_on(priced: Path, call: Call) -> None:
    command = ("price", "--route", "chat", "--choice", "small-1", "--usage", '{"input": 4000}')
    before = json.loads(call(*command, "--at", "2026-12-31T23:59:59Z", "--json").out)
    after = json.loads(call(*command, "--at", "2027-01-01", "--json").out)
    assert (before["total_micros"], after["total_micros"]) == (2_000, 1_000)
    assert before["version"] != after["version"]


def test_a_minimum_is_told_where_it_raises_the_price(priced: Path, call: Call) -> None:
    command = ("price", "--route", "chat", "--choice", "x", "--at", "2027-01-01", "--usage")
    lines = call(*command, '{"input": 1}').out.splitlines()
    assert lines[3:7] == [
        "minimum   0.01 USD, which is more than the sum",
        "exact     0.01 USD",
        "rounding  up",
        "total     0.01 USD",
    ]
    assert json.loads(call(*command, '{"input": 1}', "--json").out)["minimum_usd"] == "0.01"
    assert json.loads(call(*command, '{"output": 9}', "--json").out)["minimum_usd"] is None


def test_rounding_is_the_plans(priced: Path, call: Call) -> None:
    command = ("price", "--plan", "later", "--route", "search", "--usage", '{"requests": 1}')
    told = json.loads(call(*command, "--at", "2027-01-01", "--json").out)
    assert (told["exact_usd"], told["total_micros"]) == ("0.0000015", 1)


def test_what_has_no_price_may_be_free(priced: Path, call: Call) -> None:
    told = call("price", "--plan", "open", "--route", "chat", "--usage", '{"any": 7}', "--json")
    assert json.loads(told.out)["total_micros"] == 0


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--route", "chat", "--plan", "x", "--usage", "{}"],
         '--plan: the YAML has no plan "x"; known: default, later, open'),
        (["--route", "serch", "--usage", "{}"],
         '--route: no metered route has the name "serch"; nearest: search'),
        (["--route", "health", "--usage", "{}"],
         '--route: no metered route has the name "health"; nearest: chat'),
        (["--route", "search", "--plan", "later", "--usage", "{}", "--at", "2026-12-31"],
         "--route: the plan later has no price of search at that time"),
        (["--route", "search", "--choice", "x", "--usage", "{}"],
         "--choice: the price of search does not depend on one"),
        (["--route", "chat", "--usage", "{}", "--at", "2026-12-31"],
         "--choice: missing, the price of chat depends on it: small-1"),
        (["--route", "chat", "--usage", "{}", "--at", "2026-12-31", "--choice", "x"],
         '--choice: the plan default has no price of chat for "x"; known: small-1'),
        (["--route", "search", "--usage", "nope"],
         '--usage: expected a JSON object such as {"requests": 1}, found "nope"'),
        (["--route", "search", "--usage", "[1]"],
         '--usage: expected a JSON object such as {"requests": 1}, found "[1]"'),
        (["--route", "search", "--usage", '{"pages": 1.5}'],
         '--usage: "pages" is no count: "1.5"'),
        (["--route", "search", "--usage", '{"pages": -1}'], '--usage: "pages" is no count: "-1"'),
        (["--route", "search", "--usage", '{"pages": null}'],
         '--usage: "pages" is no count: "null"'),
        (["--route", "search", "--usage", '{"page": 1}'],
         'the price plan has no price for the meter "page"'),
        (["--route", "search", "--usage", "{}", "--used", '{"pages": 1}'],
         '--used: no price depends on the use of "pages"; known: requests'),
        (["--route", "search", "--usage", "{}", "--at", "soon"],
         "--at: expected a time such as 2027-01-31T00:00:00Z, a day such as 2027-01-31, "
         'found "soon"'),
    ],
)  # fmt: skip
def test_what_has_no_price_is_told_in_one_line(
    priced: Path, call: Call, options: list[str], message: str
) -> None:
    assert call("price", *options) == (2, "", f"error: {message}\n")


def test_plans_that_do_not_compile_are_summed_up(folder: Path, call: Call) -> None:
    (folder / "fino.yaml").write_text(
        PRICES.replace('usd: "0.01"', 'usd: "1e2"').replace('"1.5"', '"x"')
    )
    done = call("price", "--route", "search", "--usage", "{}")
    assert (done.status, done.out) == (2, "")
    assert done.err.startswith("error: fino.yaml: plans.default.prices.")
    assert done.err.endswith(" more, see `finomw check`\n")


def test_the_price_that_is_told_is_what_a_call_is_charged(shop: Node, call: Call) -> None:
    told = call(
        "price", "--route", "search", "--usage", '{"requests": 3, "pages": 2}', "--json"
    )  # two at 1.00, one at 0.50, two pages at 0.25
    assert json.loads(told.out)["total_micros"] == 3_000_000
