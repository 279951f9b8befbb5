"""finomw check: every problem on a line, or what calls cost."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from cli_nodes import Call

PRICED = """
buffer_usd: "0.50"
plans:
  default:
    prices:
      chat:
        by: .model
        small-1: {input_tokens: {usd_per_million: "0.50"}, output_tokens: {usd: 1}}
        "*": {input_tokens: {usd_per_million: 5}, output_tokens: {usd: "0.000015"}}
  trial: {}
routes:
  - name: chat
    match: POST /chat
    meter: {input_tokens: .usage.input, output_tokens: .usage.output}
    hold: {input_tokens: 4096, output_tokens: .max_tokens}
  - {name: health, match: "* /health", free: true}
"""

RICH = """
plans:
  main:
    rounding: half_up
    period: day
    fund: [quota, credit]
    quotas:
      first: {meters: [tokens, documents], units: 1000, per: month, roll_over: true}
      welcome: {meters: [cost], usd: "0.50", per: once}
    prices:
      chat:
        - {by: .model, small-1: {tokens: {usd_per_million: "0.50"}, minimum: {usd: "0.001"}}}
        - {valid_from: "2027-01-01T00:00:00+01:00", tokens: {usd_per_million: "0.40"}}
      search:
        requests: {tiered: [{up_to: 1000, usd: "0.002"}, {usd_per_million: 100}]}
        documents: {package: {units: 50, usd: "0.01"}}
  free:
    unpriced: free
    prices:
      search:
        by: .kind
        a: {requests: {volume: [{up_to: 5, usd: 3}, {usd: 2}]}, documents: {usd: 0}}
routes:
  - {name: chat, match: POST /chat, meter: {tokens: .n}, hold: {tokens: 100}}
  - {name: search, match: GET /search, meter: {requests: 1, documents: .n}, hold: {documents: 9}}
"""

TERMS = {
    "rounding": "up",
    "unpriced": "refuse",
    "period": "month",
    "fund": ["quota", "wallet", "credit"],
    "quotas": {},
}

WRONG = """
buffer_usd: "1.0000001"
plans:
  default: {prices: {chat: {by: ".model |", "*": {tokens: {usd: 1}}}}}
  pro: {prices: {chat: {tokens: {usd: "1e3"}}, read: {tokens: {usd: 1}}}}
routes:
  - {name: chat, match: POST /chat, meter: {tokens: .n}, hold: {tokens: ".n ]"}}
  - {name: chat, match: POST /talk, meter: {tokens: .n}, hold: {tokens: .n}}
  - {name: read, match: POST /read, meter: {tokens: ".usage |"}, hold: {tokens: .n}}
"""


def test_check_shows_what_each_route_costs(folder: Path, call: Call) -> None:
    (folder / "fino.yaml").write_text(PRICED)
    done = call("check")
    assert (done.status, done.err) == (0, "")
    assert done.out.splitlines() == [
        "MATCH       ROUTE   PLAN     FROM UTC  FOR      PRICE USD",
        "POST /chat  chat    default            small-1  input_tokens 0.50 per million,"
        " output_tokens 1",
        "POST /chat  chat    default            *        input_tokens 5 per million,"
        " output_tokens 0.000015",
        "POST /chat  chat    trial                       none: calls are refused",
        "* /health   health                              free",
        "",
        "PLAN     FUND                   ROUNDING  TIERS COUNT BY  UNPRICED",
        "default  quota, wallet, credit  up        month           refuse",
        "trial    quota, wallet, credit  up        month           refuse",
        "",
        f"data        {folder / 'fino-data'}",
        "durability  settled",
        "on failure  refuse",
        "unmatched   pass",
        "buffer      0.50 USD",
    ]


def test_check_verbose_shows_how_each_program_runs(folder: Path, call: Call) -> None:
    (folder / "fino.yaml").write_text(PRICED)
    assert "RUNS AS" not in call("check").out
    lines = [line.split() for line in call("check", "-v").out.splitlines()]
    assert [
        "chat",
        "meter",
        "input_tokens",
        ".usage.input",
        "decode",
        "of",
        ".usage.input",
    ] in lines
    assert ["chat", "hold", "output_tokens", ".max_tokens", "decode", "of", ".max_tokens"] in lines
    assert ["chat", "by", "in", "default", ".model", "decode", "of", ".model"] in lines


def test_check_knows_websockets_and_what_rewrites(folder: Path, call: Call) -> None:
    (folder / "fino.yaml").write_text("""
plans: {default: {prices: {talk: {tokens: {usd: "1"}, size: {usd: "2"}}}}}
routes:
  - match: WS /talk
    name: talk
    receive: {size: bytes}
    send: {tokens: .usage.tokens}
    hold: {tokens: 5, size: 9}
  - match: POST /talk
    name: talk
    meter: {tokens: .usage.tokens, size: app}
    hold: {tokens: 5, size: 9}
    request: {transform: .n = 1}
    response: {transform_events: "until(.n; .)"}
""")
    told = call("check", "-v")
    assert (told.status, told.err) == (0, "")
    lines = [line.split() for line in told.out.splitlines()]
    assert ["WS", "/talk", "talk", "default", "tokens", "1,", "size", "2"] in lines
    decode = [".usage.tokens", "decode", "of", ".usage.tokens"]
    assert ["talk", "send", "tokens", *decode] in lines
    assert ["talk", "meter", "tokens", *decode] in lines
    whole = ["jq", "on", "the", "whole", "document"]
    assert ["talk", "request.transform", ".n", "=", "1", *whole] in lines
    apart = [*whole[:-1], "document,", "in", "the", "helper", "process"]
    assert ["talk", "response.transform_events", "until(.n;", ".)", *apart] in lines
    routes = json.loads(call("check", "--json").out)["routes"]
    assert [(route["match"], route["meters"]) for route in routes] == [
        ("WS /talk", ["size", "tokens"]),
        ("POST /talk", ["tokens", "size"]),
    ]


def test_check_tells_programs_the_same(folder: Path, call: Call) -> None:
    (folder / "fino.yaml").write_text(PRICED)
    done = call("check", "--json")
    assert (done.status, done.err) == (0, "")
    assert json.loads(done.out) == {
        "ok": True,
        "problems": [],
        "data": str(folder / "fino-data"),
        "durability": "settled",
        "on_failure": "refuse",
        "unmatched": "pass",
        "buffer_micros": 500_000,
        "routes": [
            {
                "match": "POST /chat",
                "name": "chat",
                "free": False,
                "meters": ["input_tokens", "output_tokens"],
                "splits": {},
            },
            {
                "match": "* /health",
                "name": "health",
                "free": True,
                "meters": [],
                "splits": {},
            },
        ],
        "plans": {
            "default": TERMS
            | {
                "prices": {
                    "chat": [
                        {
                            "valid_from": None,
                            "by": ".model",
                            "prices": {
                                "small-1": {
                                    "minimum_usd": None,
                                    "meters": {
                                        "input_tokens": {"usd_per_million": "0.50"},
                                        "output_tokens": {"usd": "1"},
                                    },
                                },
                                "*": {
                                    "minimum_usd": None,
                                    "meters": {
                                        "input_tokens": {"usd_per_million": "5"},
                                        "output_tokens": {"usd": "0.000015"},
                                    },
                                },
                            },
                        }
                    ]
                }
            },
            "trial": TERMS | {"prices": {}},
        },
    }


def test_check_shows_versions_tiers_packages_minimums_and_quotas(folder: Path, call: Call) -> None:
    (folder / "fino.yaml").write_text(RICH)
    done = call("check")
    assert (done.status, done.err) == (0, "")
    assert done.out.splitlines()[:13] == [
        "MATCH        ROUTE   PLAN  FROM UTC             FOR      PRICE USD",
        "POST /chat   chat    main                       small-1  tokens 0.50 per million,"
        " at least 0.001",
        "POST /chat   chat    main                       others   none: calls are refused",
        "POST /chat   chat    main  2026-12-31 23:00:00           tokens 0.40 per million",
        "POST /chat   chat    free                                free",
        "GET /search  search  main                                requests tiered"
        " (0.002 up to 1000; 100 per million above), documents 0.01 for each 50 started",
        "GET /search  search  free                       a        requests volume"
        " (3 up to 5; 2 above), documents 0",
        "GET /search  search  free                       others   free",
        "",
        "PLAN  FUND                   ROUNDING  TIERS COUNT BY  UNPRICED",
        "main  quota, credit          half_up   day             refuse",
        "free  quota, wallet, credit  up        month           free",
        "",
    ]
    assert done.out.splitlines()[13:17] == [
        "PLAN  QUOTA    METERS                GIVES  PER    ROLLS OVER",
        "main  first    tokens, documents      1000  month  yes",
        "main  welcome  cost               0.50 USD  once   no",
        "",
    ]
    plans = json.loads(call("check", "--json").out)["plans"]
    assert plans["main"] == {
        "rounding": "half_up",
        "unpriced": "refuse",
        "period": "day",
        "fund": ["quota", "credit"],
        "quotas": {
            "first": {
                "meters": ["tokens", "documents"],
                "units": 1000,
                "usd": None,
                "per": "month",
                "roll_over": True,
            },
            "welcome": {
                "meters": ["cost"],
                "units": None,
                "usd": "0.50",
                "per": "once",
                "roll_over": False,
            },
        },
        "prices": {
            "chat": [
                {
                    "valid_from": None,
                    "by": ".model",
                    "prices": {
                        "small-1": {
                            "minimum_usd": "0.001",
                            "meters": {"tokens": {"usd_per_million": "0.50"}},
                        }
                    },
                },
                {
                    "valid_from": "2026-12-31T23:00:00.000000Z",
                    "by": None,
                    "prices": {
                        "*": {
                            "minimum_usd": None,
                            "meters": {"tokens": {"usd_per_million": "0.40"}},
                        }
                    },
                },
            ],
            "search": [
                {
                    "valid_from": None,
                    "by": None,
                    "prices": {
                        "*": {
                            "minimum_usd": None,
                            "meters": {
                                "requests": {
                                    "tiered": [
                                        {"up_to": 1000, "usd": "0.002"},
                                        {"up_to": None, "usd_per_million": "100"},
                                    ]
                                },
                                "documents": {"package": {"units": 50, "usd": "0.01"}},
                            },
                        }
                    },
                }
            ],
        },
    }
    assert plans["free"]["prices"]["search"][0]["prices"]["a"]["meters"]["requests"] == {
        "volume": [{"up_to": 5, "usd": "3"}, {"up_to": None, "usd": "2"}]
    }


def test_rules_that_share_prices_show_their_own_meters(folder: Path, call: Call) -> None:
    (folder / "fino.yaml").write_text("""
plans: {default: {prices: {a: {requests: {usd: 1}, images: {usd: 2}}}}}
routes:
  - {name: a, match: GET /a, meter: {requests: 1}}
  - {name: a, match: GET /b, meter: {images: 4, requests: 1}}
""")
    assert [line[36:].strip() for line in call("check").out.splitlines()[1:3]] == [
        "requests 1",
        "requests 1, images 2",
    ]


def test_check_prints_every_problem_that_the_reading_finds(folder: Path, call: Call) -> None:
    (folder / "fino.yaml").write_text(
        "durability: maybe\nroutes: [{match: GET /a, free: true}, {match: GET /a, free: true}]\n"
    )
    done = call("check")
    assert (done.status, done.out) == (2, "")
    assert done.err.splitlines() == [
        'durability: expected settled or held or relaxed, found "maybe"',
        "routes[1].match: GET /a is already matched by routes[0]",
    ]


def test_check_prints_every_problem_that_only_compiling_finds(folder: Path, call: Call) -> None:
    (folder / "fino.yaml").write_text(WRONG)
    done = call("check")
    assert (done.status, done.out) == (2, "")
    paths = [line.partition(": ")[0] for line in done.err.splitlines()]
    assert sorted(paths) == [
        "buffer_usd",
        "plans.default.prices.chat.by",
        "plans.pro.prices.chat.tokens.usd",
        "routes[0].hold.tokens",
        "routes[2].meter.tokens",
    ]
    told = call("check", "--json")
    assert told.status == 2
    document = json.loads(told.out)
    assert document["ok"] is False
    assert [problem["path"] for problem in document["problems"]] == paths
    assert document["problems"][0] == {
        "path": "buffer_usd",
        "message": "finer than a micro-dollar (6 decimals at most): 1.0000001",
    }


def test_check_names_a_file_that_is_not_there(folder: Path, call: Call) -> None:
    done = call("check", "-c", "none.yaml")
    assert done == (2, "", "none.yaml: cannot be read: No such file or directory\n")


def test_the_environment_may_name_the_file(
    folder: Path, call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / "other.yaml").write_text(PRICED)
    monkeypatch.setenv("FINOMW_CONFIG", "other.yaml")
    assert call("check").status == 0
    assert call("check", "--config", "fino.yaml").status == 2
