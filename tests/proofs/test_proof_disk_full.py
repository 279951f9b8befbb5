"""A disk that is really full: nobody dies of it, calls under way end, and room is all it takes.

Small file systems are filled by one process while another works on them; a process that a SIGBUS
killed would not answer any more, nor end with 0.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from mounts import Mount, loop_ext4, small_tmpfs

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE.parent / "engine"), str(HERE.parent / "e2e")]

import nodes  # noqa: E402
from e2e_servers import CONFIG, FLAT, PATIENCE, TOKEN, Node, serving, until  # noqa: E402
from processes import Child, Pipe  # noqa: E402

from finomw import limits  # noqa: E402
from finomw.engine import charge, customers, grants  # noqa: E402
from finomw.engine.directory import create  # noqa: E402
from finomw.engine.verify import verify  # noqa: E402
from finomw.errors import DirectoryError, RecordingFailed  # noqa: E402
from finomw.types import UsageStatus  # noqa: E402

pytestmark = pytest.mark.no_cover

SIZE = 32 * limits.MIB
STATE = limits.STATE_SIZE_MIN
MONEY = 10**9
CALLS_MAX = 3_000
METERS = {f"m{number:063}": limits.COUNT_MAX for number in range(limits.METERS_MAX)}
NOTE = "n" * limits.NOTE_BYTES


@pytest.fixture(params=[small_tmpfs, loop_ext4], ids=["tmpfs", "ext4"])
def disk(request: pytest.FixtureRequest) -> Iterator[Mount]:
    with request.param(SIZE) as mount:
        yield mount


@contextmanager
def filled(disk: Mount) -> Iterator[None]:
    """Leave nothing free for the block, not even what a removed draft gives back."""
    filler = disk.path / "filler"
    fill(filler)
    try:
        yield
    finally:
        filler.unlink()


def fill(filler: Path) -> None:
    with filler.open("ab", buffering=0) as file:
        for piece in (limits.MIB, limits.PAGE, 1):
            try:
                while file.write(bytes(piece)) == piece:
                    pass
            except OSError:
                continue


def _works(pipe: Pipe, path: Path) -> None:
    """Do as told: hold until refused, end with the longest records there are, verify."""
    engine = nodes.open_node(path)
    held: list[charge.Held] = []
    while (told := pipe.recv()) != "stop":
        said: Any = None
        if told == "hold":
            try:
                while len(held) < CALLS_MAX:
                    held.append(nodes.held(engine, 1))
            except RecordingFailed as error:
                said = str(error)
        elif told == "end":
            for each in held:
                charge.start(engine, each)
                charge.settle(engine, each.hold, 1, METERS, UsageStatus.KNOWN, NOTE)
            engine.flush()
            said = len(held)
            held.clear()
        else:
            checked = verify(engine)
            account = customers.get_account(engine, nodes.ALICE)
            said = (checked.faults, checked.open_holds, account.balance)
        pipe.send(said)
    engine.close()


def tell(child: Child, what: str) -> Any:
    child.send(what)
    return child.receive()


def make(disk: Mount) -> Path:
    path = nodes.make(disk.path / "node", STATE)
    engine = nodes.open_node(path)
    customers.add_customer(engine, nodes.ALICE, nodes.PLAN)
    grants.grant(engine, nodes.ALICE, MONEY, "test", "first")
    engine.close()
    return path


def test_a_disk_that_others_fill_refuses_calls_and_ends_those_under_way(disk: Mount) -> None:
    path = make(disk)
    child = Child(_works, path)
    charged = 0
    for _ in range(3):  # each time there is room again, it goes on by itself
        with filled(disk):
            assert "No space left on device" in tell(child, "hold")
            assert "No space left on device" in tell(child, "hold")
            fill(disk.path / "filler")
            ended = tell(child, "end")
            assert ended > 0
            charged += ended
            assert tell(child, "verify") == ((), 0, MONEY - charged)
    child.send("stop")
    child.finish()
    again = nodes.open_node(path)
    assert verify(again).faults == ()
    nodes.rebuilt(again, path).close()


def test_a_disk_that_is_filled_by_the_holds_themselves_does_the_same(disk: Mount) -> None:
    """All that is free is taken for segments and the state, until nothing more is."""
    path = make(disk)
    child = Child(_works, path)
    assert "No space left on device" in tell(child, "hold")
    with filled(disk):
        ended = tell(child, "end")
        assert ended > 100
        assert tell(child, "verify") == ((), 0, MONEY - ended)
    child.send("stop")
    child.finish()


def _opens(pipe: Pipe, path: Path) -> None:
    """Say why a directory cannot be opened, or open it, end what is open, and close it."""
    try:
        engine = nodes.open_node(path)
    except DirectoryError as error:
        pipe.send(str(error))
        return
    with engine.store.read() as txn:
        named = list(engine.store.holds.items(txn))
    for each in named:
        charge.release(engine, each.hold)
    pipe.send(len(named))
    engine.close()


def test_a_start_on_a_full_disk_ends_what_a_crash_left(disk: Mount) -> None:
    path = make(disk)
    with filled(disk):
        child = Child(_works, path)
        assert "No space left on device" in tell(child, "hold")
        child.kill()
        starts = Child(_opens, path)
        assert starts.receive() > 0
        starts.finish()
    again = nodes.open_node(path)
    assert verify(again).faults == ()
    assert customers.get_account(again, nodes.ALICE).balance == MONEY
    again.close()


@pytest.mark.parametrize("lost", ["lock.mdb", "data.mdb"])
def test_a_start_that_finds_no_room_for_the_state_says_so(disk: Mount, lost: str) -> None:
    path = make(disk)
    (path / "state" / lost).unlink()
    with filled(disk):
        starts = Child(_opens, path)
        assert "No space left on device" in str(starts.receive())
        starts.finish()
    starts = Child(_opens, path)
    assert starts.receive() == 0
    starts.finish()


class SmallNode(Node):
    """A node that soon needs another segment; its server's files are elsewhere."""

    def __init__(self, folder: Path, disk: Mount) -> None:
        self.path = disk.path / "node"
        self.config = folder / "fino.yaml"
        self.config.write_text(CONFIG.replace("data: node", f"data: {self.path}"))
        create(self.path, limits.SEGMENT_SIZE_MIN, STATE)
        self._engine = None


@pytest.mark.parametrize("workers", [1, 2])
def test_a_server_on_a_full_disk_answers_503_and_then_goes_on(
    disk: Mount, tmp_path: Path, workers: int
) -> None:
    node = SmallNode(tmp_path, disk)
    headers = node.newcomer("alice", MONEY)
    gate = tmp_path / "gate"
    in_flight: list[httpx.Response] = []

    def long_call(url: str) -> None:
        in_flight.append(httpx.get(url, headers=headers, timeout=PATIENCE))

    with serving(node, workers) as server:
        url = f"{server.url}/chat?tokens=7&gate={gate}"
        calls = [threading.Thread(target=long_call, args=(url,)) for _ in range(3)]
        for call in calls:
            call.start()
        until(lambda: node.open_holds() == len(calls))
        served = 0
        with filled(disk), httpx.Client(base_url=server.url, timeout=PATIENCE) as client:
            answer = client.get("/flat", headers=headers)
            while answer.status_code == 200 and served < CALLS_MAX:
                served += 1
                answer = client.get("/flat", headers=headers)
            assert (answer.status_code, answer.json()["reason"]) == (503, "cannot_record")
            assert "retry-after" in answer.headers
            gate.touch()
            for call in calls:
                call.join(PATIENCE)
            assert [answer.status_code for answer in in_flight] == [200] * len(calls)
            assert client.get("/flat", headers=headers).status_code in (200, 503)
            assert client.get("/health").status_code == 200
        before = node.balance("alice")
        with httpx.Client(base_url=server.url, timeout=PATIENCE) as client:
            for _ in range(20):
                assert client.get("/flat", headers=headers).status_code == 200
        assert node.balance("alice") == before - 20 * FLAT
        assert server.process.poll() is None
        server.terminate()
    assert "low space" in server.log.read_text()
    assert "Traceback" not in server.log.read_text()
    paid = [-entry.amount for entry in node.settlements("alice")]
    assert paid.count(7 * TOKEN) == len(calls)
    node.prove()
    node.close()
