"""What the verbs have in common: their options, and the way from these to an opened engine.

Every text from outside is judged here before the engine sees it, and every command opens the node
directory with `opened`, which lets go of it however the command ends. Opening makes nobody a
worker and writes no record: only a command that changes something does.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, TypeAlias

import typer

from finomw import limits
from finomw.config.load import load
from finomw.config.model import Config
from finomw.engine.engine import Engine, close_engine, open_engine
from finomw.errors import ConfigError, InvalidValue, Problem
from finomw.money.entries import check_name
from finomw.money.micros import amount
from finomw.types import CustomerId, Micros

CONFIG_DEFAULT = Path("fino.yaml")

ConfigOption: TypeAlias = Annotated[
    Path,
    typer.Option("--config", "-c", metavar="PATH", envvar="FINOMW_CONFIG", help="The YAML file."),
]
DataOption: TypeAlias = Annotated[
    Path | None,
    typer.Option(
        "--data",
        metavar="DIR",
        help="The node directory, in place of the one the YAML names; the YAML is not read.",
    ),
]
JsonOption: TypeAlias = Annotated[
    bool,
    typer.Option("--json", help="Print one JSON document; amounts are whole micro-dollars."),
]
CustomerArgument: TypeAlias = Annotated[
    str, typer.Argument(metavar="CUSTOMER", help="The customer's id.")
]


def read_config(path: Path) -> Config:
    """Return the configuration at ``path``; raises `ConfigError` with one problem that sums up."""
    try:
        return load(path)
    except ConfigError as error:
        first, *others = error.problems
        hint = f"; {len(others)} more, see `finomw check`" if others else ""
        if not path.exists():
            hint = "; make one with `finomw init`, or name another with --config"
        text = first.message if first.path == str(path) else str(first)
        raise ConfigError([Problem(str(path), text + hint)]) from error


def node_directory(config: Path, data: Path | None) -> Path:
    """Return the path of the node directory that the options mean; raises `ConfigError`."""
    return read_config(config).data if data is None else data


@contextmanager
def opened(directory: Path) -> Iterator[Engine]:
    """Open a node directory for one command. Raises what `open_engine` does."""
    engine = open_engine(directory)
    try:
        yield engine
    finally:
        close_engine(engine)


def customer_id(text: str) -> CustomerId:
    """Return a customer's id as given; raises `InvalidValue` for what cannot be one."""
    check_name("customer", text, limits.CUSTOMER_ID_BYTES)
    return CustomerId(text)


def dollars(field: str, text: str, *, least: Micros = 1) -> Micros:
    """Return the micros of an amount in dollars; raises `InvalidValue`, naming the field."""
    try:
        return amount(text, least=least)
    except InvalidValue as error:
        raise InvalidValue(f"{field}: {error}") from None
