"""``finomw init``: a YAML file to start from, and the node directory that it names.

What exists is never overwritten. Everything that can fail comes before anything gets its name: the
YAML is written as a draft, then the directory is made, then the draft becomes the file. Both are
for their owner alone (0600, 0700), since a configuration may come to hold secrets: the API has to
run as the user who made them.
"""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import Annotated, Final

import typer

from finomw.cli.options import CONFIG_DEFAULT, ConfigOption, read_config
from finomw.cli.output import one_line
from finomw.cli.template import TEMPLATE
from finomw.config.load import parse
from finomw.config.model import Storage
from finomw.engine.directory import create, find
from finomw.errors import DirectoryError, InvalidValue, quoted
from finomw.journal.files import Files

_PLAIN: Final = re.compile(r"[\w/][\w/.-]*")
"""A path that YAML reads as a text without quotes."""

app = typer.Typer()


@app.command(epilog="Example: finomw init --config fino.yaml --data /var/lib/fino")
def init(
    config: ConfigOption = CONFIG_DEFAULT,
    data: Annotated[
        Path | None,
        typer.Option(
            "--data",
            metavar="DIR",
            help="The node directory. [default: fino-data beside a new YAML, "
            "or what an existing one names]",
        ),
    ] = None,
) -> None:
    """Write a commented fino.yaml and make the node directory.

    A YAML file that exists stays as it is: then only the directory is made. Both belong to you
    alone (modes 0600 and 0700), so run the API as the same user.
    """
    if config.exists():
        _make_directory_of(config, data)
        return
    directory = Path(os.path.abspath(data or config.parent / "fino-data"))
    text, storage = _fill_in(config, directory)
    made = _write(config, text, directory, storage)
    typer.echo(f"wrote {one_line(str(config))}: say there what calls cost, then run finomw check")
    done = "made" if made else "kept"
    typer.echo(f"{done} the node directory {one_line(str(directory))}")


def _make_directory_of(config: Path, data: Path | None) -> None:
    """Make the directory that an existing file asks for; raises `DirectoryError` if it is there."""
    settings = read_config(config)
    directory = data or settings.data
    if directory.exists() and any(directory.iterdir()):
        raise DirectoryError(f"{config} and {directory} are there already; nothing was changed")
    create(directory, settings.storage.segment_size, settings.storage.state_size)
    typer.echo(
        f"{one_line(str(config))} is there and stays as it is; "
        f"made the node directory {one_line(str(directory))}"
    )


def _fill_in(config: Path, directory: Path) -> tuple[str, Storage]:
    """Return the new file's text, which names the directory, and the sizes it asks for.

    Raises `InvalidValue` for a path that a YAML file cannot name.
    """
    base = Path(os.path.abspath(config)).parent
    path = directory.relative_to(base) if directory.is_relative_to(base) else directory
    written = str(path) if _PLAIN.fullmatch(str(path)) else json.dumps(str(path))
    text = TEMPLATE.substitute(data=written)
    if "${" in written or not str(path).isprintable() or parse(text, base).data != directory:
        raise InvalidValue(f"--data: a YAML file cannot name the directory {quoted(str(path))}")
    return text, parse(text, base).storage


def _write(config: Path, text: str, directory: Path, storage: Storage) -> bool:
    """Write the file, and make the directory unless it is a node's; say whether it was made."""
    files = Files()
    draft = config.with_name(f"{config.name}.{os.getpid()}.draft")
    made = not directory.exists() or not any(directory.iterdir())
    if not made:
        find(directory)
    try:
        files.write(draft, text.encode())
        if made:
            create(directory, storage.segment_size, storage.state_size, files)
        os.link(draft, config)  # unlike a renaming, never in place of another file
    finally:
        draft.unlink(missing_ok=True)
    files.sync_directory(config.parent)
    return made
