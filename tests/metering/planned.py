"""Generated jq programs and JSON texts for the planner's differential test.

Every program is compiled by jq first; those that jq refuses are left out. The texts are JSON in
every shape, with what two readers of JSON may disagree about: repeated names, escapes, long and
huge numbers, bytes that are not UTF-8, deep nesting, what is not JSON at all.
"""

from __future__ import annotations

import functools
import json
import random
from collections import Counter
from typing import Any, Final, NamedTuple

import jq

from finomw.metering.documents import Document
from finomw.metering.programs import Program, ProgramFailed, compile_program

FAILED: Final = "failed"
KEYS: Final = ("a", "b", "usage", "x y", "é", "error", "and", "")
NUMBERS: Final = (
    *("0", "1", "-1", "120", "120.0", "1.2e2", "-0", "-0.0", "0.1", "1E+2", "1e-400", "1.0"),
    *("9007199254740991", "9007199254740992", "9007199254740993", "12345678901234567890"),
    *("47093221829.4172858", "11828.752099629163356", "123456789012345678901e3", "9" * 30),
    *("9" * 5000, "1e400", "-1e999", "1.7976931348623157e308", "4.9e-324"),
)
TEXTS: Final = (
    '""',
    '"a"',
    '"b c"',
    r'"\u0061"',
    r'"\ud83d\ude00"',
    '"😀é"',
    r'"\"\\\/\b\n"',
    '"\x7f"',
)
NOT_JSON: Final = ("00", "01", "NaN", "1.", r'"\ud800"', r'"\udc00"', '"a\tb"', r'"\q"', "nul", "")
"""Values that only one of the two readers takes, or none."""


_jq: Final = functools.lru_cache(maxsize=64)(jq.compile)


def document(rng: random.Random) -> bytes:
    """Draw a JSON text, or something near one."""
    kind = rng.random()
    if kind < 0.03:
        depth = rng.choice([5, 100, 900, 1100, 9_999, 10_001])
        text = '{"a":' * depth + "1" + "}" * depth
        if rng.random() < 0.5:
            text = '{"usage":{"a":1},"b":' + "[" * depth + "]" * depth + "}"
    elif kind < 0.06:
        text = rng.choice(["", " ", "{}", "null", "{} {}", "[DONE]", '{"a":1}x', "\ufeff{}", "nul"])
    else:
        text = _value(rng, 4, top=True)
        if rng.random() < 0.1:
            text = text.replace("true", rng.choice(NOT_JSON))
        if rng.random() < 0.04:
            text = rng.choice(["\ufeff", " \n", "", "x", "1 "]) + text + rng.choice([" ", "}", ""])
    raw = text.encode("utf-8", "surrogatepass")
    if rng.random() < 0.03:
        raw = raw.replace("é".encode(), b"\xff").replace(b"120", b"\xed\xa0\x80")
    if rng.random() < 0.03 and raw:
        cut = rng.randrange(len(raw))
        raw = raw[:cut] + raw[cut + 1 :]
    return raw


def _value(rng: random.Random, depth: int, top: bool = False) -> str:
    kind = rng.random()
    if depth and (kind < 0.45 or (top and kind < 0.9)):
        members = [
            f"{_key(rng)}{rng.choice(['', ' '])}:{rng.choice(['', ' '])}{_value(rng, depth - 1)}"
            for _ in range(rng.randint(3, 10) if top else rng.randint(0, 5))
        ]
        return "{" + ",".join(members) + "}"
    if depth and kind < 0.6:
        return "[" + ", ".join(_value(rng, depth - 1) for _ in range(rng.randint(0, 4))) + "]"
    if kind < 0.7:
        return rng.choice(["null", "true", "false"])
    if kind < 0.92:
        usual = rng.random() < 0.5
        return str(rng.randint(-3, 2000)) if usual else rng.choice(NUMBERS)
    return rng.choice(TEXTS)


def _key(rng: random.Random) -> str:
    key = rng.choice(KEYS)
    if key and rng.random() < 0.1:
        return f'"\\u{ord(key[0]):04x}{key[1:]}"'
    return json.dumps(key, ensure_ascii=rng.random() < 0.5)


def program(rng: random.Random) -> str:
    """Draw a program that jq compiles, and that ends soon on a small document."""
    while True:
        text = _path(rng) if rng.random() < 0.15 else _pipe(rng, rng.choice([1, 2, 2, 3]))
        try:
            _jq(text)
        except ValueError:
            continue
        return text


def _path(rng: random.Random) -> str:
    text = ""
    for _ in range(rng.choice([1, 1, 1, 2, 2, 3])):
        key = rng.choice(KEYS)
        plain = key.isidentifier() and key.isascii()
        forms = [f'["{key}"]' if text else f'.["{key}"]', f'."{key}"']
        text += rng.choice([f".{key}"] * 6 + forms) if plain else rng.choice(forms)
    return text


def _pipe(rng: random.Random, depth: int) -> str:
    kind = rng.random()
    if not depth or kind < 0.3:
        return _term(rng, depth)
    if kind < 0.45:
        return f"{_pipe(rng, depth - 1)} // {_pipe(rng, depth - 1)}"
    if kind < 0.6:
        return f"{_pipe(rng, depth - 1)} {rng.choice('+++-*/%,')} {_pipe(rng, depth - 1)}"
    if kind < 0.85:
        left = _path(rng) if rng.random() < 0.7 else _pipe(rng, depth - 1)
        return f"{left} | {_pipe(rng, depth - 1)}"
    if kind < 0.9:
        operator = rng.choice(["==", "<", ">=", "and", "or", "!="])
        return f"{_pipe(rng, depth - 1)} {operator} {_pipe(rng, depth - 1)}"
    if kind < 0.95:
        return f"{_term(rng, 0)} as $v | $v{rng.choice(['', '.a', ' + 1'])} // {_path(rng)}"
    return f"({_pipe(rng, depth - 1)})"


def _term(rng: random.Random, depth: int) -> str:
    kind = rng.random()
    if kind < 0.45 or not depth:
        return (
            _path(rng) if rng.random() < 0.8 else rng.choice(["0", "-1", '"a"', "null", ".", "2.5"])
        )
    inner = _pipe(rng, depth - 1)
    other = _pipe(rng, depth - 1)
    return rng.choice(
        [
            f"{{a: {_term(rng, 0)}, b: ({inner})}}",
            f'{{usage, "x y": ({inner}), a: 1}}',
            f"{_path(rng)} | length",
            f"[{inner}]",
            f"[{inner}] | add",
            f"({inner})?",
            f"{_path(rng)}?",
            f"{_path(rng)}[]",
            f"{_path(rng)}[0]",
            f"[{_path(rng)}[]? | {inner}]",
            f"map({inner})",
            f"select({inner})",
            f"if {inner} then {other} else {_path(rng)} end",
            f"if {inner} then {other} end",
            f"reduce {_path(rng)}[]? as $i (0; . + ($i | length))",
            f"{_path(rng)} | to_entries | map(.value) | add",
            f"[.. | numbers] | {inner}",
            f"first({inner})",
            f"has({json.dumps(rng.choice(KEYS))})",
            f"{_path(rng)} | tostring",
            f"(try ({inner}) catch .)",
            f"({inner}) | not",
            f"def f: {inner}; f",
            "input_line_number",
            f"{_path(rng)} # a comment",
        ]
    )


def by_jq(text: str, raw: bytes) -> object:
    """Return what jq gives on the whole: its first output; null for what is not one text."""
    whole = raw.decode("utf-8", "replace")
    try:
        one = _jq("length").input_text(whole, slurp=True).first() == 1
    except ValueError:
        one = False
    try:
        return _jq(text).input_text(whole if one else "null").first()
    except StopIteration:
        return None
    except ValueError:
        return FAILED


def by_plan(planned: Program, raw: bytes) -> object:
    """Return what a compiled program gives."""
    try:
        return planned.run(Document(raw))
    except ProgramFailed:
        return FAILED


def same(one: Any, other: Any) -> bool:
    """Compare exactly: also the types, so that 1 is neither 1.0 nor true. However deep."""
    pairs = [(one, other)]
    while pairs:
        one, other = pairs.pop()
        if type(one) is not type(other):
            return False
        if isinstance(one, list) and len(one) == len(other):
            pairs += zip(one, other, strict=True)
        elif isinstance(one, dict) and one.keys() == other.keys():
            pairs += [(value, other[key]) for key, value in one.items()]
        elif isinstance(one, list | dict) or one != other:
            return False
    return True


class Difference(NamedTuple):
    """A pair on which the planner was wrong."""

    program: str
    raw: bytes
    expected: object
    got: object
    plan: str


def differences(seed: int, programs: int, documents: int) -> tuple[list[Difference], Counter[str]]:
    """Try programs on documents; return what differs, and how often each kind of plan ran."""
    rng = random.Random(seed)
    wrong: list[Difference] = []
    plans: Counter[str] = Counter()
    for _ in range(programs):
        text = program(rng)
        planned = compile_program(text)
        for _ in range(documents):
            raw = document(rng)
            expected, got = by_jq(text, raw), by_plan(planned, raw)
            plans["whole" if "whole" in planned.plan else planned.plan.partition(" ")[0]] += 1
            if not same(expected, got):
                wrong.append(Difference(text, raw[:300], expected, got, planned.plan))
    return wrong, plans
