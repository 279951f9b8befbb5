"""Compiled price plans for the verbs that price something: from the YAML, without a node.

What is wrong with a plan is summed up in one line here; ``finomw check`` tells it all.
"""

from __future__ import annotations

from pathlib import Path

from finomw.cli.options import known_plan, read_config, summed_up
from finomw.config.model import Config
from finomw.errors import Problem
from finomw.metering.choosing import compile_plans
from finomw.money.plans import PricePlan


def read_plan(path: Path, field: str, name: str) -> tuple[Config, PricePlan]:
    """Return the YAML file at ``path``, and its plan with this name, compiled.

    Raises `ConfigError`; `InvalidValue`, naming the field, where there is no such plan.
    """
    settings = read_config(path)
    problems: list[Problem] = []
    compiled = compile_plans(settings, problems)
    if problems:
        raise summed_up(path, problems)
    return settings, compiled[known_plan(settings, field, name)].plan
