from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import crash_images
import pytest

pytestmark = pytest.mark.no_cover

HISTORIES = 200
IMAGES_MIN = 200_000


@pytest.mark.timeout(900)
def test_no_image_of_the_disk_breaks_a_promise(
    tmp_path: Path, figures: Callable[[str], None]
) -> None:
    began = time.monotonic()
    tally = crash_images.run(range(HISTORIES), tmp_path)
    figures(crash_images.figures(tally, time.monotonic() - began))
    assert tally.images >= IMAGES_MIN
    assert tally.torn > IMAGES_MIN // 10
    assert tally.ghosts > IMAGES_MIN // 100
