"""The control file: shared words, and a durable LSN that never goes back."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from finomw import limits
from finomw.errors import DirectoryError
from finomw.journal.control import VERSION, Control, Epoch
from finomw.journal.files import Files
from finomw.types import WorkerId

EPOCH = Epoch(b"b" * 16, 5, 6)


@pytest.fixture
def control(tmp_path: Path) -> Iterator[Control]:
    control = Control(Files(), tmp_path / "control")
    yield control
    control.close()


def test_a_new_file_has_no_epoch_until_it_is_reset(control: Control) -> None:
    assert control.epoch() is None
    control.reset(EPOCH, 4096)
    assert control.epoch() == EPOCH
    assert (control.durable(), control.failed, control.slots()) == (4096, False, [])


def test_what_one_process_stores_another_sees(control: Control, tmp_path: Path) -> None:
    control.reset(EPOCH, 4096)
    slot = control.add_slot()
    slot.claim(WorkerId(7), 100, 200, 4096)
    other = Control(Files(), tmp_path / "control")
    assert [s.worker for s in other.slots()] == [7]
    slot.publish(5000)
    assert other.durable() == 5000
    slot.flush_mark = 6000
    assert other.slots()[0].flush_mark == 6000
    other.fail()
    assert control.failed
    other.close()


def test_the_durable_lsn_is_the_highest_watermark(control: Control) -> None:
    control.reset(EPOCH, 100)
    first, second = control.add_slot(), control.add_slot()
    first.publish(300)
    second.publish(200)
    assert control.durable() == 300
    second.publish(400)
    assert control.durable() == 400


def test_a_freed_slot_keeps_its_watermark_and_its_next_owner_stores_the_maximum_first(
    control: Control,
) -> None:
    control.reset(EPOCH, 100)
    first, second = control.add_slot(), control.add_slot()
    first.claim(WorkerId(1), 1, 1, control.durable())
    first.publish(500)
    first.flush_mark = 600
    first.free()
    assert control.durable() == 500
    second.publish(450)
    first.claim(WorkerId(2), 1, 1, control.durable())
    assert control.durable() == 500
    assert (first.worker, first.flush_mark) == (2, 0)


def test_a_reset_forgets_slots_and_failure(control: Control) -> None:
    control.reset(EPOCH, 100)
    control.add_slot().publish(900)
    control.fail()
    control.reset(EPOCH, 200)
    assert (control.durable(), control.failed, control.slots()) == (200, False, [])
    assert control.add_slot().worker == 0


def test_distrust_changes_the_epoch_and_keeps_what_is_known_durable(control: Control) -> None:
    control.reset(EPOCH, 100)
    control.add_slot().publish(900)
    control.fail()
    control.distrust()
    assert control.epoch() not in (None, EPOCH)
    assert control.durable() == 900
    assert control.failed


def test_slots_are_bounded(control: Control) -> None:
    control.reset(EPOCH, 0)
    for _ in range(limits.SLOTS):
        control.add_slot()
    with pytest.raises(DirectoryError, match="more than 256 processes"):
        control.add_slot()


def test_a_newer_control_file_is_refused(control: Control, tmp_path: Path) -> None:
    control.reset(EPOCH, 0)
    control.file.store_word(8, VERSION + 1)
    with pytest.raises(DirectoryError, match=f"version {VERSION + 1} is newer"):
        Control(Files(), tmp_path / "control")


def test_a_write_mark_is_a_word_of_the_slot(control: Control) -> None:
    control.reset(EPOCH, 0)
    slot = control.add_slot()
    slot.mark_write(12)
    assert control.file.load_word(limits.PAGE + 40) == 12


def test_a_clean_stop_is_a_word_that_a_reset_clears(control: Control) -> None:
    epoch = Epoch(b"b" * 16, 1, 2)
    control.reset(epoch, 5000)
    assert (control.clean_stop, control.started_clean) == (0, False)
    control.stop_clean(6000)
    assert control.clean_stop == 6000
    control.reset(epoch, 6000, clean=True)
    assert (control.clean_stop, control.started_clean) == (0, True)
    assert control.durable() == 6000


def test_an_older_control_file_is_believed_and_becomes_a_new_one_at_its_reset(
    control: Control, tmp_path: Path
) -> None:
    epoch = Epoch(b"b" * 16, 1, 2)
    control.reset(epoch, 5000)
    control.file.store_word(8, VERSION - 1)
    older = Control(Files(), control.file.path)
    assert (older.epoch(), older.durable(), older.clean_stop) == (epoch, 5000, 0)
    older.reset(epoch, 5000)
    assert control.file.load_word(8) == VERSION
    older.close()
