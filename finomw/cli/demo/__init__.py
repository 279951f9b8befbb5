"""``finomw demo``: see finomw charge real calls, or try it by hand.

A real server, a real node directory, real calls; only the language model is pretended. Exit status
0 says that everything the demo claims was proved; 1 that something was not, and what.
``node.py`` sets it up, ``calls.py`` is the client, ``story.py`` what happens and what is proved.
"""

from __future__ import annotations

import importlib.util
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated, Final

import typer

from finomw.cli.demo import show
from finomw.cli.demo.node import CUSTOMER, Node, running
from finomw.cli.demo.story import tell
from finomw.cli.options import JsonOption
from finomw.cli.output import print_json
from finomw.errors import InvalidValue, MissingExtra
from finomw.money.micros import amount, to_usd
from finomw.types import Micros

SERVE_GRANT: Final[Micros] = amount("0.02")

app = typer.Typer()


@app.command(epilog="Example: finomw demo --serve, and then the curl lines that it prints")
def demo(
    serve: Annotated[
        bool, typer.Option("--serve", help="Only start the server, for you to call, until Ctrl-C.")
    ] = False,
    port: Annotated[
        int,
        typer.Option(
            "--port", metavar="N", min=0, max=65535, help="With --serve: where; 0 is a free port."
        ),
    ] = 0,
    as_json: JsonOption = False,
) -> None:
    """Charge real calls until the money is gone; prove the ledger.

    Starts a small LLM gateway behind finomw on this machine, and removes everything in the end.
    The exit status is 1 when anything was not as it must be.
    """
    if serve and as_json:
        raise InvalidValue("--json: there is no such document with --serve")
    if port and not serve:
        raise InvalidValue("--port: only with --serve")
    if not all(map(importlib.util.find_spec, ("fastapi", "uvicorn"))):
        raise MissingExtra("the demo needs FastAPI and uvicorn: pip install 'finomw[demo]'")
    with _stopped_by_sigterm():
        if serve:
            _serve(port)
        elif as_json:
            _prove_silently()
        else:
            _prove()


def _prove() -> None:
    """Run the demo for people to watch."""
    with running() as node:
        show.introduce(node)
        with show.watching() as watch:
            outcome = tell(node, watch)
        show.conclude(outcome)
    if not outcome.succeeded:
        raise typer.Exit(1)


def _prove_silently() -> None:
    """Run the demo and print its document."""
    with running() as node:
        outcome = tell(node, lambda _: None)
    print_json(show.document(outcome))
    if not outcome.succeeded:
        raise typer.Exit(1)


def _serve(port: int) -> None:
    """Serve until Ctrl-C."""
    with running(port) as node:
        node.grant(SERVE_GRANT)
        typer.echo(_instructions(node))
        try:
            node.server.wait()
        except KeyboardInterrupt:
            typer.echo("\nstopped; the node directory is removed")
            return
    typer.echo("error: the server ended by itself", err=True)
    raise typer.Exit(1)


def _instructions(node: Node) -> str:
    """Return what to try: lines for a shell."""
    question = '{"model": "demo-small", "messages": [{"role": "user", "content": "Who pays?"}]'
    chat = 'curl -i $URL/v1/chat/completions -H "$KEY" -H "$JSON" -d'
    return f"""\
An LLM gateway behind finomw; its customer {CUSTOMER} has {to_usd(SERVE_GRANT)} USD. Ctrl-C ends it.
Paste this into another terminal:

export URL={node.server.url}
export KEY="Authorization: Bearer {node.token}"
export JSON="Content-Type: application/json"
export FINOMW_CONFIG={node.config}

# a call, and the same streamed
{chat} '{question}}}'
{chat} '{question}, "stream": true}}'

# a flat price; when the money is gone, after 40 calls at most, the answer is 402
curl -i $URL/v1/search -H "$KEY" -H "$JSON" -d '{{"query": "holds"}}'

# what is left, what was charged, more money, the proof
finomw balance {CUSTOMER}
finomw ledger {CUSTOMER}
finomw grant {CUSTOMER} 1.00
finomw verify
"""


@contextmanager
def _stopped_by_sigterm() -> Iterator[None]:
    """Let SIGTERM end the demo as Ctrl-C does, so that it cleans up."""
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
