"""``finomw presets``: the rules that ship with finomw, as they could stand in the YAML.

A preset is read from the package as it was written, with its comments: what is shown is what a
rule gets that names it.
"""

from __future__ import annotations

from typing import Annotated, Final

import typer

from finomw.cli.options import JsonOption
from finomw.cli.output import print_json, print_table
from finomw.config import presets as shipped

_COLUMNS: Final = ("PRESET", "MATCH", "METERS")

app = typer.Typer(name="presets", help="Show the rules that ship with finomw.")


@app.command("list", epilog="Example: finomw presets list")
def list_presets(as_json: JsonOption = False) -> None:
    """List the presets, and the meters that each reads."""
    rules = {name: shipped.read(name) for name in shipped.names()}
    if as_json:
        print_json({"presets": {name: dict(rule) for name, rule in rules.items()}})
        return
    rows = [(name, str(rule["match"]), _meters(rule["meter"])) for name, rule in rules.items()]
    print_table(_COLUMNS, rows)


@app.command("show", epilog="Example: finomw presets show openai.chat")
def show(
    name: Annotated[str, typer.Argument(metavar="NAME", help="The preset's name.")],
) -> None:
    """Print a preset as it may be pasted below routes.

    Name it in a rule by meter: NAME, or by extends: NAME where the rule has meters of its own.
    """
    typer.echo(shipped.as_rule(name), nl=False)


def _meters(meter: object) -> str:
    return ", ".join(meter) if isinstance(meter, dict) else ""
