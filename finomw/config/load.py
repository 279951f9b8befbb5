"""The one way to a ``Config``: read the file, convert it, check it, and tell everything at once.

A configuration that is half right is not used: either a whole ``Config`` is returned, or a
``ConfigError`` with all the problems that were found. What cannot be judged because something
else is wrong (prices, while a rule is unreadable) is left for the next attempt.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

import msgspec

from finomw.config import checks, document, plan_checks
from finomw.config.model import Config
from finomw.config.reader import Reader
from finomw.errors import ConfigError, Problem

CONFIG_VARIABLE: Final = "FINOMW_CONFIG"
"""The environment variable that names the file where a program does not."""


def resolve(config: str | Path | Config | None) -> Config:
    """Return a configuration from a path, itself, or nothing: then ``CONFIG_VARIABLE`` names it.

    Raises
    ------
    ConfigError
        There is none, or something in it is wrong.
    """
    if isinstance(config, Config):
        return config
    path = config or os.environ.get(CONFIG_VARIABLE)
    if not path:
        message = f"no configuration: pass config=..., or set {CONFIG_VARIABLE}"
        raise ConfigError([Problem("", message)])
    return load(path)


def load(path: str | Path) -> Config:
    """Read the YAML file at ``path``.

    Raises
    ------
    ConfigError
        The file cannot be read, or something in it is wrong.
    """
    file = Path(path).absolute()
    try:
        text = file.read_text(encoding="utf-8")
    except OSError as error:
        raise ConfigError([Problem(str(path), f"cannot be read: {error.strerror}")]) from error
    except UnicodeDecodeError as error:
        message = f"not UTF-8 at byte {error.start}"
        raise ConfigError([Problem(str(path), message)]) from error
    return parse(text, file.parent)


def parse(text: str, base: Path) -> Config:
    """Read a configuration's YAML text; relative paths in it start at ``base``.

    Raises
    ------
    ConfigError
        Something is wrong; carries every problem found.
    """
    problems: list[Problem] = []
    node = document.read(text, problems)
    if node is None and not problems:
        raise ConfigError([Problem("", "the file is empty: expected at least routes")])
    options = Reader(problems).options(node, Config, "")
    checks.check(options.get("routes"), options.get("durability"), problems)
    plan_checks.check(options.get("routes"), options.get("plans", {}), problems)
    if problems:
        raise ConfigError(problems)
    config = Config(**options)
    return msgspec.structs.replace(config, data=base / config.data)
