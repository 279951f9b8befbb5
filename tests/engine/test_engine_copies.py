"""Copies of a node directory made with ``cp``: never believed, recovered or refused by name."""

from __future__ import annotations

import os
import random
import shutil
import subprocess
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import nodes
import pytest
import ruins
from nodes import ALICE, SEGMENT
from processes import Child, Pipe

from finomw import limits
from finomw.engine import customers, grants
from finomw.engine.analysis import dry_run
from finomw.engine.checkpoint import make_checkpoint, prune
from finomw.engine.engine import Engine
from finomw.engine.loss import accept_loss, assess
from finomw.engine.verify import verify
from finomw.errors import DirectoryError, JournalDamaged
from finomw.journal.recovery import Outcome
from finomw.testing.clock import ManualClock


def rich_node(path: Path) -> Path:
    engine = nodes.open_node(nodes.make(path, limits.STATE_SIZE_MIN))
    customers.add_customer(engine, ALICE, nodes.PLAN)
    grants.grant(engine, ALICE, 10**9, "test", "first")
    engine.close()
    return path


def works(pipe: Pipe, path: Path) -> None:
    """Charge a micro at a time; each is on disk before it is reported."""
    engine = nodes.open_node(path)
    for number in range(1, 10**6):
        nodes.settle(engine, nodes.held(engine, 2).hold, 1)
        engine.flush()
        pipe.send(number)
        if number % 150 == 0:
            engine.prepare_next_segment()
            make_checkpoint(engine)
            prune(engine, 2 * SEGMENT)


class Worker:
    """A process that works, and how much it has reported."""

    def __init__(self, path: Path) -> None:
        self.child = Child(works, path)
        self.acknowledged = 0

    def listen(self, least: int = 0) -> int:
        """Hear what was reported, and at least so many reports more; return the last."""
        while least > 0 or self.child._pipe.poll():
            self.acknowledged = self.child.receive()
            least -= 1
        return self.acknowledged


Copy = Callable[[Path, Path, Worker, random.Random], None]


def with_cp(source: Path, target: Path, worker: Worker, dice: random.Random) -> None:
    subprocess.run(["cp", "-a", source, target], check=False, capture_output=True)


def with_shutil(source: Path, target: Path, worker: Worker, dice: random.Random) -> None:
    with suppress(shutil.Error):  # what was pruned meanwhile
        shutil.copytree(source, target)


def slowly(source: Path, target: Path, worker: Worker, dice: random.Random) -> None:
    """Copy file by file in any order, in pieces, while the work goes on."""
    files = [file for file in source.rglob("*") if file.is_file()]
    dice.shuffle(files)
    _in_this_order(files, source, target, worker)


def control_last(source: Path, target: Path, worker: Worker, dice: random.Random) -> None:
    """Copy the journal first, and last what knows how far it has come since."""
    files = [file for file in source.rglob("*") if file.is_file()]
    dice.shuffle(files)
    order = {"control": 2, "journal": 0}
    files.sort(key=lambda file: order.get(file.relative_to(source).parts[0], 1))
    _in_this_order(files, source, target, worker)


def _in_this_order(files: list[Path], source: Path, target: Path, worker: Worker) -> None:
    for folder in ("state", "journal", "checkpoints", "workers"):
        (target / folder).mkdir(parents=True)
    for file in files:
        worker.listen(3)
        copy = target / file.relative_to(source)
        with suppress(FileNotFoundError), file.open("rb") as read, copy.open("wb") as write:
            while piece := read.read(16_384):
                write.write(piece)


@pytest.mark.parametrize("copy", [with_cp, with_shutil, slowly, control_last])
def test_a_copy_of_a_live_directory_has_all_that_was_acknowledged_before_it(
    tmp_path: Path, copy: Copy
) -> None:
    path = rich_node(tmp_path / "node")
    dice = random.Random(copy.__name__)
    worker = Worker(path)
    opened = refused = 0
    try:
        for number in range(8):
            acknowledged = worker.listen(dice.randrange(1, 60))
            target = tmp_path / str(number)
            copy(path, target, worker, dice)
            try:
                engine = nodes.open_node(target)
                opened += 1
            except (JournalDamaged, DirectoryError) as error:
                refused += 1
                engine = past_the_refusal(target, str(error))
            was_copied(engine, acknowledged)
            shutil.rmtree(target)
    finally:
        worker.child.end()
    assert opened + refused == 8
    if copy is control_last:
        assert refused == 8
    print(f"{copy.__name__}: {opened} copies opened, {refused} were refused by name and then too")


def past_the_refusal(path: Path, told: str) -> Engine:
    assert "finomw recover --dry-run" in told
    found = assess(path)
    assert str(found.plan.error) == told
    assert found.end is not None
    before = {file.name: file.read_bytes() for file in (path / "journal").iterdir()}
    aside = accept_loss(path, found.end, ManualClock())[1]
    now = {file.name: file.read_bytes() for file in (path / "journal").iterdir()}
    for name, content in before.items():
        if now.get(name) != content:
            assert aside is not None
            assert (aside / name).read_bytes() == content
    return nodes.open_node(path)


def was_copied(engine: Engine, acknowledged: int) -> None:
    """Find in the copy every call that was reported before it was begun; and use it."""
    assert not engine.health().clean_start
    assert verify(engine).faults == ()
    account = customers.get_account(engine, ALICE)
    assert account.spent_total >= acknowledged
    assert account.balance + account.held == 10**9 - account.spent_total
    nodes.settle(engine, nodes.held(engine, 2).hold, 1)
    assert customers.get_account(engine, ALICE).spent_total == account.spent_total + 1
    engine.close()


def replaced_whole(path: Path, copy: Path) -> None:
    """Remove the original and copy back: the file system may give the same numbers again."""
    shutil.rmtree(path)
    shutil.copytree(copy, path)


def replaced_file_by_file(path: Path, copy: Path) -> None:
    """Do as rsync does: each file is made beside the old one and renamed over it."""
    for file in [file for file in copy.rglob("*") if file.is_file()]:
        target = path / file.relative_to(copy)
        shutil.copy2(file, target.with_name("new"))
        target.with_name("new").rename(target)


@pytest.mark.parametrize("replace", [replaced_whole, replaced_file_by_file])
def test_a_copy_that_comes_back_in_the_same_boot_is_not_believed(
    tmp_path: Path, replace: Callable[[Path, Path], None]
) -> None:
    path = rich_node(tmp_path / "node")
    engine = nodes.open_node(path)
    nodes.held(engine, 2)
    engine.flush()
    before = nodes.dump(engine)
    shutil.copytree(path, tmp_path / "copy")
    nodes.held(engine, 2)
    nodes.drop(engine)
    assert dry_run(path).outcome is Outcome.GO_ON
    for _ in range(3):
        replace(path, tmp_path / "copy")
        plan = dry_run(path)
        assert (plan.outcome, plan.reason) == (
            Outcome.RECOVER,
            "the state directory is another one",
        )
        again = nodes.open_node(path)
        assert nodes.dump(again) == before
        nodes.drop(again)


def test_a_directory_that_moves_to_another_machine_is_rebuilt(tmp_path: Path) -> None:
    path = rich_node(tmp_path / "node")
    engine = nodes.open_node(path)
    nodes.held(engine, 2)
    before = nodes.dump(engine)
    nodes.drop(engine)
    shutil.copytree(path, tmp_path / "elsewhere")
    ruins.new_boot(tmp_path / "elsewhere")
    shutil.rmtree(path)
    assert dry_run(tmp_path / "elsewhere").reason == "the machine was started anew"
    again = nodes.open_node(tmp_path / "elsewhere")
    assert nodes.dump(again) == before
    assert verify(again).faults == ()
    again.close()


def test_a_copy_and_its_original_never_use_one_linked_state_at_a_time(tmp_path: Path) -> None:
    """A state on a memory file system is linked; a copy of the directory has the same link."""
    path, memory = rich_node(tmp_path / "node"), Path("/dev/shm") / f"finomw-{os.getpid()}"
    shutil.rmtree(path / "state")
    (path / "state").symlink_to(memory)
    try:
        engine = nodes.open_node(path)
        nodes.held(engine, 2)
        engine.flush()
        copied = nodes.dump(engine)
        shutil.copytree(path, tmp_path / "copy", symlinks=True)
        for ask in (nodes.open_node, dry_run):
            with pytest.raises(DirectoryError, match=r"same state open|a process has it open"):
                ask(tmp_path / "copy")
        nodes.held(engine, 3)
        original = nodes.dump(engine)
        engine.close()
        for node, state in ((tmp_path / "copy", copied), (path, original)) * 2:
            again = nodes.open_node(node)
            assert nodes.dump(again) == state
            nodes.drop(again)
    finally:
        shutil.rmtree(memory)
