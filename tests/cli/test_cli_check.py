"""finomw check: every problem on a line, or what calls cost."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from conftest import Call

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
        "MATCH       ROUTE   PLAN     FOR      PRICE USD",
        "POST /chat  chat    default  small-1  input_tokens 0.50 per million, output_tokens 1",
        "POST /chat  chat    default  *        input_tokens 5 per million, output_tokens 0.000015",
        "POST /chat  chat    trial             none: calls are refused",
        "* /health   health                    free",
        "",
        f"data        {folder / 'fino-data'}",
        "durability  settled",
        "unmatched   pass",
        "buffer      0.50 USD",
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
        "unmatched": "pass",
        "buffer_micros": 500_000,
        "routes": [
            {
                "match": "POST /chat",
                "name": "chat",
                "free": False,
                "meters": ["input_tokens", "output_tokens"],
            },
            {"match": "* /health", "name": "health", "free": True, "meters": []},
        ],
        "plans": {
            "default": {
                "chat": {
                    "by": ".model",
                    "prices": {
                        "small-1": {
                            "input_tokens": {"usd_per_million": "0.50"},
                            "output_tokens": {"usd": "1"},
                        },
                        "*": {
                            "input_tokens": {"usd_per_million": "5"},
                            "output_tokens": {"usd": "0.000015"},
                        },
                    },
                }
            },
            "trial": {},
        },
    }


def test_rules_that_share_prices_show_their_own_meters(folder: Path, call: Call) -> None:
    (folder / "fino.yaml").write_text("""
plans: {default: {prices: {a: {requests: {usd: 1}, images: {usd: 2}}}}}
routes:
  - {name: a, match: GET /a, meter: {requests: 1}}
  - {name: a, match: GET /b, meter: {images: 4, requests: 1}}
""")
    assert [line[26:].strip() for line in call("check").out.splitlines()[1:3]] == [
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
