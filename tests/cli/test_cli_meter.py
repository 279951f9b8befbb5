"""finomw meter try: what a rule makes of a saved request and answer."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from cli_nodes import Call

PAYLOADS = Path(__file__).parent.parent / "metering" / "payloads"
CONFIG = """\
plans:
  default:
    prices:
      chat:
        by: .model
        demo:
          input_tokens: {usd_per_million: "3"}
          cached_input_tokens: {usd_per_million: "0.30"}
          output_tokens: {usd_per_million: "15"}
      search: {pages: {usd: "0.01"}}
      tools: {by: .params.name, "*": {calls: {usd: 0}}, search: {calls: {usd: "0.5"}}}
  other: {unpriced: free}
routes:
  - {name: chat, match: POST /v1/chat/completions, extends: openai.chat, ceiling: 500}
  - {name: search, match: GET /search, meter: {pages: .pages | length}, hold: {pages: 9}}
  - {name: search, match: POST /search, meter: {pages: .n}, hold: {pages: .n}}
  - {name: tools, match: POST /mcp, meter: mcp.tools}
"""


@pytest.fixture
def files(folder: Path) -> Path:
    (folder / "fino.yaml").write_text(CONFIG)
    (folder / "request.json").write_text('{"model": "demo", "max_tokens": 300}')
    return folder


def tried(call: Call, *arguments: str) -> dict[str, object]:
    done = call("meter", "try", *arguments, "--json")
    assert (done.status, done.err) == (0, "")
    document = json.loads(done.out)
    assert isinstance(document, dict)
    return document


def test_try_shows_programs_hold_counts_and_price(files: Path, call: Call) -> None:
    answer = PAYLOADS / "openai_chat.json"
    done = call(
        "meter", "try", "--route", "chat", "--request", "request.json", "--response", str(answer)
    )
    assert (done.status, done.err) == (0, "")
    meters, programs, prices, fields = done.out.split("\n\n")
    assert meters.splitlines() == [
        "METER                PART OF        HOLD  COUNT",
        "input_tokens                          36    274",
        "cached_input_tokens  input_tokens          1536",
        "audio_input_tokens   input_tokens             0",
        "output_tokens                        300    240",
        "audio_output_tokens  output_tokens            0",
    ]
    first, *_, last = programs.splitlines()[1:]
    assert first.split("  ")[0] == "meter input_tokens"
    assert first.endswith("  decode of .usage.prompt_tokens")
    assert last.endswith("jq on .max_completion_tokens, .max_tokens, .n")
    assert [line.split() for line in prices.splitlines()[1:]] == [
        ["input_tokens", "274", "3.00", "per", "million", "0.000822"],
        ["cached_input_tokens", "1536", "0.30", "per", "million", "0.0004608"],
        ["output_tokens", "240", "15.00", "per", "million", "0.0036"],
    ]
    assert fields.splitlines() == [
        "merge         last",
        "choice        demo",
        "hold          0.004608 USD",
        "usage         known",
        "error object  no",
        "price         0.004883 USD, up",
    ]


@pytest.mark.parametrize(
    "file",
    [
        "openai_chat_stream.sse",
        "openai_chat_stream.sse.gz",
        "openai_chat_stream.sse.br",
        "openai_chat_stream.sse.zst",
    ],
)
def test_try_reads_streams_also_compressed_by_the_name_of_the_file(
    files: Path, call: Call, file: str
) -> None:
    document = tried(call, "--route", "chat", "--response", str(PAYLOADS / file), "--plan", "other")
    assert document["usage"] == {
        "status": "known",
        "counts": {
            "input_tokens": 37,
            "cached_input_tokens": 0,
            "audio_input_tokens": 0,
            "output_tokens": 5,
            "audio_output_tokens": 0,
        },
        "error": False,
    }
    assert document["hold"] == {
        "counts": {"input_tokens": 1, "output_tokens": 500},
        "amount_micros": 0,
    }


def test_try_takes_the_type_and_the_coding_as_options(files: Path, call: Call) -> None:
    body = files / "saved"
    body.write_bytes((PAYLOADS / "openai_chat_stream.sse.gz").read_bytes())
    document = tried(
        call,
        *("--route", "POST /v1/chat/completions", "--response", "saved", "--plan", "other"),
        *("--content-type", "text/event-stream", "--content-encoding", "gzip"),
    )
    usage = document["usage"]
    assert isinstance(usage, dict)
    assert usage["status"] == "known"


def test_try_needs_no_answer_and_no_request(files: Path, call: Call) -> None:
    document = tried(call, "--route", "GET /search")
    assert (document["usage"], document["price"]) == (None, None)
    assert document["hold"] == {"counts": {"pages": 9}, "amount_micros": 90_000}


def test_try_says_what_has_no_usage_and_no_price(files: Path, call: Call) -> None:
    answer = PAYLOADS / "openai_chat_stream_no_usage.sse"
    done = call("meter", "try", "--route", "chat", "--response", str(answer))
    assert (done.status, done.err) == (0, "")
    assert done.out.splitlines()[-3:] == [
        "hold          the call has no price",
        "usage         missing",
        "error object  no",
    ]


def test_try_prices_the_calls_of_a_batch(files: Path, call: Call) -> None:
    one = {"method": "tools/call", "params": {"name": "search"}}
    (files / "batch.json").write_text(json.dumps([one, {"method": "notifications/x"}, one]))
    results = [{"result": {"content": []}}, {"result": {"content": [], "isError": True}}]
    (files / "answer.json").write_text(json.dumps(results))
    document = tried(
        call, "--route", "tools", "--request", "batch.json", "--response", "answer.json"
    )
    assert document["choice"] == "search"
    assert document["hold"] == {"counts": {"calls": 2}, "amount_micros": 1_000_000}
    usage, price = document["usage"], document["price"]
    assert isinstance(usage, dict)
    assert isinstance(price, dict)
    assert (usage["counts"], usage["error"]) == ({"calls": 1}, True)
    assert price["total_micros"] == 500_000


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (["--route", "chta"], '--route: no metered rule has the name "chta"; known: chat, '),
        (
            ["--route", "search"],
            '--route: several rules have the name "search"; known: GET /search, POST /search',
        ),
        (
            ["--route", "POST /search", "--request", "request.json"],
            "--request: the call would be refused: pages: the request gives null, expected",
        ),
        (["--route", "chat", "--plan", "x"], '--plan: the YAML has no plan "x"'),
        (["--route", "chat", "--response", "none.json"], "none.json: No such file or directory"),
        (
            ["--route", "tools", "--request", "mixed.json"],
            "--request: the calls of this batch have prices of their own, by .params.name",
        ),
    ],
)
def test_try_says_in_one_line_what_is_wrong(
    files: Path, call: Call, arguments: list[str], error: str
) -> None:
    tools = [{"method": "tools/call", "params": {"name": name}} for name in ("search", "fetch")]
    (files / "mixed.json").write_text(json.dumps(tools))
    done = call("meter", "try", *arguments)
    assert (done.status, done.out) == (2, "")
    assert done.err.startswith(f"error: {error}")
    assert len(done.err.splitlines()) == 1


def test_try_says_that_a_program_is_wrong(files: Path, call: Call) -> None:
    (files / "fino.yaml").write_text(CONFIG.replace("{pages: .n}, hold", '{pages: ".n |"}, hold'))
    done = call("meter", "try", "--route", "POST /search")
    assert done.status == 2
    assert done.err.startswith("error: fino.yaml: routes[2].meter.pages: jq: error:")
