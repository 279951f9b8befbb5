"""A failed flush stops everybody, and only a start that is alone goes on."""

from __future__ import annotations

from pathlib import Path

import nodes
import pytest
from nodes import ALICE
from processes import Child, Pipe

from finomw.engine import grants
from finomw.engine.engine import Engine
from finomw.engine.sweep import sweep
from finomw.errors import DirectoryError, FlushFailed, RecordingFailed
from finomw.testing.files import FaultyFiles


def work(pipe: Pipe, path: Path) -> None:
    """Obey: hold, flush, fail, or say what is known."""
    files = FaultyFiles()
    engine = nodes.open_node(path, files)
    pipe.send(engine.worker)
    while True:
        order = pipe.recv()
        try:
            match order:
                case "hold":
                    pipe.send(nodes.held(engine, 1).end)
                case "flush":
                    pipe.send(engine.flush())
                case "durable":
                    pipe.send(engine.durable())
                case "fail":
                    files.fail("flush")
                    pipe.send(None)
                case "close":
                    engine.close()
                    return
        except RecordingFailed as error:
            pipe.send(type(error).__name__)


def ask(child: Child, order: str) -> object:
    child.send(order)
    return child.receive()


def test_two_processes_share_the_watermark(path: Path, engine: Engine) -> None:
    child = Child(work, path)
    assert child.receive() == 2
    end = ask(child, "hold")
    assert engine.tail() == end
    assert engine.durable() < end
    assert engine.flush() == end
    assert ask(child, "durable") == end
    later = nodes.held(engine, 1).end
    assert ask(child, "flush") == later == engine.durable()
    child.send("close")
    child.finish()
    assert engine.durable() == later
    assert sweep(engine) == 1
    assert [p.name for p in (path / "workers").iterdir()] == ["1.lock"]


def test_a_failed_flush_stops_every_process_and_every_later_one(path: Path, engine: Engine) -> None:
    child, bystander = Child(work, path), Child(work, path)
    assert {child.receive(), bystander.receive()} == {2, 3}
    durable = engine.flush()
    held = nodes.held(engine, 1)
    ask(child, "fail")
    assert ask(child, "flush") == "FlushFailed"
    assert engine.health().failed
    for refused in (
        lambda: nodes.hold(engine, 1),
        lambda: nodes.settle(engine, held.hold, 1),
        lambda: grants.grant(engine, ALICE, 5, "test", "2"),
        engine.flush,
        engine.durable,
    ):
        with pytest.raises(RecordingFailed, match="until a restart"):
            refused()
    for order in ("hold", "flush", "durable"):
        assert ask(bystander, order) in ("RecordingFailed", "FlushFailed")
    assert engine.control.durable() == durable
    latecomer = Child(open_late, path)
    assert "stop every process" in latecomer.receive()
    latecomer.finish()
    for other in (child, bystander):
        other.send("close")
        other.finish()
    before = nodes.dump(engine)
    engine.close()
    again = nodes.open_node(path)
    assert nodes.dump(again) == before
    assert sweep(again) == 1
    assert again.flush() == again.tail()
    again.close()


def open_late(pipe: Pipe, path: Path) -> None:
    try:
        nodes.open_node(path)
    except FlushFailed as error:
        pipe.send(str(error))


def test_a_living_process_keeps_the_directory_refused(path: Path, engine: Engine) -> None:
    child = Child(work, path)
    child.receive()
    engine.control.fail()
    nodes.drop(engine)
    with pytest.raises(FlushFailed, match="stop every process"):
        nodes.open_node(path)
    child.kill()
    again = nodes.open_node(path)
    assert nodes.held(again, 1).amount == 1
    again.close()


def test_closing_after_a_failure_says_so_and_lets_go(
    path: Path, engine: Engine, caplog: pytest.LogCaptureFixture
) -> None:
    nodes.held(engine, 1)
    engine.control.fail()
    engine.close()
    assert "closing: a flush to disk failed" in caplog.text
    nodes.open_node(path).close()


def test_an_engine_that_cannot_become_a_worker_may_try_again(path: Path) -> None:
    engine = nodes.open_node(path)
    engine.control.fail()
    for _ in range(3):
        with pytest.raises(RecordingFailed):
            assert engine.worker
    engine.close()
    again = nodes.open_node(path)
    assert again.worker == 1
    again.close()


def test_a_first_flush_that_fails_leaves_no_lock_behind(path: Path) -> None:
    files = FaultyFiles()
    engine = nodes.open_node(path, files)
    files.fail("flush")
    for _ in range(2):
        with pytest.raises(RecordingFailed):
            assert engine.worker
    engine.close()
    again = nodes.open_node(path)
    assert again.worker == 2
    assert sweep(again) == 0
    again.close()


def test_no_slot_is_said_and_passes_when_there_is_one(
    path: Path, engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert engine.worker == 1
    child = Child(work_late, path)
    assert child.receive() == "open"
    while len(engine.control.slots()) < 256:
        engine.control.add_slot().claim(1, 1, 1, 0)  # type: ignore[arg-type]
    child.send()
    assert "more than 256 processes" in child.receive()
    engine.control.slots()[-1].free()
    child.send()
    assert child.receive() == 3
    child.finish()


def work_late(pipe: Pipe, path: Path) -> None:
    engine = nodes.open_node(path)
    pipe.send("open")
    for _ in range(2):
        pipe.recv()
        try:
            pipe.send(engine.worker)
        except DirectoryError as error:
            pipe.send(str(error))
    engine.close()


def test_a_worker_killed_while_it_flushed_is_healed_by_the_others(
    path: Path, engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    child = Child(die_flushing, path)
    worker = child.receive()
    child.kill()
    [slot] = [slot for slot in engine.control.slots() if slot.worker == worker]
    mark = slot.flush_mark
    assert mark == engine.tail()
    restored: list[tuple[int, int]] = []
    restore = type(engine.segments.at(0)).restore
    monkeypatch.setattr(
        type(engine.segments.at(0)),
        "restore",
        lambda self, start, end: (restored.append((start, end)), restore(self, start, end))[1],
    )
    durable = engine.durable()
    assert engine.flush() == mark
    assert restored == [(durable, mark)]
    assert slot.flush_mark == 0
    assert sweep(engine) == 1
    assert slot.worker == 0


class StuckFiles(FaultyFiles):
    """A disk whose flush never returns, once told so."""

    pipe: Pipe | None = None

    def step(self, kind: str, path: Path) -> None:
        if kind == "flush" and self.pipe is not None:
            self.pipe.send(self.worker)
            self.pipe.recv()

    worker = 0


def die_flushing(pipe: Pipe, path: Path) -> None:
    files = StuckFiles()
    engine = nodes.open_node(path, files)
    nodes.held(engine, 1)
    files.worker = engine.worker
    files.pipe = pipe
    engine.flush()


def test_a_stopped_flusher_blocks_nobody(path: Path, engine: Engine) -> None:
    child = Child(die_flushing, path)
    child.receive()
    end = nodes.held(engine, 1).end
    assert engine.flush() == end
    child.kill()
