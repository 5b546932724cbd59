"""WebDataset: tar files whose members are the parts of samples.

A sample is the consecutive members with one key, as webdataset itself reads them: the key is the
path up to the first dot of the file name, and what follows, in lower case, names the column.
"""

from __future__ import annotations

import logging
import re
from array import array
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from feedline.errors import StoreError
from feedline.store.columns import MISSING, Column
from feedline.store.foreign.content import (
    Content,
    inflate,
    is_deflated,
    map_start,
    refuse_other_compressions,
)
from feedline.store.foreign.indexed import IndexedShards
from feedline.store.foreign.kept_index import Index, compact
from feedline.store.foreign.shard_files import names_in, shards_in
from feedline.store.foreign.tar_members import is_header, members_of, shown
from feedline.store.lists import ListSource
from feedline.words import several

_KEY = "__key__"
_ENDINGS = (".tar", *(f".tar.{name}" for name in ("gz", "zst", "xz", "bz2")), ".tgz")
_NAME = re.compile(rb"((?:.*/|)[^.]+)[.]([^/]*)\Z")
_META = re.compile(rb"__[^/]*__(\Z|/)")
# Keys with dots in them make a column of each sample.
_MAX_COLUMNS = 256

_log = logging.getLogger("feedline")


def matches(path: Path) -> bool:
    """Whether a path is a tar file, or a folder with some."""
    if path.is_dir():
        return bool(names_in(path, is_named_like_shard))
    return is_named_like_shard(path.name)


def open_shards(path: Path) -> WebDatasetShards:
    """Return the samples of a tar file, or of all in a folder."""
    return WebDatasetShards(path, shards_in(path, is_named_like_shard))


def is_named_like_shard(name: str) -> bool:
    """Whether a file is a tar file by its name."""
    return name.lower().endswith(_ENDINGS)


class WebDatasetShards(IndexedShards):
    """The samples of tar files, of which each is a chunk.

    Args:
        path: What the user has opened.
        files: The tar files, in order.
    """

    kind = "webdataset 1"

    def content(self, file: Path, num_bytes: int | None) -> Content:
        """Return the bytes of a tar file; one that is compressed is decoded whole."""
        mapped, start = map_start(file)
        if is_header(start):
            return Content(mapped)
        refuse_other_compressions(file, start)
        return inflate(file, mapped, num_bytes) if is_deflated(start) else Content(mapped)

    def build(self, file: Path, content: Content, on_bytes: Callable[[int], None]) -> Index:
        """Return where the parts of each sample are."""
        keys: list[bytes] = []
        names: dict[str, int] = {}
        rows, columns, starts, lengths = (array("q") for _ in range(4))
        in_sample: set[int] = set()
        num_skipped = 0
        for member in members_of(file, content.memory, on_bytes):
            matched = None if _META.match(member.name) else _NAME.match(member.name)
            if matched is None:
                num_skipped += 1
                continue
            key, ending = matched.groups()
            column = _column_of(file, member.name, ending, names)
            if not keys or key != keys[-1]:
                keys.append(key)
                in_sample = set()
            if column in in_sample:
                raise StoreError(
                    f"{file}: has the member {shown(member.name)} twice in one sample; write it "
                    "again with one file of each name"
                )
            in_sample.add(column)
            rows.append(len(keys) - 1)
            columns.append(column)
            starts.append(member.start)
            lengths.append(member.num_bytes)
        if num_skipped:
            _log.info("%s: %s without a key skipped", file, several(num_skipped, "member"))
        arrays = {"rows": rows, "columns": columns, "starts": starts, "lengths": lengths}
        counts = np.bincount(columns, minlength=len(names)).tolist()
        sums = np.bincount(columns, weights=lengths, minlength=len(names)).tolist()
        told = {
            "num_samples": len(keys),
            "num_key_bytes": sum(map(len, keys)),
            "columns": [
                [name, counts[number], int(sums[number])] for name, number in names.items()
            ],
        }
        key_arrays = {
            "keys": np.frombuffer(b"".join(keys), np.uint8),
            "key_lengths": compact([len(key) for key in keys]),
        }
        return Index(told, {name: compact(part) for name, part in arrays.items()} | key_arrays)

    def columns_of(self, told: Sequence[Mapping[str, Any]]) -> dict[str, Column]:
        """Return the key, and a column for each ending; some samples may lack it."""
        total = max(1, sum(shard["num_samples"] for shard in told))
        counts: dict[str, tuple[int, int]] = {}
        for shard in told:
            for name, count, num_bytes in shard["columns"]:
                before = counts.get(name, (0, 0))
                counts[name] = (before[0] + count, before[1] + num_bytes)
        if len(counts) > _MAX_COLUMNS:
            raise _too_many(self.path, len(counts), next(reversed(counts)))
        key_bytes = sum(shard["num_key_bytes"] for shard in told)
        columns = [Column(_KEY, "uint8", kind="text", mean_bytes=-(-key_bytes // total))]
        for name, (count, num_bytes) in counts.items():
            mean = -(-num_bytes // total)
            columns.append(Column(name, "uint8", kind="bytes", mean_bytes=mean))
            if count < total:
                columns.append(Column(name + MISSING, "bool"))
        return {column.name: column for column in columns}

    def arrays_of(
        self, chunk: int, content: Content, index: Index, names: Sequence[str]
    ) -> dict[str, Any]:
        """Return where each part is in the mapped file."""
        numbers = {name: number for number, (name, *_) in enumerate(self._told[chunk]["columns"])}
        size = int(self.chunk_sizes[chunk])
        found: dict[str, Any] = {}
        for name in names:
            if name == _KEY:
                lengths = index.arrays["key_lengths"].astype(np.int64)
                starts = np.cumsum(lengths) - lengths
                where = f"{self._files[chunk]}: column {name!r}"
                found[name] = ListSource(
                    index.arrays["keys"], starts, lengths, kind="text", where=where
                )
                continue
            ending = name.removesuffix(MISSING)
            mine = np.flatnonzero(index.arrays["columns"] == numbers.get(ending, len(numbers)))
            rows = index.arrays["rows"].take(mine)
            if name != ending:
                found[name] = np.ones(size, bool)
                found[name][rows] = False
                continue
            starts, lengths = np.zeros(size, np.int64), np.zeros(size, np.int64)
            starts[rows] = index.arrays["starts"].take(mine)
            lengths[rows] = index.arrays["lengths"].take(mine)
            where = f"{self._files[chunk]}: column {name!r:.80}"
            found[name] = ListSource(content.memory, starts, lengths, kind="bytes", where=where)
        return found


def _column_of(file: Path, name: bytes, ending: bytes, names: dict[str, int]) -> int:
    """Return the number of a column, which is added if it is new."""
    try:
        column = ending.decode().lower()
    except UnicodeDecodeError:
        column = ""
    number = names.get(column)
    if number is not None:
        return number
    if not column or column == _KEY:
        raise StoreError(
            f"{file}: the member {shown(name)} has an ending that cannot name a column; it must be "
            f"UTF-8, not empty and not {_KEY}; rename the member"
        )
    if len(names) == _MAX_COLUMNS:
        raise _too_many(file, len(names) + 1, column)
    return names.setdefault(column, len(names))


def _too_many(path: Path, count: int, last: str) -> StoreError:
    return StoreError(
        f"{path}: has {count} endings, such as {last!r:.80}, and must have at most {_MAX_COLUMNS}; "
        "what follows the first dot of a file name is its ending; write keys without dots"
    )
