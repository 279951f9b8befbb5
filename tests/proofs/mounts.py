"""Small file systems of their own for proofs: mounted for one test, always taken down again.

They need root, and the loop ones loop devices. Where these are missing the test is skipped, loudly:
a proof that was not tried must not look like one that held.
"""

from __future__ import annotations

import os
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import NoReturn

import pytest

NEEDS = "NOT TRIED: needs root and loop devices"


class Mount:
    """A mounted file system; ``device`` is what is mounted: a loop device, or ``tmpfs``."""

    def __init__(self, path: Path, device: str, kind: str, options: str) -> None:
        self.path = path
        self.device = device
        self._kind = kind
        self._options = options

    def mount(self) -> None:
        """Mount it, for the first time or after `unmount`; what a tmpfs had is gone by then."""
        _run("mount", "-t", self._kind, "-o", self._options, self.device, str(self.path))

    def remount(self, options: str) -> None:
        """Change options of the mounted file system: ``ro``, ``rw``, ``size=8m``."""
        _run("mount", "-o", f"remount,{options}", str(self.path))

    def unmount(self) -> None:
        """Unmount it; lazily where somebody still has a file open, so that it goes in any case."""
        if os.path.ismount(self.path) and not _succeeds("umount", str(self.path)):
            _run("umount", "--lazy", str(self.path))

    def free(self) -> int:
        """Return the bytes that are free on it."""
        status = os.statvfs(self.path)
        return status.f_bavail * status.f_frsize


@contextmanager
def small_tmpfs(size: int) -> Iterator[Mount]:
    """Have a tmpfs of ``size`` bytes."""
    with ExitStack() as undo:
        folder = Path(undo.enter_context(tempfile.TemporaryDirectory(prefix="finomw-tmpfs-")))
        yield _mounted(undo, Mount(folder, "tmpfs", "tmpfs", f"size={size},mode=0700"))


@contextmanager
def loop_ext4(size: int, block: int = 1024) -> Iterator[Mount]:
    """Have an ext4 of ``size`` bytes on a loop device; a few per cent of it are ext4's own.

    ``block`` is its block size in bytes.
    """
    with ExitStack() as undo:
        folder = Path(undo.enter_context(tempfile.TemporaryDirectory(prefix="finomw-ext4-")))
        image, path = folder / "image", folder / "mounted"
        path.mkdir()
        with image.open("wb") as file:
            os.posix_fallocate(file.fileno(), 0, size)
        try:
            _run(
                "mkfs.ext4",
                "-q",
                "-F",
                "-b",
                str(block),
                "-m",
                "0",
                "-E",
                "lazy_itable_init=0",
                str(image),
            )
            device = _run("losetup", "--find", "--show", str(image))
        except (OSError, subprocess.CalledProcessError) as error:
            _not_tried(error)
        undo.callback(_run, "losetup", "--detach", device)
        yield _mounted(undo, Mount(path, device, "ext4", "rw"))


def _mounted(undo: ExitStack, mount: Mount) -> Mount:
    try:
        mount.mount()
    except (OSError, subprocess.CalledProcessError) as error:
        _not_tried(error)
    undo.callback(mount.unmount)
    return mount


def _not_tried(error: OSError | subprocess.CalledProcessError) -> NoReturn:
    said = error.stderr if isinstance(error, subprocess.CalledProcessError) else error
    print(f"{NEEDS}: {str(said).strip()}")
    pytest.skip(NEEDS)


def _run(*command: str) -> str:
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    return done.stdout.strip()


def _succeeds(*command: str) -> bool:
    return subprocess.run(command, check=False, capture_output=True).returncode == 0
