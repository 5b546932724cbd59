"""Whether every chunk of a folder is as it was written: what is checked, and what was found.

Each file is checked by a function of its own, which any process can do: engines decide where.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from feedline.errors import InvalidValueError, StoreError
from feedline.store.checksums import check_file
from feedline.store.folder import FolderStore
from feedline.store.manifest import MANIFEST_NAME, Manifest
from feedline.store.remote.urls import is_url
from feedline.words import one_line

# A folder on a disk, or one at a URL.
AnyPath = TypeVar("AnyPath", bound=Path)


@one_line
class Fault(NamedTuple):
    """A file that is not as it should be, and in what way.

    Args:
        path: The file.
        text: What is wrong with it.
    """

    path: Path
    text: str


@one_line
@dataclass(frozen=True, kw_only=True)
class VerifyResult:
    """What `verify` found.

    `num_unchecked` counts the chunks for which no checksum was recorded and that hold none
    themselves: of those only size, types and number of samples are known to be right.

    Args:
        folder: What was verified.
        num_samples: The number of samples.
        num_chunks: The number of chunks.
        num_bytes: The bytes on disk.
        num_unchecked: The number of chunks without a checksum.
        faults: What is not as it should be.
    """

    folder: Path
    num_samples: int
    num_chunks: int
    num_bytes: int
    num_unchecked: int
    faults: tuple[Fault, ...]

    @property
    def ok(self) -> bool:
        """Whether there are no faults."""
        return not self.faults


class Place(NamedTuple):
    """A file to check: the number of its store, its own number there, and its recorded bytes."""

    store: int
    number: int
    num_bytes: int


class Checked(NamedTuple):
    """What was found of a file: whether it has a checksum, and what is wrong, if anything."""

    was_compared: bool
    text: str | None


@dataclass(frozen=True)
class Target:
    """The stores to verify, which any process that sees them can open.

    Args:
        folder: The folder or URL.
        storage_options: For a URL: how to get at it.
    """

    folder: str | os.PathLike[str]
    storage_options: Mapping[str, Any] | None = None

    def __post_init__(self) -> None:
        if self.storage_options is not None and not self.is_url:
            raise InvalidValueError(
                f"storage_options cannot be used: {self.folder} is not a URL; omit it"
            )

    @property
    def is_url(self) -> bool:
        """Whether the data is in object storage."""
        return is_url(self.folder)

    @contextmanager
    def opened(self, num_threads: int) -> Iterator[list[FolderStore]]:
        """Open the folder, or its splits; as many files are checked at once as there are threads.

        What is fetched from a URL is in a cache of its own, which is removed in the end.
        """
        if self.is_url:
            # Imported here because few use it.
            from feedline.store.remote.verifying import opened_to_verify

            url = os.fspath(self.folder)
            with opened_to_verify(url, self.storage_options, num_threads) as found:
                yield [*found]
        else:
            yield [FolderStore(part) for part in parts_of(Path(self.folder))]

    def folder_of(self, stores: Sequence[FolderStore]) -> Path:
        """Return the folder of a store, or of all splits."""
        if self.is_url:
            from feedline.store.remote.verifying import folder_of

            return folder_of(stores)
        return Path(self.folder)

    def unknown(self, stores: Sequence[FolderStore]) -> Iterable[Path]:
        """Return the files that belong to none of the stores."""
        if self.is_url:
            from feedline.store.remote.verifying import unknown_of

            return [path for store in stores for path in unknown_of(store)]
        return _list_unknown(Path(self.folder), [store.manifest for store in stores])


def places_of(stores: Sequence[FolderStore]) -> list[Place]:
    """Return all files of some stores, in order, or raise if an entry is malformed.

    That is no fault of a chunk, and found before anything is read.
    """
    return [
        Place(at, number, store.manifest.file(number).num_bytes or 0)
        for at, store in enumerate(stores)
        for number in range(len(store.manifest))
    ]


def check_chunk(
    stores: Sequence[FolderStore], place: Place, on_bytes: Callable[[int], None] = lambda _: None
) -> Checked:
    """Read one file, and compare it with its record; `on_bytes` is called for what was read."""
    store, was_compared = stores[place.store], True
    try:
        path = store.path_of(place.number)
        was_compared = check_file(path, store.manifest.file(place.number), on_bytes)
        store.check_chunk(place.number)
    except StoreError as error:
        return Checked(was_compared, str(error))
    return Checked(was_compared, None)


def result_of(
    target: Target,
    stores: Sequence[FolderStore],
    places: Sequence[Place],
    found: Sequence[Checked],
) -> VerifyResult:
    """Return what was found of all files, which are in order."""
    faults = {
        checked.text: Fault(_path_of(stores, place), checked.text)
        for place, checked in zip(places, found, strict=True)
        if checked.text is not None
    }
    extra = [
        Fault(path, f"{path}: is not in {MANIFEST_NAME}; remove it, or pack again")
        for path in target.unknown(stores)
    ]
    return VerifyResult(
        folder=target.folder_of(stores),
        num_samples=sum(store.manifest.num_samples for store in stores),
        num_chunks=len(places),
        num_bytes=sum(place.num_bytes for place in places),
        num_unchecked=sum(not checked.was_compared for checked in found),
        faults=(*faults.values(), *extra),
    )


def _path_of(stores: Sequence[FolderStore], place: Place) -> Path:
    store = stores[place.store]
    return store.folder / store.manifest.file(place.number).path


def parts_of(root: AnyPath) -> list[AnyPath]:
    """Return the folders that have a `metadata.json`: this one, or its splits."""
    if (root / MANIFEST_NAME).exists() or not root.is_dir():
        return [root]
    parts = sorted(p for p in root.iterdir() if p.is_dir() and not p.name.startswith("."))
    # If one is a split, all must be: a split without metadata is as bad as a folder without.
    return parts if any((part / MANIFEST_NAME).exists() for part in parts) else [root]


def _list_unknown(root: Path, manifests: list[Manifest]) -> Iterator[Path]:
    """Yield the files that no metadata lists, except hidden ones."""
    known = {manifest.folder / MANIFEST_NAME for manifest in manifests}
    known |= {m.folder / os.path.normpath(entry["path"]) for m in manifests for entry in m.entries}
    for parent, folders, files in os.walk(root):
        at = Path(parent)
        folders[:] = sorted(f for f in folders if not f.startswith(".") and at / f not in known)
        for name in sorted(files):
            if not name.startswith(".") and at / name not in known:
                yield at / name
