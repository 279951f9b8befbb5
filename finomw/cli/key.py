"""``finomw key``: the bearer tokens that customers call with.

A token is printed once, where it is made, and is nowhere afterwards: the node knows its SHA-256.
People tell keys apart by the first digits of that hash, by the token's last four characters, and
by a name.
"""

from __future__ import annotations

from typing import Annotated, Final

import typer

from finomw import limits
from finomw.cli import documents
from finomw.cli.options import (
    CONFIG_DEFAULT,
    ConfigOption,
    CustomerArgument,
    DataOption,
    JsonOption,
    customer_id,
    node_directory,
    opened,
)
from finomw.cli.output import print_json, print_table, utc
from finomw.engine import customers, keys
from finomw.engine.engine import Engine
from finomw.money.entries import check_name
from finomw.store.env import Txn
from finomw.store.keys import KeyRow
from finomw.types import CustomerId, KeyHash

_DIGITS: Final = 12
"""Hex digits of a key's hash that people get to see."""

app = typer.Typer(name="key", help="Create bearer tokens for a customer, revoke and list them.")


@app.command("create", epilog="Example: finomw key create alice --name production")
def create(
    customer: CustomerArgument,
    name: Annotated[str, typer.Option("--name", metavar="TEXT", help="A name for people.")] = "",
    config: ConfigOption = CONFIG_DEFAULT,
    data: DataOption = None,
    as_json: JsonOption = False,
) -> None:
    """Create a key and print its token, which is shown only now.

    Stdout gets the token alone, so that it can be piped to where it is kept.
    """
    who = customer_id(customer)
    with opened(node_directory(config, data)) as engine:
        customers.get_account(engine, who)  # refused before anything is written
        made = keys.create_key(engine, who, name)
        _, row = keys.find_key(engine, made.key.hex())
    if as_json:
        print_json(documents.of_key(made.key, row) | {"token": made.token})
        return
    typer.echo(made.token)
    typer.echo(
        f"key {_short(made.key)} of {who}: the token is shown only now, keep it safe", err=True
    )


@app.command("revoke", epilog="Example: finomw key revoke 3f1c09ab77e2")
def revoke(
    key: Annotated[
        str,
        typer.Argument(metavar="KEY", help="The first digits of the key, or the whole token."),
    ],
    config: ConfigOption = CONFIG_DEFAULT,
    data: DataOption = None,
    as_json: JsonOption = False,
) -> None:
    """Refuse a key from now on.

    Running workers see it with the next call.
    """
    check_name("key", key, limits.TOKEN_BYTES)
    with opened(node_directory(config, data)) as engine:
        found, _ = keys.find_key(engine, key)
        keys.revoke_key(engine, found)
        _, row = keys.find_key(engine, found.hex())
    if as_json:
        print_json(documents.of_key(found, row))
    else:
        typer.echo(f"revoked key {_short(found)} (…{row.last_four}) of {row.customer}")


@app.command("list", epilog="Example: finomw key list alice")
def list_all(
    customer: CustomerArgument,
    config: ConfigOption = CONFIG_DEFAULT,
    data: DataOption = None,
    as_json: JsonOption = False,
) -> None:
    """List a customer's keys, the revoked ones too; never their tokens."""
    who = customer_id(customer)
    with opened(node_directory(config, data)) as engine, engine.store.read() as txn:
        engine.store.accounts.need(txn, who)
        rows = keys_of(engine, txn, who)
    if as_json:
        print_json({"customer": who, "keys": [documents.of_key(*row) for row in rows]})
    else:
        print_keys(rows)


def keys_of(engine: Engine, txn: Txn, customer: CustomerId) -> list[tuple[KeyHash, KeyRow]]:
    """Return a customer's keys, oldest first."""
    rows = [item for item in engine.store.keys.items(txn) if item[1].customer == customer]
    return sorted(rows, key=lambda item: item[1].created)


def print_keys(rows: list[tuple[KeyHash, KeyRow]]) -> None:
    """Print keys as a table."""
    print_table(
        ("KEY", "TOKEN", "CREATED UTC", "REVOKED UTC", "NAME"),
        [
            (_short(key), f"…{row.last_four}", utc(row.created), utc(row.revoked), row.name)
            for key, row in rows
        ],
    )


def _short(key: KeyHash) -> str:
    return key.hex()[:_DIGITS]
