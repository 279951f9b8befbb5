"""What may take long is done apart: the event loop goes on, and a helper never outlives its use."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Iterator
from typing import TypeVar

import msgspec
import pytest

from finomw import limits
from finomw.metering.allowance import Allowance, NotInline
from finomw.metering.documents import Document
from finomw.metering.guard import Guard, Job
from finomw.metering.meter import Meter
from finomw.metering.programs import ProgramFailed, compile_program
from finomw.metering.texts import TextReader
from finomw.metering.usage import Usage
from finomw.types import UsageStatus

ResultT = TypeVar("ResultT")

DEEP = b'{"a":' * 9_000 + b"1" + b"}" * 9_000
WIDE = b"[" + b",".join([b"[1]"] * (2 * limits.MIB // 4)) + b"]"
ENDLESS = "[range(1000000000)] | length"


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Give the helper less time, so that a test of its end does not take long."""
    monkeypatch.setattr(limits, "HELPER_MILLISECONDS", 300)


@pytest.fixture
def guard() -> Iterator[Guard]:
    made = Guard()
    yield made
    made.close()


async def beating(work: Awaitable[ResultT]) -> tuple[ResultT, int]:
    """Await something while a task beats; return how often it could."""
    beats = 0

    async def beat() -> None:
        nonlocal beats
        while True:
            await asyncio.sleep(0.005)
            beats += 1

    heart = asyncio.create_task(beat())
    result = await work
    heart.cancel()
    return result, beats


def helper_of(guard: Guard) -> int | None:
    return None if guard._helper is None else guard._helper.process.pid


def is_there(pid: int) -> bool:
    """Whether a process exists, be it as a zombie."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


async def usage_of(guard: Guard, program: str, body: bytes) -> Usage:
    """Read an answer as the middleware does."""
    reader = TextReader(Meter({"n": program, "one": 1}), limits.RESPONSE_BODY_MAX, False)
    reader.feed(body)
    await reader.read_apart(guard, True)
    return reader.finish()


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize(
    ("program", "body"),
    [
        ("[.. | numbers] | add", b"[" * 4_000_000 + b"]" * 4_000_000),
        ("[.. | numbers] | add", b'{"x": [' + b"[1]," * 2_000_000 + b"1]}"),
        ("[.. | ..] | length", DEEP),
        ("[paths] | length", DEEP),
        (f".a | {ENDLESS}", b'{"a": 1}'),
        (".a * .n | length", b'{"a": "' + b"x" * 1000 + b'", "n": 100000000}'),
    ],
)
def test_a_hostile_document_stops_no_event_loop_and_its_counts_are_invalid(
    program: str, body: bytes, guard: Guard
) -> None:
    usage, beats = asyncio.run(beating(usage_of(guard, program, body)))
    assert usage == Usage({"one": 1}, UsageStatus.INVALID, error=False)
    assert beats > 10


def test_what_takes_long_but_not_too_long_is_read_apart(guard: Guard) -> None:
    body = b'{"usage": {"n": 7}, "items": [' + b"{}," * 400_000 + b"{}]}"
    program = ".usage.n"

    async def run() -> tuple[Usage, int]:
        return await beating(usage_of(guard, program, body))

    with pytest.raises(NotInline):
        Meter({"n": program}).read_json(body, Allowance())
    usage, _ = asyncio.run(run())
    assert usage == Usage({"n": 7, "one": 1}, UsageStatus.KNOWN, error=False)


@pytest.mark.usefixtures("quick")
def test_a_helper_that_was_killed_is_replaced_and_leaves_no_zombie(guard: Guard) -> None:
    async def run() -> None:
        assert (await usage_of(guard, "[limit(2; .[])] | length", b"[1, 2]")).counts["n"] == 2
        first = helper_of(guard)
        assert first is not None
        assert (await usage_of(guard, ENDLESS, b"{}")).status is UsageStatus.INVALID
        assert helper_of(guard) is None
        assert not is_there(first)
        assert (await usage_of(guard, "[limit(2; .[])] | length", b"[1, 2]")).counts["n"] == 2
        second = helper_of(guard)
        assert second is not None
        guard.close()
        assert not is_there(second)

    asyncio.run(run())


def test_a_request_is_read_apart_with_the_outcomes_of_all_its_programs(guard: Guard) -> None:
    texts = [".model", "[limit(1; .n)] | .[0]", ".model.x", "{a: .n}"]

    async def run() -> Document:
        return await guard.read(texts, b'{"model": "m", "n": 3}')

    document = asyncio.run(run())
    assert document.strict
    assert not document.lost
    assert compile_program(texts[0]).run(document) == "m"
    assert compile_program(texts[1]).run(document) == 3
    with pytest.raises(ProgramFailed, match="Cannot index string"):
        compile_program(texts[2]).run(document)
    assert compile_program(texts[3]).run(document) == {}


@pytest.mark.usefixtures("quick")
def test_a_request_that_takes_too_long_is_lost(guard: Guard) -> None:
    async def run() -> Document:
        return await guard.read([ENDLESS], b"{}")

    assert asyncio.run(run()).lost


@pytest.mark.usefixtures("quick")
def test_who_gave_up_waiting_does_not_disturb_the_others(guard: Guard) -> None:
    async def run() -> list[bytes | None]:
        slow = asyncio.create_task(guard.ask(Job("outcomes", {"": ENDLESS}), b"null"))
        quick = [guard.ask(Job("outcomes", {"": ".n"}), b'{"n": %d}' % n) for n in range(3)]
        waiting = [asyncio.create_task(each) for each in quick]
        await asyncio.sleep(0)
        slow.cancel()
        return await asyncio.gather(*waiting)

    replies = [msgspec.json.decode(reply or b"") for reply in asyncio.run(run())]
    assert [reply["values"] for reply in replies] == [[0], [1], [2]]


@pytest.mark.usefixtures("quick")
def test_more_than_may_wait_get_no_answer_at_once(
    guard: Guard, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "HELPER_BACKLOG", 2)

    async def run() -> list[bytes | None]:
        jobs = [guard.ask(Job("outcomes", {"": "1"}), b"null") for _ in range(5)]
        return await asyncio.gather(*jobs)

    replies = asyncio.run(run())
    assert [reply is None for reply in replies] == [False, False, True, True, True]


def test_a_helper_ends_when_its_guard_is_gone(guard: Guard) -> None:
    async def run() -> int:
        await guard.ask(Job("outcomes", {"": "1"}), b"null")
        helper = guard._helper
        assert helper is not None
        helper.link.close()
        return await asyncio.to_thread(helper.process.wait)

    assert asyncio.run(run()) == 0


def test_a_forked_child_lets_go_of_the_helper_and_its_parent_keeps_it(guard: Guard) -> None:
    async def ask() -> bytes | None:
        return await guard.ask(Job("outcomes", {"": "1"}), b"null")

    async def run() -> None:
        assert await ask() is not None
        pid = helper_of(guard)
        child = os.fork()
        if child == 0:
            os._exit(0 if guard._helper is None else 1)
        assert (await asyncio.to_thread(os.waitpid, child, 0))[1] == 0
        assert await ask() is not None
        assert helper_of(guard) == pid

    asyncio.run(run())


@pytest.mark.parametrize(
    ("program", "size", "allowed"),
    [
        ("if .a then .b else .c end", 20_000, True),
        ("if .a then .b else .c end", 40_000, False),
        ("[.. | numbers] | add", 3_500, True),
        ("[.. | numbers] | add", 5_000, False),
        ("[.. | ..] | length", 100, True),
        ("[.. | ..] | length", 1_000, False),
        (".n | range(.)", 10, False),
        (".usage.n", 1_000_000, True),
        (".usage.n", 1_100_000, False),
    ],
)
def test_what_runs_on_the_event_loop_depends_on_program_and_size(
    program: str, size: int, allowed: bool
) -> None:
    document = Document(b'{"a": "' + b"x" * size + b'", "n": 1}', Allowance())
    compiled = compile_program(program)
    if allowed:
        compiled.run(document)
    else:
        with pytest.raises(NotInline):
            compiled.run(document)
