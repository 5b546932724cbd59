"""What was packed to a URL before, and what of it new data does not write over."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable

from feedline.errors import PackError
from feedline.packing.formats import FORMATS
from feedline.store.manifest import MANIFEST_NAME
from feedline.store.remote.objects import Objects
from feedline.store.remote.urls import Url

_MOST_LISTED = 10**6
# A chunk is a file, or a folder of `.npy` files.
_CHUNK = re.compile(rf"chunk-\d{{6,}}(?:\.(?:{'|'.join(FORMATS)})|/.+\.npy)")


class PackedBefore:
    """The packed data at a URL: in the folder itself, or else in the folders of its splits.

    Args:
        objects: How to get at the URL.
        target: The URL.
        splits: The names of the splits that are packed there now; none without splits.
    """

    def __init__(self, objects: Objects, target: Url, splits: Iterable[str]) -> None:
        self._target = target
        self._names = [name for name, _ in objects.list_heads(target, _MOST_LISTED)]
        if len(self._names) >= _MOST_LISTED:
            raise PackError(f"{target}: has more than {_MOST_LISTED} objects; pack to another URL")
        self._written = {f"{name}/" for name in splits} or {""}
        found = {name.removesuffix(MANIFEST_NAME) for name in self._names if _is_manifest(name)}
        # Beside data in the folder itself, other folders are none of its splits.
        self._parts = found & {"", *self._written} if "" in found else found

    @property
    def manifests(self) -> list[str]:
        """The names of the `metadata.json` files."""
        return [f"{part}{MANIFEST_NAME}" for part in sorted(self._parts)]

    @property
    def is_whole(self) -> bool:
        """Whether nothing is missing of what is packed there now."""
        return self._written <= self._parts

    def refuse_others(self) -> None:
        """Raise if there are splits that the new data does not have: they may be data by itself."""
        if others := sorted(self._parts - self._written - {""}):
            raise PackError(
                f"{self._target}: has packed data in {others[0]!r:.80}, which is no split of the "
                "new data and would stay there; remove it, or use another URL"
            )

    def left(self, written: Collection[str]) -> list[str]:
        """Return what was packed there and is not among the names that were written now.

        `metadata.json` comes first, so that whatever is left in the end is not taken for data.
        """
        old = [name for part in self._parts for name in self._names if _is_of(name, part)]
        return [name for name in (*self.manifests, *old) if name not in written]


def _is_manifest(name: str) -> bool:
    return name.rpartition("/")[2] == MANIFEST_NAME and name.count("/") <= 1


def _is_of(name: str, part: str) -> bool:
    """Whether this is the name of a chunk in a folder."""
    return name.startswith(part) and _CHUNK.fullmatch(name[len(part) :]) is not None
