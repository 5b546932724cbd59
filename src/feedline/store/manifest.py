"""`metadata.json`: the chunks of a folder, and the number of samples in each."""

from __future__ import annotations

import json
import os
import stat
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from feedline.errors import (
    DamagedDataError,
    FeedlineError,
    InvalidValueError,
    MissingDataError,
    UnsafeDataError,
    check_integer,
)
from feedline.store.columns import Column
from feedline.store.paths import check_relative
from feedline.store.writing import open_whole
from feedline.words import several

MANIFEST_NAME = "metadata.json"
FORMAT = "feedline.folder"
VERSION = 1
_MAX_BYTES = 2**30
_MAX_SAMPLES = 2**62


@dataclass(frozen=True, kw_only=True)
class ChunkFile:
    """One entry of `batch_files`.

    `path` is relative to the folder. `groups` are the sizes of the row groups or record batches of
    a file that holds several chunks. None means not recorded.
    """

    path: str
    num_samples: int
    num_bytes: int | None = None
    checksum: str | None = None
    groups: tuple[int, ...] | None = None

    def describe(self) -> dict[str, Any]:
        """Return the entry as JSON values."""
        groups = None if self.groups is None else list(self.groups)
        entry = {"path": self.path, "samples": self.num_samples}
        more = {"bytes": self.num_bytes, "checksum": self.checksum, "groups": groups}
        return entry | {key: value for key, value in more.items() if value is not None}

    @classmethod
    def from_entry(cls, entry: Mapping[str, Any]) -> ChunkFile:
        """Return the file from a `describe` entry; all but its path is checked."""
        num_bytes, checksum, groups = (entry.get(k) for k in ("bytes", "checksum", "groups"))
        if checksum is not None and not isinstance(checksum, str):
            raise InvalidValueError(f"checksum={checksum!r:.80} must be a string")
        if groups is not None:
            if not isinstance(groups, list):
                raise InvalidValueError(f"groups={groups!r:.80} must be a list")
            groups = tuple(check_integer("groups", size, 0, _MAX_SAMPLES) for size in groups)
            if sum(groups) != entry["samples"]:
                raise InvalidValueError(
                    f"groups have {several(sum(groups), 'sample')} but must have {entry['samples']}"
                )
        return cls(
            path=entry["path"],
            num_samples=entry["samples"],
            num_bytes=None if num_bytes is None else check_integer("bytes", num_bytes, 0),
            checksum=checksum,
            groups=groups,
        )


@dataclass(frozen=True, eq=False)
class Manifest:
    """The contents of `metadata.json`; entries are made when they are asked for."""

    folder: Path
    entries: list[dict[str, Any]] = field(repr=False)
    samples: NDArray[np.int64] = field(repr=False)
    columns: dict[str, Column] | None = None
    # Checking the groups of a file takes long, and each of them is a chunk that asks for it.
    _with_groups: dict[int, ChunkFile] = field(default_factory=dict, repr=False)

    @property
    def num_samples(self) -> int:
        """The number of samples in the whole folder."""
        return int(self.samples.sum())

    def __len__(self) -> int:
        return len(self.entries)

    def file(self, number: int) -> ChunkFile:
        """Return one entry of `batch_files`, checked."""
        if number in self._with_groups:
            return self._with_groups[number]
        where = self.folder / MANIFEST_NAME
        check_relative(where, self.entries[number]["path"])
        try:
            found = ChunkFile.from_entry(self.entries[number])
        except InvalidValueError as error:
            raise DamagedDataError(f"{where}: batch_files[{number}]: {error}") from None
        if found.groups is not None:
            self._with_groups[number] = found
        return found


def read_manifest(folder: Path) -> Manifest:
    """Read and check `metadata.json`.

    Only the two documented keys are required: `total_samples`, and `batch_files` with the `path`
    and the number of `samples` of each chunk.
    """
    path = folder / MANIFEST_NAME
    data = _load(path)
    if data.get("format", FORMAT) != FORMAT or data.get("version", VERSION) != VERSION:
        raise DamagedDataError(
            f"{path}: format {data.get('format')!r:.80} version {data.get('version')!r:.80} is "
            f"unknown; this release reads {FORMAT!r} version {VERSION}"
        )
    entries = data.get("batch_files")
    if not isinstance(entries, list) or not all(isinstance(e, dict) for e in entries):
        raise DamagedDataError(f"{path}: 'batch_files' must be a list of objects")
    samples = _samples_of(path, entries)
    total = data.get("total_samples")
    if type(total) is not int or total != int(samples.sum()):
        raise DamagedDataError(
            f"{path}: total_samples={total!r:.80} must be the sum of the samples in batch_files, "
            f"{int(samples.sum())}"
        )
    return Manifest(folder, entries, samples, _columns_of(path, data.get("columns")))


def write_manifest(folder: Path, files: Iterable[ChunkFile], columns: Iterable[Column]) -> None:
    """Write `metadata.json` atomically."""
    entries = [file.describe() for file in files]
    data = {
        "format": FORMAT,
        "version": VERSION,
        "total_samples": sum(entry["samples"] for entry in entries),
        "columns": [column.describe() for column in columns],
        "batch_files": entries,
    }
    with open_whole(folder / MANIFEST_NAME) as file:
        file.write(json.dumps(data, indent=1).encode())


def _folders_near(path: Path) -> str:
    """Return a hint about the folder to use instead: packing with splits makes one for each."""
    parts = sorted(found.parent.name for found in path.parent.glob(f"*/{path.name}"))[:5]
    if parts:
        return f"use a folder in it: {', '.join(parts)}"
    return "use the folder that packing wrote"


def _load(path: Path) -> dict[str, Any]:
    try:
        status = path.stat()
        if not stat.S_ISREG(status.st_mode):
            raise UnsafeDataError(f"{path}: must be a regular file")
        if status.st_size > _MAX_BYTES:
            raise DamagedDataError(
                f"{path}: has {status.st_size} bytes but must have at most {_MAX_BYTES}; use "
                "larger chunks"
            )
        data = json.loads(path.read_bytes())
    except FileNotFoundError:
        raise MissingDataError(
            f"{path}: does not exist, so {path.parent} is not a folder of chunks; "
            f"{_folders_near(path)}"
        ) from None
    except (UnicodeDecodeError, json.JSONDecodeError, RecursionError) as error:
        raise DamagedDataError(f"{path}: is not JSON ({error}); pack again") from None
    except FeedlineError:
        raise
    except (OSError, ValueError) as error:
        raise DamagedDataError(f"{path}: cannot be read ({error})") from None
    if not isinstance(data, dict):
        raise DamagedDataError(
            f"{path}: must contain a JSON object, not {type(data).__name__}; pack again"
        )
    return data


def _samples_of(path: Path, entries: list[dict[str, Any]]) -> NDArray[np.int64]:
    """Return the number of samples in each entry; numbers and paths are checked."""
    for number, entry in enumerate(entries):
        check_relative(path, entry.get("path"))
        count = entry.get("samples")
        if type(count) is not int or not 0 <= count < _MAX_SAMPLES:
            raise DamagedDataError(
                f"{path}: batch_files[{number}]: samples={count!r:.80} must be an integer of at "
                "least 0"
            )
    paths = [entry["path"] for entry in entries]
    if len({os.path.normpath(name) for name in paths}) < len(paths):
        twice = next(
            name for name, count in Counter(map(os.path.normpath, paths)).items() if count > 1
        )
        raise DamagedDataError(
            f"{path}: lists {twice!r:.200} twice, so its samples would come twice; list each file "
            "once, or pack again"
        )
    samples = np.array([entry["samples"] for entry in entries], dtype=np.int64)
    samples.flags.writeable = False
    if samples.sum(dtype=np.float64) >= _MAX_SAMPLES:
        raise DamagedDataError(f"{path}: batch_files have more than {_MAX_SAMPLES} samples")
    return samples


def _name_of(entry: Any) -> str:
    name = entry["name"]
    if not isinstance(name, str):
        raise TypeError(f"name={name!r:.80} must be a text")
    return name


def _columns_of(path: Path, listed: Any) -> dict[str, Column] | None:
    if listed is None:
        return None
    try:
        columns = [
            Column(
                _name_of(entry),
                entry["dtype"],
                tuple(check_integer("shape", size, 0, _MAX_SAMPLES) for size in entry["shape"]),
                kind=entry.get("kind", "array"),
                mean_bytes=check_integer("mean_bytes", entry.get("mean_bytes", 0), 0, _MAX_SAMPLES),
            )
            for entry in listed
        ]
    except (TypeError, KeyError, InvalidValueError) as error:
        raise DamagedDataError(
            f"{path}: 'columns' must be a list of objects with name, dtype and shape ({error!r})"
        ) from None
    found = {column.name: column for column in columns}
    if not found or len(found) < len(columns):
        raise DamagedDataError(
            f"{path}: 'columns' must name at least one column, and each once; pack again"
        )
    return found
