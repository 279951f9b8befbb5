"""``finomw meter try``: what a rule makes of a saved request and answer, before anybody calls.

The bodies are read as the middleware reads them: by their type, or by how they begin, decoded,
event by event. Only the YAML is read; quotas and what was used before belong to customers.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Annotated, Final, NamedTuple, TypeAlias

import typer

from finomw import limits
from finomw.cli.documents import USAGE_NAMES
from finomw.cli.options import CONFIG_DEFAULT, ConfigOption, JsonOption, known_plan, read_config
from finomw.cli.options import summed_up as as_one_problem
from finomw.cli.output import print_fields, print_json, print_table
from finomw.cli.price import COLUMNS as PRICE_COLUMNS
from finomw.cli.price import document_of, price_rows
from finomw.cli.times import now
from finomw.config.model import Config, MeteredRoute
from finomw.config.wording import join
from finomw.errors import InvalidValue, Problem, quoted
from finomw.metering.choosing import CompiledPlan, Mixed, compile_plans
from finomw.metering.documents import Document
from finomw.metering.estimate import Unestimable
from finomw.metering.guard import Guard
from finomw.metering.measure import Measure, compile_measure, sources
from finomw.metering.programs import compile_program
from finomw.metering.readers import Readers
from finomw.metering.usage import Usage
from finomw.money.explain import Explanation, explain
from finomw.money.micros import to_usd
from finomw.money.pricing import PriceList
from finomw.types import Counts, Micros, UsageStatus

_TYPES: Final = {
    ".json": "application/json",
    ".sse": "text/event-stream",
    ".ndjson": "application/x-ndjson",
    ".jsonl": "application/x-ndjson",
}
_CODINGS: Final = {".gz": "gzip", ".br": "br", ".zst": "zstd", ".zlib": "deflate"}

TypeOption: TypeAlias = Annotated[
    str | None,
    typer.Option(
        "--content-type",
        metavar="TYPE",
        help="The answer's. [default: by the file's name, such as .json, .sse, .ndjson]",
    ),
]
CodingOption: TypeAlias = Annotated[
    str | None,
    typer.Option(
        "--content-encoding",
        metavar="CODING",
        help="The answer's. [default: by the file's name, such as .gz, .br, .zst, .zlib]",
    ),
]
ChoiceOption: TypeAlias = Annotated[
    str | None,
    typer.Option(
        "--choice",
        metavar="VALUE",
        help="What by finds in the path, or in place of what it finds in the request.",
    ),
]

app = typer.Typer(name="meter", help="Try out what a rule counts.")


@app.callback()
def _meter() -> None:
    """Try out what a rule counts."""


class Tried(NamedTuple):
    """What came of a request and an answer; ``None`` for what was not given, or has no price."""

    choice: str
    ceiling: Counts
    hold: Micros | None
    usage: Usage | None
    price: Explanation | None


@app.command(
    "try",
    epilog="Example: finomw meter try --route chat --request request.json --response answer.sse",
)
def try_meter(
    route: Annotated[
        str, typer.Option("--route", metavar="ROUTE", help="The rule's name, or its match.")
    ],
    request: Annotated[
        Path | None,
        typer.Option("--request", metavar="FILE", help="The body of a request. [default: none]"),
    ] = None,
    response: Annotated[
        Path | None, typer.Option("--response", metavar="FILE", help="The body of its answer.")
    ] = None,
    content_type: TypeOption = None,
    content_encoding: CodingOption = None,
    plan: Annotated[
        str, typer.Option("--plan", metavar="PLAN", help="The price plan, as the YAML names it.")
    ] = "default",
    choice: ChoiceOption = None,
    config: ConfigOption = CONFIG_DEFAULT,
    as_json: JsonOption = False,
) -> None:
    """Show what a rule makes of a saved request and answer: programs, hold, counts, price.

    Bodies are files as they went over the line, also streams and compressed ones.
    """
    settings = read_config(config)
    rule = _rule(settings, route)
    measure, compiled = _compile(config, settings, rule, plan)
    body = b"" if request is None else request.read_bytes()
    prices, chosen = _prices(compiled, rule, body, choice)
    usage = None
    if response is not None:
        headers = _headers(response, content_type, content_encoding)
        usage = asyncio.run(_read(rule, measure, response.read_bytes(), headers))
    tried = _tried(prices, chosen, _ceiling(measure, body), usage)
    if as_json:
        print_json({"plan": plan, "route": rule.name} | _document(rule, tried))
    else:
        _print(rule, tried)


def _tried(prices: PriceList | None, choice: str, ceiling: Counts, usage: Usage | None) -> Tried:
    hold = None if prices is None else prices.worst(ceiling, {}, {})
    known = usage is not None and usage.status is UsageStatus.KNOWN
    price = explain(prices, usage.counts, {}) if prices and usage and known else None
    return Tried(choice, ceiling, hold, usage, price)


def _compile(
    path: Path, settings: Config, rule: MeteredRoute, plan: str
) -> tuple[Measure, CompiledPlan]:
    """Compile a rule and a plan. Raises `ConfigError`; `InvalidValue` without such a plan."""
    problems: list[Problem] = []
    measure = compile_measure(rule, join("routes", settings.routes.index(rule)), problems)
    plans = compile_plans(settings, problems)
    if problems or measure is None:
        raise as_one_problem(path, problems)
    return measure, plans[known_plan(settings, "--plan", plan)]


def _rule(settings: Config, route: str) -> MeteredRoute:
    """Return the one rule with this name or match; raises `InvalidValue`."""
    metered = [rule for rule in settings.routes if isinstance(rule, MeteredRoute)]
    found = [rule for rule in metered if route in (rule.name, _match(rule))]
    if len(found) == 1:
        return found[0]
    known = ", ".join(rule.name if not found else _match(rule) for rule in found or metered)
    problem = "several rules have the name" if found else "no metered rule has the name"
    raise InvalidValue(f"--route: {problem} {quoted(route)}; known: {known or 'none'}")


def _match(rule: MeteredRoute) -> str:
    return f"{','.join(rule.match.methods)} {rule.match.path}"


def _prices(
    plan: CompiledPlan, rule: MeteredRoute, body: bytes, choice: str | None
) -> tuple[PriceList | None, str]:
    """Return the prices of a call and what chose them; raises `InvalidValue`."""
    if choice is not None:
        version = plan.plan.at(rule.name, now())
        return None if version is None else version.select(choice), choice
    try:
        found = plan.choose(rule.name, Document(body), {}, now())
    except Mixed as error:
        raise InvalidValue(f"--request: {error}") from None
    return found.prices, found.value


def _ceiling(measure: Measure, body: bytes) -> Counts:
    try:
        return measure.estimate.counts(Document(body))
    except Unestimable as error:
        raise InvalidValue(f"--request: the call would be refused: {error}") from None


def _headers(
    response: Path, content_type: str | None, content_encoding: str | None
) -> list[tuple[bytes, bytes]]:
    suffixes = list(response.suffixes)
    coding = content_encoding
    if suffixes and suffixes[-1] in _CODINGS:
        by_name = _CODINGS[suffixes.pop()]
        coding = by_name if coding is None else coding
    if content_type is None and suffixes:
        content_type = _TYPES.get(suffixes[-1])
    headers = [] if content_type is None else [(b"content-type", content_type.encode())]
    return headers if coding is None else [*headers, (b"content-encoding", coding.encode())]


async def _read(
    rule: MeteredRoute, measure: Measure, body: bytes, headers: list[tuple[bytes, bytes]]
) -> Usage:
    """Read an answer as the middleware does."""
    readers = Readers(rule.name, measure.meter, rule.max_body, rule.too_large == "tail")
    reader = readers.reader_for(200, headers)
    if reader is None:
        return measure.meter.unread()
    guard = Guard()
    try:
        for start in range(0, len(body), limits.TAIL):
            reader.feed(body[start : start + limits.TAIL])
            if reader.late:
                await reader.read_apart(guard, last=False)
        await reader.read_apart(guard, last=True)
        return reader.finish()
    finally:
        guard.close()


def _print(rule: MeteredRoute, tried: Tried) -> None:
    counts = {} if tried.usage is None else tried.usage.counts
    print_table(
        ("METER", "PART OF", "HOLD", "COUNT"),
        [
            (
                meter,
                rule.splits[meter].of if meter in rule.splits else "",
                str(tried.ceiling.get(meter, "")),
                str(counts.get(meter, "")),
            )
            for meter in rule.meter
        ],
        right=("HOLD", "COUNT"),
    )
    rows = [
        (each.purpose, " ".join(each.written.split()), compile_program(each.compiled).plan)
        for each in sources(rule)
    ]
    if rows:
        typer.echo()
        print_table(("PROGRAM OF", "PROGRAM", "RUNS AS"), rows)
    if tried.price is not None:
        typer.echo()
        print_table(PRICE_COLUMNS, price_rows(tried.price), right=("UNITS", "AMOUNT USD"))
    typer.echo()
    print_fields(_fields(rule, tried))


def _fields(rule: MeteredRoute, tried: Tried) -> list[tuple[str, str]]:
    fields: list[tuple[str, str]] = [("merge", rule.merge)]
    if tried.choice:
        fields.append(("choice", tried.choice))
    held = "the call has no price" if tried.hold is None else f"{to_usd(tried.hold)} USD"
    fields.append(("hold", held))
    if tried.usage is None:
        return fields
    fields.append(("usage", USAGE_NAMES[tried.usage.status]))
    fields.append(("error object", "yes" if tried.usage.error else "no"))
    if tried.price is not None:
        fields.append(("price", f"{to_usd(tried.price.total)} USD, {tried.price.rounding}"))
    return fields


def _document(rule: MeteredRoute, tried: Tried) -> dict[str, object]:
    usage = tried.usage
    return {
        "choice": tried.choice or None,
        "merge": rule.merge,
        "splits": {meter: split.of for meter, split in rule.splits.items()},
        "programs": [
            {
                "of": each.purpose,
                "program": each.written,
                "runs_as": compile_program(each.compiled).plan,
            }
            for each in sources(rule)
        ],
        "hold": {"counts": tried.ceiling, "amount_micros": tried.hold},
        "usage": None
        if usage is None
        else {
            "status": USAGE_NAMES[usage.status],
            "counts": usage.counts,
            "error": usage.error,
        },
        "price": None if tried.price is None else document_of(tried.price),
    }
