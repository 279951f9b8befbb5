"""Rules that ship with the package, for APIs that many speak: ``presets/NAME.yaml``.

A preset is an ordinary rule, which may be pasted into a configuration as it stands. A rule that
names one (``meter: openai.chat``, or ``extends: openai.chat`` where it has meters of its own) gets
from it all that it does not say itself, but its name and match. ``meter``, ``splits`` and ``hold``
are laid over the preset's key by key; any other option replaces the preset's.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from finomw.config import document
from finomw.config.wording import join, nearest
from finomw.errors import ConfigError, InvalidValue, Problem, quoted

_FOLDER: Final = Path(__file__).parent / "presets"
_OWN: Final = ("name", "match")
"""What a rule does not take from a preset."""
_LAID_OVER: Final = ("meter", "splits", "hold")


@functools.cache
def names() -> tuple[str, ...]:
    """Return the names of all presets, sorted."""
    return tuple(sorted(path.stem for path in _FOLDER.glob("*.yaml")))


@functools.cache
def text_of(name: str) -> str:
    """Return a preset as YAML text; raises `InvalidValue` where there is none of this name."""
    if name not in names():
        hint = nearest(name, names()) or f"; known: {', '.join(names())}"
        raise InvalidValue(f"no preset has the name {quoted(name)}{hint}")
    return (_FOLDER / f"{name}.yaml").read_text(encoding="utf-8")


def read(name: str) -> Mapping[str, object]:
    """Return a preset as plain values, as the file of a configuration is read."""
    problems: list[Problem] = []
    node = document.read(text_of(name), problems)
    if problems or not isinstance(node, dict):
        raise ConfigError(problems or [Problem(name, "the preset is no rule")])
    return node


def extended(node: Mapping[str, object], path: str, problems: list[Problem]) -> dict[str, object]:
    """Return a rule with what its preset gives, or as it is where it names none.

    A name that no preset has goes to ``problems``.
    """
    rule = dict(node)
    option = "meter" if isinstance(rule.get("meter"), str) else "extends"
    name = rule.get(option)
    if not isinstance(name, str):
        return rule
    if option == "meter":
        del rule["meter"]
        if "extends" in rule:
            message = "not with a preset as the meter: write its meters here, or leave this out"
            problems.append(Problem(join(path, "extends"), message))
        rule["extends"] = name
    try:
        base = {key: value for key, value in read(name).items() if key not in _OWN}
    except InvalidValue as error:
        problems.append(Problem(join(path, option), str(error)))
        return rule
    return _laid_over(base, rule)


def _laid_over(base: Mapping[str, object], rule: Mapping[str, object]) -> dict[str, object]:
    result = {**base, **rule}
    for option in _LAID_OVER:
        under, over = base.get(option), rule.get(option)
        if isinstance(under, dict) and isinstance(over, dict):
            result[option] = {**under, **over}
    meter, hold, own = result.get("meter"), result.get("hold"), rule.get("hold", {})
    if isinstance(meter, dict) and isinstance(hold, dict) and isinstance(own, dict):
        # A meter that the rule has made a constant takes no hold of the preset's.
        fixed = {name for name, quantity in meter.items() if isinstance(quantity, int)} - own.keys()
        result["hold"] = {name: value for name, value in hold.items() if name not in fixed}
    return result


def as_rule(name: str) -> str:
    """Return a preset as an item of ``routes``; raises `InvalidValue` where there is none."""
    comments, _, rule = text_of(name).partition("name: ")
    lines = f"name: {rule}".splitlines()
    first, *others = lines
    texts = [f"- {first}", *(f"  {line}" if line else "" for line in others)]
    return comments + "\n".join(texts) + "\n"
