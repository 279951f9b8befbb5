"""What the verbs have in common: their options, and the way from these to an opened engine.

Every text from outside is judged here before the engine sees it, and every command opens the node
directory with `opened`, which lets go of it however the command ends. Opening makes nobody a
worker and writes no record: only a command that changes something does.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Annotated, TypeAlias

import typer

from finomw import limits
from finomw.config.load import load
from finomw.config.model import Config
from finomw.config.wording import nearest
from finomw.engine.directory import NODE_FILE
from finomw.engine.engine import Engine, close_engine, open_engine
from finomw.errors import ConfigError, DirectoryError, InvalidValue, Problem, quoted
from finomw.money.entries import check_name
from finomw.money.micros import amount
from finomw.types import CustomerId, Micros, PlanName

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
CsvOption: TypeAlias = Annotated[
    bool, typer.Option("--csv", help="Print CSV; amounts are whole micro-dollars.")
]
CustomerArgument: TypeAlias = Annotated[
    str, typer.Argument(metavar="CUSTOMER", help="The customer's id.")
]
BufferOption: TypeAlias = Annotated[
    str | None,
    typer.Option(
        "--buffer",
        metavar="USD",
        help="Dollars that the balance may go below zero, in place of the YAML's buffer_usd.",
    ),
]
ZoneOption: TypeAlias = Annotated[
    str | None,
    typer.Option(
        "--zone", metavar="ZONE", help="The time zone of the plan's periods, such as Europe/Berlin."
    ),
]


def one_format(as_json: bool, as_csv: bool) -> None:
    """Raise `InvalidValue` where two formats are asked for."""
    if as_json and as_csv:
        raise InvalidValue("--csv: not together with --json")


def read_config(path: Path) -> Config:
    """Return the configuration at ``path``; raises `ConfigError` with one problem that sums up."""
    try:
        return load(path)
    except ConfigError as error:
        raise summed_up(path, error.problems) from error


def summed_up(path: Path, problems: Sequence[Problem]) -> ConfigError:
    """Return an error with one problem of the file at ``path`` that stands for all of them."""
    first, *others = problems
    hint = f"; {len(others)} more, see `finomw check`" if others else ""
    if not path.exists():
        hint = "; make one with `finomw init`, or name another with --config"
    text = first.message if first.path == str(path) else str(first)
    return ConfigError([Problem(str(path), text + hint)])


def node_directory(config: Path, data: Path | None) -> Path:
    """Return the path of the node directory that the options mean.

    Raises `ConfigError`, and `DirectoryError` where root may not use it.
    """
    return _not_for_root(read_config(config).data if data is None else data)


def directory_with_plan(config: Path, data: Path | None, field: str, plan: str) -> Path:
    """Return the path of the node directory; where the YAML is read, it must have the plan.

    Raises `InvalidValue`, and as `node_directory`.
    """
    if data is not None:
        return _not_for_root(data)
    settings = read_config(config)
    known_plan(settings, field, plan)
    return _not_for_root(settings.data)


def _not_for_root(directory: Path) -> Path:
    """Return the directory; raises `DirectoryError` for root where the API runs as another user.

    That user cannot open what root makes, and a segment or a worker's lock of root's stops it.
    """
    # Whoever opens it first makes the control file; before that there is only what made the node.
    for name in ("control", NODE_FILE):
        with suppress(OSError):
            owner = os.stat(directory / name).st_uid
            if owner and os.geteuid() == 0:
                raise DirectoryError(
                    f"{directory}: belongs to user {owner}, who could not open what root leaves "
                    f"there; run this as that user: sudo -u '#{owner}' finomw ..."
                )
            break
    return directory


def known_plan(settings: Config, field: str, plan: str) -> PlanName:
    """Return the plan's name; raises `InvalidValue` where the configuration does not have it."""
    return PlanName(one_of(field, "the YAML has no plan", plan, settings.plans))


def one_of(field: str, problem: str, name: str, known: Iterable[str]) -> str:
    """Return a name that is known; raises `InvalidValue` with the nearest one, or all of them."""
    names = list(known)
    if name not in names:
        hint = nearest(name, names) or f"; known: {', '.join(names) or 'none'}"
        raise InvalidValue(f"{field}: {problem} {quoted(name)}{hint}")
    return name


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
