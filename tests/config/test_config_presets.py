"""Presets: what ships, and what a rule gets that names one."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec.structs import replace

from finomw.config import presets
from finomw.config.load import parse
from finomw.config.model import MeteredRoute, Split
from finomw.errors import ConfigError, InvalidValue

OPEN = "plans: {default: {unpriced: free}}\nroutes:\n"
NAMES = (
    *("anthropic.messages", "cohere.chat", "gemini.generate", "mcp.tools", "ollama.chat"),
    *("openai.chat", "openai.embeddings", "openai.responses", "vllm"),
)
OWN = """\
  - name: r
    match: POST /r
    extends: openai.chat
    meter: {output_tokens: .out, calls: 1}
    splits: {audio_output_tokens: {of: output_tokens}}
    hold: {output_tokens: 9}
    context: 77
    charge_errors: true
"""


def rules(text: str) -> list[MeteredRoute]:
    return [route for route in parse(OPEN + text, Path()).routes if isinstance(route, MeteredRoute)]


def problems(text: str) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        parse(OPEN + text, Path())
    return [str(problem) for problem in caught.value.problems]


def indented(text: str) -> str:
    return "".join(f"  {line}\n" for line in text.splitlines())


def test_these_presets_ship() -> None:
    assert presets.names() == NAMES


@pytest.mark.parametrize("name", NAMES)
def test_a_preset_that_is_pasted_is_the_rule_that_one_gets_who_names_it(name: str) -> None:
    (pasted,) = rules(indented(presets.as_rule(name)))
    assert pasted.extends is None
    match = f"{','.join(pasted.match.methods)} {pasted.match.path}"
    for option in ("meter", "extends"):
        (named,) = rules(f"  - {{name: {pasted.name}, match: {match!r}, {option}: {name}}}\n")
        assert named == replace(pasted, extends=name)


@pytest.mark.parametrize("name", NAMES)
def test_a_preset_shows_what_it_is_for_in_lines_that_fit(name: str) -> None:
    text = presets.as_rule(name)
    assert text.startswith("# ")
    assert text.endswith("\n")
    assert max(map(len, text.splitlines())) <= 102


def test_a_rule_lays_its_own_over_the_preset() -> None:
    (rule,) = rules(OWN)
    (base,) = rules("  - {name: r, match: POST /r, meter: openai.chat}\n")
    assert rule.meter == {**base.meter, "output_tokens": ".out", "calls": 1}
    assert rule.splits == {**base.splits, "audio_output_tokens": Split(of="output_tokens")}
    assert rule.hold == {**base.hold, "output_tokens": 9}
    assert (rule.context, rule.ceiling, rule.charge_errors) == (77, base.ceiling, True)
    assert rule.references == base.references


def test_a_meter_that_the_rule_makes_constant_takes_no_hold() -> None:
    (rule,) = rules("  - {name: r, match: GET /r, extends: mcp.tools, meter: {calls: 1}}\n")
    assert (rule.meter, rule.hold) == ({"calls": 1}, {})
    own = "  - {name: r, match: GET /r, extends: mcp.tools, meter: {calls: 1}, hold: {calls: 2}}\n"
    assert problems(own) == ["routes[0].hold.calls: the meter is always 1: it takes no hold"]


@pytest.mark.parametrize(
    ("rule", "expected"),
    [
        (
            "meter: openai.chta",
            'routes[0].meter: no preset has the name "openai.chta"; nearest: openai.chat',
        ),
        (
            "extends: x, meter: {a: 1}",
            f'routes[0].extends: no preset has the name "x"; known: {", ".join(NAMES)}',
        ),
        (
            "meter: vllm, extends: vllm",
            "routes[0].extends: not with a preset as the meter: write its meters here, "
            "or leave this out",
        ),
        ("meter: 5", "routes[0].meter: expected a mapping of meters, or the name of a preset"),
        (
            "meter: vllm, ceiling: 0",
            "routes[0].ceiling: expected a whole number from 1 to 9007199254740992 "
            "or a jq program on the request, found 0",
        ),
    ],
)
def test_what_is_wrong_with_a_preset_is_told(rule: str, expected: str) -> None:
    (told,) = problems(f"  - {{name: r, match: POST /r, {rule}}}\n")
    assert told.startswith(expected)


@pytest.mark.parametrize(
    ("rule", "expected"),
    [
        ("splits: {b: {of: a}}", "routes[0].splits.b: unknown meter; meters here: a, c, n"),
        ("splits: {c: {of: b}}", "routes[0].splits.c.of: unknown meter; meters here: a, c, n"),
        (
            "splits: {c: {of: n}}",
            "routes[0].splits.c: both meters have to be read from the answer",
        ),
        ("splits: {c: {of: c}}", "routes[0].splits.c.of: the meter would be a part of itself"),
        (
            "splits: {c: {of: a}}, hold: {a: 1, c: 1}",
            "routes[0].hold.c: it is held with a, of which it is a part: leave this out",
        ),
        ("references: [x]", "routes[0].context: missing: how much does a request with"),
    ],
)
def test_what_is_wrong_with_parts_is_told(rule: str, expected: str) -> None:
    hold = "" if "hold" in rule else ", hold: {a: 1, c: 1}"
    text = f"  - {{name: r, match: POST /r, meter: {{a: .a, c: .c, n: 1}}, {rule}{hold}}}\n"
    assert any(told.startswith(expected) for told in problems(text))


def test_parts_of_parts_may_not_go_in_circles() -> None:
    text = """\
  - name: r
    match: POST /r
    meter: {a: .a, b: .b}
    splits: {a: {of: b}, b: {of: a}}
"""
    assert set(problems(text)) == {
        "routes[0].splits.a.of: the meter would be a part of itself",
        "routes[0].splits.b.of: the meter would be a part of itself",
    }


def test_a_name_is_a_part_of_the_same_meter_in_all_rules() -> None:
    text = """\
  - {name: r, match: POST /r, meter: openai.chat}
  - name: s
    match: POST /s
    meter: {cached_input_tokens: .c}
    hold: {cached_input_tokens: 1}
"""
    assert problems(text) == [
        "routes[1].splits.cached_input_tokens: cached_input_tokens is a part of input_tokens "
        "in routes[0]"
    ]


PLAN = """\
plans:
  default:
    quotas: {{free: {{meters: [{quota}], units: 5, per: month}}}}
    prices: {{r: {{{prices}}}}}
routes: [{{name: r, match: POST /r, meter: vllm}}]
"""


def test_a_part_needs_no_price_and_its_whole_does() -> None:
    parse(
        PLAN.format(quota="input_tokens", prices="input_tokens: {usd: 1}, output_tokens: {usd: 1}"),
        Path(),
    )
    with pytest.raises(ConfigError) as caught:
        parse(PLAN.format(quota="output_tokens", prices="cached_input_tokens: {usd: 1}"), Path())
    assert [problem.path for problem in caught.value.problems] == [
        "plans.default.prices.r.input_tokens",
        "plans.default.prices.r.output_tokens",
    ]


def test_a_quota_names_the_whole_and_not_a_part() -> None:
    prices = "input_tokens: {usd: 1}, output_tokens: {usd: 1}"
    with pytest.raises(ConfigError) as caught:
        parse(PLAN.format(quota="cached_input_tokens", prices=prices), Path())
    assert list(map(str, caught.value.problems)) == [
        "plans.default.quotas.free.meters[0]: a part of input_tokens: name that, "
        "which covers its parts"
    ]


def test_there_is_no_other_preset() -> None:
    with pytest.raises(InvalidValue, match=r"nearest: mcp\.tools"):
        presets.text_of("mcp.tool")
    with pytest.raises(InvalidValue):
        presets.text_of("../presets/vllm")
