"""Remote tables of which only parts are fetched.

A file stands in memory at its full size, as pages that nobody has touched take none: only what
tells about it and the group that is read are filled in. So it is read like a local file.
"""

from __future__ import annotations

import mmap
import os
from abc import abstractmethod

import numpy as np
from numpy.typing import NDArray

from feedline.store.remote.paths import RemotePath
from feedline.store.remote.remote_file import RemoteFile

# Fetched at first; a longer footer takes a second request.
USUAL_FOOTER = 2**16
# Memory that is never touched needs no swap space either.
_NO_RESERVE = getattr(mmap, "MAP_NORESERVE", 0x4000 if os.uname().sysname == "Linux" else 0)


class RangedPath(RemotePath):
    """The path of a remote table; its groups, that is row groups or record batches, are fetched."""

    @abstractmethod
    def image(self) -> NDArray[np.uint8]:
        """Return the bytes of the file, of which only what tells about it is filled in."""

    @abstractmethod
    def group_names(self) -> list[str]:
        """Return the names of the groups of the file in its tree, in order."""

    def _blank(self, size: int) -> NDArray[np.uint8]:
        flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _NO_RESERVE
        return np.frombuffer(mmap.mmap(-1, size, flags=flags), np.uint8)

    def _part(self, start: int, end: int) -> str:
        return self.tree.part(self.relative, start, end).relative

    def _fill(self, image: NDArray[np.uint8], start: int, end: int) -> int:
        if start < end:
            image[start:end] = self.tree.files.content(self._part(start, end))
        return max(0, end - start)

    def _fill_all(self, image: NDArray[np.uint8], ranges: list[tuple[int, int]]) -> None:
        """Fill in many small parts, which are one file in the cache."""
        ranges = [(start, end) for start, end in ranges if start < end]
        if not ranges:
            return
        whole: RemoteFile = self.tree.file_of(self.relative)
        total = sum(end - start for start, end in ranges)
        parts = whole.part(total, ranges=tuple(ranges))
        name = self.tree.note(f"{self.relative}#{len(ranges)} parts", parts)
        content = self.tree.files.content(name)
        done = 0
        for start, end in ranges:
            image[start:end] = content[done : done + end - start]
            done += end - start
