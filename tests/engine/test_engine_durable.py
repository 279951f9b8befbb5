"""Waiting on an event loop: one flush serves many, and nobody waits for ever."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import nodes
import pytest
from nodes import ALICE

from finomw.engine import customers, grants
from finomw.engine.durable import INLINE_FLUSH_NS, Durable
from finomw.engine.engine import Engine
from finomw.errors import EngineClosed, FlushFailed, RecordingFailed
from finomw.testing.clock import ManualClock
from finomw.testing.files import FaultyFiles


class SlowFiles(FaultyFiles):
    """A disk whose flushes take as long as is said, on the clock, and do what is said."""

    def __init__(self, clock: ManualClock) -> None:
        super().__init__()
        self.clock = clock
        self.microseconds = 0
        self.during: list[Callable[[], object]] = []
        self.threads: list[str] = []

    def step(self, kind: str, path: Path) -> None:
        if kind == "flush":
            self.clock.advance(self.microseconds)
            self.threads.append(threading.current_thread().name)
            if self.during:
                self.during.pop(0)()
        super().step(kind, path)


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def files(clock: ManualClock) -> SlowFiles:
    return SlowFiles(clock)


@pytest.fixture
def slow(path: Path, clock: ManualClock, files: SlowFiles) -> Iterator[Engine]:
    """Open an engine on a slow disk."""
    engine = nodes.open_node(path, files, clock)
    customers.add_customer(engine, ALICE, nodes.PLAN)
    grants.grant(engine, ALICE, 1_000, "test", "first")
    files.threads.clear()
    yield engine
    files.mend()
    engine.close()


def with_durable(engine: Engine, story: Callable[[Durable], Awaitable[None]]) -> None:
    """Run a story on a loop of its own; it must come to its end."""

    async def run() -> None:
        durable = Durable(engine, asyncio.get_running_loop())
        try:
            await asyncio.wait_for(story(durable), 30)
        finally:
            durable.close()

    asyncio.run(run())


async def make_slow(durable: Durable, engine: Engine, files: SlowFiles) -> None:
    """Let one flush be so long that the next runs in a thread."""
    files.microseconds = 100 * INLINE_FLUSH_NS // 1_000
    await durable.wait(nodes.held(engine, 0).end)
    files.threads.clear()


@pytest.fixture(params=["inline", "thread"])
def mode(request: pytest.FixtureRequest) -> str:
    return str(request.param)


async def enter(mode: str, durable: Durable, engine: Engine, files: SlowFiles) -> None:
    if mode == "thread":
        await make_slow(durable, engine, files)


def test_all_that_wait_in_one_turn_share_one_flush(
    slow: Engine, files: SlowFiles, mode: str
) -> None:
    async def story(durable: Durable) -> None:
        await enter(mode, durable, slow, files)
        flushes = files.counts["flush"]
        ends = [nodes.held(slow, 1).end for _ in range(10)]
        await asyncio.gather(*(durable.wait(end) for end in ends))
        assert files.counts["flush"] == flushes + 1
        assert slow.durable() >= max(ends)
        await durable.wait(ends[0])
        assert files.counts["flush"] == flushes + 1

    with_durable(slow, story)


def test_short_flushes_run_on_the_loop_and_long_ones_in_a_thread(
    slow: Engine, files: SlowFiles
) -> None:
    async def story(durable: Durable) -> None:
        await durable.wait(nodes.held(slow, 1).end)
        assert files.threads == ["MainThread"]
        await make_slow(durable, slow, files)
        await durable.wait(nodes.held(slow, 1).end)
        assert files.threads[0].startswith("finomw-flush")
        files.microseconds = 0
        for _ in range(100):
            await durable.wait(nodes.held(slow, 0).end)
        assert files.threads[-1] == "MainThread"

    with_durable(slow, story)


def test_the_loop_goes_on_while_a_thread_flushes(slow: Engine, files: SlowFiles) -> None:
    async def story(durable: Durable) -> None:
        await make_slow(durable, slow, files)
        go = threading.Event()
        files.during.append(lambda: go.wait(30))
        waiting = asyncio.create_task(durable.wait(nodes.held(slow, 1).end))
        for _ in range(10):
            await asyncio.sleep(0)
        assert not waiting.done()
        go.set()
        await waiting

    with_durable(slow, story)


def test_who_comes_during_a_flush_waits_for_the_next(
    slow: Engine, files: SlowFiles, mode: str
) -> None:
    async def story(durable: Durable) -> None:
        await enter(mode, durable, slow, files)
        loop = asyncio.get_running_loop()
        flushes = files.counts["flush"]
        late: list[asyncio.Task[None]] = []
        came = asyncio.Event()

        def come(end: int) -> None:
            late.append(asyncio.ensure_future(durable.wait(end)))
            came.set()

        def commit_meanwhile() -> None:
            loop.call_soon_threadsafe(come, nodes.held(slow, 1).end)

        files.during.append(commit_meanwhile)
        end = nodes.held(slow, 1).end
        await durable.wait(end)
        assert end <= slow.durable()
        await came.wait()
        await late[0]
        assert slow.durable() == slow.tail() > end
        assert files.counts["flush"] == flushes + 2

    with_durable(slow, story)


def test_what_is_begun_is_flushed_though_nobody_waits(
    slow: Engine, files: SlowFiles, mode: str
) -> None:
    async def story(durable: Durable) -> None:
        await enter(mode, durable, slow, files)
        flushes = files.counts["flush"]
        end = nodes.held(slow, 1).end
        durable.begin(end)
        durable.begin(end)
        assert slow.durable() < end
        await durable.wait(end)
        assert files.counts["flush"] == flushes + 1
        durable.begin(end)
        await asyncio.sleep(0)
        assert files.counts["flush"] == flushes + 1

    with_durable(slow, story)


def test_a_failed_flush_wakes_everybody_with_the_error(
    slow: Engine, files: SlowFiles, mode: str
) -> None:
    async def story(durable: Durable) -> None:
        await enter(mode, durable, slow, files)
        durable_before = slow.durable()
        ends = [nodes.held(slow, 1).end for _ in range(5)]
        files.fail("flush")
        results = await asyncio.gather(*(durable.wait(end) for end in ends), return_exceptions=True)
        assert [type(result) for result in results] == [FlushFailed] * 5
        assert slow.control.durable() == durable_before
        with pytest.raises(RecordingFailed):
            await durable.wait(ends[-1])
        with pytest.raises(RecordingFailed):
            durable.begin(ends[-1])
        with pytest.raises(RecordingFailed):
            nodes.hold(slow, 1)

    with_durable(slow, story)


def test_a_failure_of_another_process_wakes_everybody_too(
    slow: Engine, files: SlowFiles, mode: str
) -> None:
    async def story(durable: Durable) -> None:
        await enter(mode, durable, slow, files)
        waiting = asyncio.ensure_future(durable.wait(nodes.held(slow, 1).end))
        files.during.append(slow.control.fail)
        with pytest.raises(FlushFailed):
            await waiting

    with_durable(slow, story)


def test_a_begun_flush_that_fails_disturbs_nobody_but_is_logged(
    slow: Engine, files: SlowFiles, caplog: pytest.LogCaptureFixture
) -> None:
    async def story(durable: Durable) -> None:
        files.fail("flush")
        durable.begin(nodes.held(slow, 1).end)
        await asyncio.sleep(0)
        assert slow.control.failed

    with_durable(slow, story)
    [record] = caplog.records
    assert record.levelname == "ERROR"
    assert "Input/output error" in record.getMessage()


def test_what_a_waiting_call_will_tell_is_not_logged_twice(
    slow: Engine, files: SlowFiles, caplog: pytest.LogCaptureFixture
) -> None:
    async def story(durable: Durable) -> None:
        files.fail("flush")
        with pytest.raises(FlushFailed):
            await durable.wait(nodes.held(slow, 1).end)
        with pytest.raises(RecordingFailed):
            durable.begin(slow.tail())

    with_durable(slow, story)
    assert caplog.records == []


def test_a_flush_that_cannot_begin_wakes_everybody_and_the_next_may_succeed(
    slow: Engine, monkeypatch: pytest.MonkeyPatch, files: SlowFiles, mode: str
) -> None:
    def no_files(*_: object) -> None:
        raise RecordingFailed("Too many open files")

    async def story(durable: Durable) -> None:
        await enter(mode, durable, slow, files)
        end = nodes.held(slow, 1).end
        with monkeypatch.context() as patch:
            patch.setattr(slow.segments, "between", no_files)
            with pytest.raises(RecordingFailed, match="Too many"):
                await durable.wait(end)
        await durable.wait(end)

    with_durable(slow, story)


def test_one_who_gives_up_does_not_disturb_the_others(
    slow: Engine, files: SlowFiles, mode: str
) -> None:
    async def story(durable: Durable) -> None:
        await enter(mode, durable, slow, files)
        for fails in (False, True):
            tasks = [asyncio.ensure_future(durable.wait(nodes.held(slow, 1).end)) for _ in range(3)]
            await asyncio.sleep(0)
            tasks[1].cancel()
            if fails:
                files.fail("flush")
            results = await asyncio.gather(*tasks, return_exceptions=True)
            expected = FlushFailed if fails else type(None)
            assert [type(result) for result in results] == [
                expected,
                asyncio.CancelledError,
                expected,
            ]

    with_durable(slow, story)


def test_who_still_waits_when_it_closes_is_told(slow: Engine, files: SlowFiles) -> None:
    async def story(durable: Durable) -> None:
        await make_slow(durable, slow, files)
        go = threading.Event()
        files.during.append(lambda: go.wait(30))
        waiting = asyncio.ensure_future(durable.wait(nodes.held(slow, 1).end))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        durable.close()
        with pytest.raises(EngineClosed):
            await waiting
        go.set()

    with_durable(slow, story)


def test_an_engine_that_closes_lets_a_flush_under_way_end_first(
    slow: Engine, files: SlowFiles
) -> None:
    end = nodes.held(slow, 1).end
    started, go = threading.Event(), threading.Event()

    def hang() -> None:
        started.set()
        go.wait(30)

    files.during.append(hang)
    with ThreadPoolExecutor(2) as threads:
        flushing = threads.submit(slow.flush)
        assert started.wait(30)
        closing = threads.submit(slow.close)
        assert not closing.done()
        go.set()
        assert flushing.result(30) == end
        closing.result(30)
    with pytest.raises(EngineClosed):
        slow.flush()
