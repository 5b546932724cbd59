"""The features of `tf.train.Example`s as columns.

Floats and integers are single numbers if every record that has the feature has one value, and lists
otherwise. Strings are bytes. If a record has several of them, they are joined, and a second column,
`<name>/lengths`, tells their lengths.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from feedline.errors import DamagedDataError, StoreError
from feedline.store.columns import MISSING, Column
from feedline.store.foreign.kept_index import Index
from feedline.store.foreign.tf_example import KINDS, decode_varints
from feedline.store.lists import Lists, ListSource

_LENGTHS = "/lengths"
_TYPES = {"bytes": "uint8", "float": "float32", "int64": "int64"}


@dataclass
class _Feature:
    """What all shards together tell of a feature."""

    kind: str
    num_present: int = 0
    num_filled: int = 0
    least: int = 2**62
    most: int = 0
    num_bytes: int = 0


def feature_columns(path: Path, told: Iterable[Mapping[str, Any]]) -> dict[str, Column]:
    """Return the columns of shards of Examples, from what their indexes tell."""
    features: dict[str, _Feature] = {}
    total = 0
    for shard in told:
        total += shard["num_samples"]
        for name, kind, num_present, num_filled, least, most, num_bytes in shard["features"]:
            one = features.setdefault(name, _Feature(kind))
            if one.kind != kind or kind not in KINDS:
                raise StoreError(
                    f"{path}: feature {name!r:.80} has values of {one.kind} in some files and of "
                    f"{kind} in others; write it with values of one kind"
                )
            one.num_present += num_present
            one.num_filled += num_filled
            one.num_bytes += num_bytes
            one.least, one.most = min(one.least, least), max(one.most, most)
    found: dict[str, Column] = {}
    for name, feature in features.items():
        for column in _columns_of(name, feature, max(1, total)):
            if column.name in found or not column.name:
                raise StoreError(
                    f"{path}: feature {name!r:.80} and another one would both be the column "
                    f"{column.name!r:.80}, or it has no name; rename it"
                )
            found[column.name] = column
    if not found:
        raise StoreError(f"{path}: its records have no features; write records with some")
    return found


def _columns_of(name: str, feature: _Feature, total: int) -> list[Column]:
    type_name, mean = _TYPES[feature.kind], -(-feature.num_bytes // total)
    num_there = feature.num_present
    if feature.kind == "bytes":
        columns = [Column(name, type_name, kind="bytes", mean_bytes=mean)]
        if feature.most > 1:
            columns.append(Column(name + _LENGTHS, "int64", kind="list", mean_bytes=8))
        else:
            # A list without a string and an empty string would look the same.
            num_there = feature.num_filled
    elif feature.least == feature.most == 1:
        columns = [Column(name, type_name)]
    else:
        columns = [Column(name, type_name, kind="list", mean_bytes=mean)]
    missing = [Column(name + MISSING, "bool")] if num_there < total else []
    return columns + missing


def feature_arrays(
    where: str,
    memory: NDArray[np.uint8],
    index: Index,
    columns: Mapping[str, Column],
    names: Sequence[str],
) -> dict[str, Any]:
    """Return the arrays and sources of some columns of one shard."""
    size = index.told["num_samples"]
    numbers = {told[0]: number for number, told in enumerate(index.told["features"])}

    def spans_of(feature: str) -> _Spans:
        label = f"{where}: feature {feature!r:.80}"
        return _Spans(label, memory, index, numbers.get(feature), size)

    return {name: _array_of(columns, name, spans_of) for name in names}


class _Spans:
    """The spans of a feature in a shard; none if the shard does not have it."""

    def __init__(
        self, where: str, memory: NDArray[np.uint8], index: Index, number: int | None, size: int
    ) -> None:
        self.where, self.memory, self.size = where, memory, size
        self.rows, self.starts, self.lengths, self.present = (
            np.empty(0, np.int64)
            if number is None
            else index.arrays[f"{number}/{part}"].astype(np.int64)
            for part in ("rows", "starts", "lengths", "present")
        )
        for rows in (self.rows, self.present):
            if len(rows) and (rows.min() < 0 or rows.max() >= size or np.any(np.diff(rows) < 0)):
                raise IndexError("rows are out of order")

    def is_missing(self, *, unless_filled: bool) -> NDArray[np.bool_]:
        missing = np.ones(self.size, bool)
        missing[self.rows if unless_filled else self.present] = False
        return missing

    def joined(self, kind: str, type_name: str) -> ListSource:
        """Return the bytes of each record; a copy only if they are not in one place."""
        memory, starts = self.memory, np.zeros(self.size, np.int64)
        lengths = np.bincount(self.rows, self.lengths, self.size).astype(np.int64)
        if np.all(np.diff(self.rows) > 0):
            starts[self.rows] = self.starts
        else:
            memory = self.gathered()
            starts = np.cumsum(lengths) - lengths
        options: dict[str, Any] = {"kind": kind, "type_name": type_name, "where": self.where}
        return ListSource(memory, starts, lengths, **options)

    def gathered(self) -> NDArray[np.uint8]:
        """Return the bytes of all spans, one after another."""
        source = ListSource(self.memory, self.starts, self.lengths, kind="bytes", where=self.where)
        found: NDArray[np.uint8] = source.gather(np.arange(len(self.rows))).values
        return found

    def integers(self) -> Lists:
        """Return the integers of each record."""
        values, ends = decode_varints(self.gathered(), self.where)
        num_bytes = np.bincount(self.rows, self.lengths, self.size).astype(np.int64)
        offsets = np.searchsorted(ends, np.cumsum(num_bytes), side="right")
        return Lists(values, np.concatenate([[0], offsets]))


def _array_of(columns: Mapping[str, Column], name: str, spans_of: Callable[[str], _Spans]) -> Any:
    column = columns[name]
    if name.endswith(MISSING) and name.removesuffix(MISSING) in columns:
        feature = name.removesuffix(MISSING)
        is_string = columns[feature].kind == "bytes" and feature + _LENGTHS not in columns
        return spans_of(feature).is_missing(unless_filled=is_string)
    if name.endswith(_LENGTHS) and _is_strings(columns, name.removesuffix(_LENGTHS)):
        spans = spans_of(name.removesuffix(_LENGTHS))
        counts = np.bincount(spans.rows, minlength=spans.size)
        offsets = np.concatenate([[0], np.cumsum(counts)])
        return ListSource.of(Lists(spans.lengths, offsets), where=spans.where)
    spans = spans_of(name)
    if column.type_name == "int64":
        lists = spans.integers()
        return _singles(spans, lists) if not column.has_lists else ListSource.of(lists)
    source = spans.joined(column.kind if column.has_lists else "list", column.type_name)
    return source if column.has_lists else _singles(spans, source.gather(np.arange(spans.size)))


def _is_strings(columns: Mapping[str, Column], name: str) -> bool:
    return name in columns and columns[name].kind == "bytes"


def _singles(spans: _Spans, lists: Lists) -> NDArray[Any]:
    """Return one value for each record, 0 where there is none."""
    found = np.zeros(spans.size, lists.values.dtype)
    counts = lists.lengths
    if np.any(counts > 1) or int(counts.sum()) != len(lists.values):
        raise DamagedDataError(
            f"{spans.where}: a record has several values and must have one; the file has changed; "
            "open the data again"
        )
    found[counts == 1] = lists.values
    return found
