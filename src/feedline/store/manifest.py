"""`metadata.json`: the chunks of a folder, and the number of samples in each."""

from __future__ import annotations

import json
import os
import re
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
_CRC32 = re.compile("[0-9a-f]{8}")


@dataclass(frozen=True, kw_only=True)
class ChunkFile:
    """One entry of `batch_files`.

    `path` is relative to the folder. `groups` are the sizes of the row groups or record batches of
    a file that holds several chunks. `crc32` is that of a file, and `files` has the bytes and the
    CRC-32 of each file if the chunk is a folder, by its name there. None means not recorded.
    """

    path: str
    num_samples: int
    num_bytes: int | None = None
    checksum: str | None = None
    groups: tuple[int, ...] | None = None
    crc32: str | None = None
    files: Mapping[str, tuple[int, str]] | None = None

    def entry(self) -> dict[str, Any]:
        """Return the entry as JSON values."""
        files = None if self.files is None else {n: list(of) for n, of in self.files.items()}
        more = {"crc32": self.crc32, "files": files}
        return self.describe() | {key: value for key, value in more.items() if value is not None}

    def describe(self) -> dict[str, Any]:
        """Return what identifies the chunk, as JSON values."""
        groups = None if self.groups is None else list(self.groups)
        entry = {"path": self.path, "samples": self.num_samples}
        more = {"bytes": self.num_bytes, "checksum": self.checksum, "groups": groups}
        return entry | {key: value for key, value in more.items() if value is not None}

    @classmethod
    def from_entry(cls, entry: Mapping[str, Any]) -> ChunkFile:
        """Return the file from an entry; all but its path is checked."""
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
            crc32=None if entry.get("crc32") is None else _crc32_of(entry["crc32"]),
            files=None if entry.get("files") is None else _files_of(entry["files"]),
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
    return parse_manifest(folder, _load(path))


def parse_manifest(folder: Path, data: Any) -> Manifest:
    """Check what a `metadata.json` contains; `folder` is its place, for messages."""
    path = folder / MANIFEST_NAME
    if not isinstance(data, dict):
        raise DamagedDataError(
            f"{path}: must contain a JSON object, not {type(data).__name__}; pack again"
        )
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
    entries = [file.entry() for file in files]
    data = {
        "format": FORMAT,
        "version": VERSION,
        "total_samples": sum(entry["samples"] for entry in entries),
        "columns": [column.describe() for column in columns],
        "batch_files": entries,
    }
    with open_whole(folder / MANIFEST_NAME) as file:
        file.write(json.dumps(data, indent=1).encode())


def _files_of(found: Any) -> dict[str, tuple[int, str]]:
    if not isinstance(found, dict) or not all(
        isinstance(of, list) and len(of) == 2 for of in found.values()
    ):
        raise InvalidValueError(f"files={found!r:.80} must be an object of bytes and CRC-32s")
    return {
        check_relative(Path("files"), name): (check_integer("bytes", size, 0), _crc32_of(crc))
        for name, (size, crc) in found.items()
    }


def _crc32_of(found: Any) -> str:
    if not isinstance(found, str) or _CRC32.fullmatch(found) is None:
        raise InvalidValueError(f"crc32={found!r:.80} must be 8 hexadecimal digits")
    return found


def _folders_near(path: Path) -> str:
    """Return a hint about the folder to use instead: packing with splits makes one for each."""
    parts = sorted(found.parent.name for found in path.parent.glob(f"*/{path.name}"))[:5]
    if parts:
        return f"use a folder in it: {', '.join(parts)}"
    return "use the folder that packing wrote"


def _load(path: Path) -> Any:
    try:
        status = path.stat()
        if not stat.S_ISREG(status.st_mode):
            raise UnsafeDataError(f"{path}: must be a regular file")
        if status.st_size > _MAX_BYTES:
            raise DamagedDataError(
                f"{path}: has {status.st_size} bytes but must have at most {_MAX_BYTES}; use "
                "larger chunks"
            )
        return json.loads(path.read_bytes())
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
