"""TFRecord files: records with checksums, one after another, plain or compressed.

If the records are `tf.train.Example`s, their features are the columns. Otherwise there is one
column, `record`.
"""

from __future__ import annotations

import re
from array import array
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from feedline.errors import DamagedDataError, StoreError
from feedline.store.columns import Column
from feedline.store.foreign.content import (
    Content,
    inflate,
    is_deflated,
    map_start,
    refuse_other_compressions,
)
from feedline.store.foreign.crc32c import masked_crc32c
from feedline.store.foreign.indexed import IndexedShards
from feedline.store.foreign.kept_index import Index, compact
from feedline.store.foreign.shard_files import names_in, shards_in
from feedline.store.foreign.tf_columns import feature_arrays, feature_columns
from feedline.store.foreign.tf_example import FeatureSpans, NotAnExampleError, features_of
from feedline.store.lists import ListSource
from feedline.store.mapped import open_without_waiting

_RECORD = "record"
_NAMED = re.compile(r"\.(tfrecords?|tfrec)(?![a-z0-9])", re.IGNORECASE)
_NUMBERED = re.compile(r"-[0-9]+-of-[0-9]+$")
# What others keep beside shards, under similar names.
_BESIDE_SHARDS = (".json", ".txt", ".idx", ".index", ".md5", ".sha256", ".crc")
# Of a record: its length and its checksum before it, and its own checksum after it.
_BEFORE, _AFTER = 12, 4
_MAX_FEATURES = 4096
# How much is checked together.
_RECORDS_AT_ONCE = 2**14
_BYTES_AT_ONCE = 2**26


def matches(path: Path) -> bool:
    """Whether a path is a TFRecord file by its name or its first bytes, or a folder with some."""
    if not path.is_dir():
        return bool(_NAMED.search(path.name)) or _starts_with_record(path)
    return bool(names_in(path, _is_shard_in(path)))


def open_shards(path: Path) -> TFRecordShards:
    """Return the records of a file, or of all files in a folder."""
    return TFRecordShards(path, shards_in(path, _is_shard_in(path)))


def is_named_like_shard(name: str) -> bool:
    """Whether a file is a TFRecord file by its name."""
    return bool(_NAMED.search(name)) and not name.lower().endswith(_BESIDE_SHARDS)


def _is_shard_in(path: Path) -> Callable[[str], bool]:
    def is_shard(name: str) -> bool:
        if _NUMBERED.search(name) and not _NAMED.search(name):
            return _starts_with_record(path / name)
        return is_named_like_shard(name)

    return is_shard


def _starts_with_record(path: Path) -> bool:
    if hasattr(path, "first_bytes"):
        return _is_length(path.first_bytes(_BEFORE))
    try:
        with open(path, "rb", opener=open_without_waiting) as file:
            return _is_length(file.read(_BEFORE) or b"")
    except OSError:
        return False


def _is_length(start: bytes) -> bool:
    """Whether bytes are the length of a record, with the right checksum."""
    if len(start) < _BEFORE:
        return False
    checksum = int.from_bytes(start[8:_BEFORE], "little")
    return int(masked_crc32c(np.frombuffer(start, np.uint8), [0], [8])[0]) == checksum


class TFRecordShards(IndexedShards):
    """The records of TFRecord files, of which each is a chunk.

    Args:
        path: What the user has opened.
        files: The files, in order.
    """

    kind = "tfrecord 1"

    def content(self, file: Path, num_bytes: int | None) -> Content:
        """Return the bytes of a file; one that is compressed is decoded whole."""
        mapped, start = map_start(file)
        # A record of some lengths begins like a compressed file, but for its checksum.
        if _is_length(start[:_BEFORE]) or not start:
            return Content(mapped)
        refuse_other_compressions(file, start)
        return inflate(file, mapped, num_bytes) if is_deflated(start) else Content(mapped)

    def build(self, file: Path, content: Content, on_bytes: Callable[[int], None]) -> Index:
        """Return where the records are, or where the values of their features are."""
        memory = content.memory
        starts, lengths = array("q"), array("q")
        features: dict[str, FeatureSpans] = {}
        is_example: bool | None = None
        at = 0
        while at < memory.size:
            first, before = len(starts), at
            at = _walk(file, memory, at, starts, lengths)
            _check(file, memory, np.array(starts[first:]), np.array(lengths[first:]), first)
            for row in range(first, len(starts)):
                if is_example is not False and lengths[row]:
                    is_example = _add(file, memory, (row, starts[row], lengths[row]), features)
            on_bytes(at - before)
        told = {
            "num_samples": len(starts),
            "is_example": is_example,
            "num_record_bytes": sum(lengths),
            "features": [spans.told(name) for name, spans in features.items()],
        }
        if not is_example:
            return Index(told, {"starts": compact(starts), "lengths": compact(lengths)})
        return Index(
            told,
            {
                f"{number}/{part}": numbers
                for number, spans in enumerate(features.values())
                for part, numbers in spans.arrays().items()
            },
        )

    def columns_of(self, told: Sequence[Mapping[str, Any]]) -> dict[str, Column]:
        """Return the features as columns; or the records, if they are something else."""
        known = {shard["is_example"] for shard in told} - {None}
        if len(known) > 1:
            kinds = [shard["is_example"] for shard in told]
            first, other = (self._files[kinds.index(kind)].name for kind in (True, False))
            raise StoreError(
                f"{self.path}: the records of {first} are tf.train.Examples and those of {other} "
                "are not; move them into folders of their own"
            )
        if known == {True}:
            return feature_columns(self.path, told)
        total = max(1, sum(shard["num_samples"] for shard in told))
        mean = -(-sum(shard["num_record_bytes"] for shard in told) // total)
        return {_RECORD: Column(_RECORD, "uint8", kind="bytes", mean_bytes=mean)}

    def arrays_of(
        self, chunk: int, content: Content, index: Index, names: Sequence[str]
    ) -> dict[str, Any]:
        """Return the records in the mapped file, or the values of features."""
        where = str(self._files[chunk])
        if _RECORD in self.columns and index.told["is_example"] is not True:
            parts = (index.arrays[name] for name in ("starts", "lengths"))
            source = ListSource(content.memory, *parts, kind="bytes", where=where)
            return {_RECORD: source}
        return feature_arrays(where, content.memory, index, self.columns, names)


def _walk(
    file: Path, memory: NDArray[np.uint8], at: int, starts: array[int], lengths: array[int]
) -> int:
    """Add some records from byte `at` on, and return where they end."""
    content, begin, first = memory.data, at, len(starts)
    total = memory.size
    while at < total and len(starts) - first < _RECORDS_AT_ONCE and at - begin < _BYTES_AT_ONCE:
        length = int.from_bytes(content[at : at + 8], "little")
        end = at + _BEFORE + length + _AFTER
        if end > total:
            raise DamagedDataError(
                f"{file}: record {len(starts)} needs bytes [{at}, {end}) but there are {total}; "
                "the file is truncated, damaged or not a TFRecord file; write it again"
            )
        starts.append(at + _BEFORE)
        lengths.append(length)
        at = end
    return at


def _check(
    file: Path,
    memory: NDArray[np.uint8],
    starts: NDArray[np.int64],
    lengths: NDArray[np.int64],
    first: int,
) -> None:
    """Raise unless the checksums of records and of their lengths are right."""
    eight = np.full(len(starts), 8)
    for what, places, sizes in (
        ("length", starts - _BEFORE, eight),
        ("data", starts, lengths),
    ):
        at = places + sizes
        stored = memory[at[:, None] + np.arange(4)].view("<u4")[:, 0]
        wrong = np.flatnonzero(stored != masked_crc32c(memory, places, sizes))
        if len(wrong):
            raise DamagedDataError(
                f"{file}: the {what} of record {first + int(wrong[0])}, at byte "
                f"{int(places[wrong[0]])}, has another checksum than was stored; the file is "
                "damaged or not a TFRecord file; write it again"
            )


def _add(
    file: Path,
    memory: NDArray[np.uint8],
    record: tuple[int, int, int],
    features: dict[str, FeatureSpans],
) -> bool:
    """Add the features of a record; False if the first record is not an Example."""
    row, start, length = record
    try:
        found = features_of(memory[start : start + length].tobytes())
    except NotAnExampleError:
        if not features:
            return False
        raise StoreError(
            f"{file}: record {row} is not a tf.train.Example, but those before it are; write "
            "records of one kind"
        ) from None
    for name, (kind, count, spans) in found.items():
        feature = features.get(name)
        if feature is None:
            if len(features) == _MAX_FEATURES:
                raise StoreError(
                    f"{file}: has more than {_MAX_FEATURES} features, such as {name!r:.80}; write "
                    "records with fewer"
                )
            feature = features[name] = FeatureSpans(kind)
        if feature.kind != kind:
            raise StoreError(
                f"{file}: feature {name!r:.80} has values of {kind} in record {row} and of "
                f"{feature.kind} before; write it with values of one kind"
            )
        feature.add(row, start, count, spans)
    return True
