"""What the disk may hold of one file, unit by unit, while the kernel writes when it likes.

A unit is what the disk writes whole: a page of 4 KiB or a sector of 512 bytes. Each keeps every
version since the last one that a flush has guaranteed. Which pages count as dirty is the kernel's
view: a page whose writing failed is clean, and only what is stored again is written again. Used by
``disk.py``, which gives files their names and processes their mappings.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import NamedTuple

from finomw import limits


class Version(NamedTuple):
    """What a unit held from a moment on."""

    since: int
    content: bytes


class Writeback(NamedTuple):
    """A flush under way: pages that were dirty when it began, or that others were writing."""

    began: int
    pages: frozenset[int]
    lost: bool


class Content:
    """A file's bytes: what processes see, and what the disk may hold."""

    def __init__(self, content: bytearray, unit: int) -> None:
        self.memory = content
        self.unit = unit
        self.versions: dict[int, list[Version]] = {}
        self.errors = 0
        self.told = True
        self._now = 0
        self._dirty: set[int] = set()
        self._writing: list[Writeback] = []

    def store(self, offset: int, data: bytes) -> None:
        """Change the memory and note the new versions."""
        unit, memory = self.unit, self.memory
        end = offset + len(data)
        touched = range(offset // unit, -(-end // unit))
        for index in touched:
            if index not in self.versions:
                at = index * unit
                self.versions[index] = [Version(self._now, bytes(memory[at : at + unit]))]
        memory[offset:end] = data
        self._now += 1
        for index in touched:
            at = index * unit
            self.versions[index].append(Version(self._now, bytes(memory[at : at + unit])))
        self._dirty.update(range(offset // limits.PAGE, -(-end // limits.PAGE)))

    def begin(self, *, lose: bool) -> Writeback:
        """Begin to write what is dirty; ``lose`` says that the disk will not take it."""
        pages = frozenset(self._dirty.union(*(other.pages for other in self._writing)))
        self._dirty.clear()
        if lose:
            self._writing.clear()
            self.errors += 1
            self.told = False
        writeback = Writeback(self._now, pages, lose)
        self._writing.append(writeback)
        return writeback

    def finish(self, writeback: Writeback, *, waited: bool) -> None:
        """Guarantee what was written, if somebody waited for it and the disk took it."""
        if writeback not in self._writing:
            return  # lost by another flush
        self._writing.remove(writeback)
        if writeback.lost:
            return
        if not waited:
            self._dirty.update(writeback.pages)
            return
        a_page = limits.PAGE // self.unit
        for page in writeback.pages:
            for index in range(page * a_page, (page + 1) * a_page):
                versions = self.versions.get(index)
                if versions is None:
                    continue
                while len(versions) > 1 and versions[1].since <= writeback.began:
                    del versions[0]
                if len(versions) == 1:
                    del self.versions[index]

    def evict(self, choose: Random) -> None:
        """Let go of clean pages: where a failed flush lost them, the disk's version comes back."""
        for index, versions in list(self.versions.items()):
            page = index * self.unit // limits.PAGE
            if page in self._dirty or any(page in other.pages for other in self._writing):
                continue
            kept = choose.choice(versions)
            at = index * self.unit
            self.memory[at : at + self.unit] = kept.content
            del self.versions[index]

    def image(self, pick: Callable[[list[Version]], int], picked: list[int]) -> bytearray:
        """Return what the disk may hold; which versions were picked is added to ``picked``."""
        memory, unit = bytearray(self.memory), self.unit
        for index, versions in self.versions.items():
            which = pick(versions)
            picked.append(which)
            memory[index * unit : (index + 1) * unit] = versions[which].content
        return memory
