"""Packed stores as a source of Ray Data: a read task for each few chunks, with exact counts."""

from __future__ import annotations

import inspect
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import pyarrow
import ray.data
from ray.data.block import BlockMetadata
from ray.data.datasource import Datasource, ReadTask
from ray.data.extensions import ArrowTensorArray

from feedline.errors import DamagedDataError, InvalidValueError, check_integer
from feedline.packing.parquet_writer import to_arrow
from feedline.store import open as open_store
from feedline.store.columns import Column, as_numbers, with_masks
from feedline.store.lists import Lists
from feedline.store.protocol import Store
from feedline.store.remote.urls import is_url

# What a block of a task may have; Ray joins and divides blocks as it likes.
_BLOCK_BYTES = 2**24


def read_store(
    path: str | os.PathLike[str],
    *,
    columns: Sequence[str] | None = None,
    num_tasks: int | None = None,
    storage_options: Mapping[str, Any] | None = None,
) -> ray.data.Dataset:
    """Return what `feedline.open` opens as a dataset of Ray Data, with its samples in order.

    Arrays become Ray's tensors, lists and dates those of Arrow. bfloat16, which Arrow lacks,
    becomes float32. A column "x/is_missing" tells where values of column "x" are missing.

    Args:
        path: The path or URL; all nodes must see the same data there.
        columns: The columns to read; by default all.
        num_tasks: The number of read tasks, at most one for each chunk; by default Ray decides.
        storage_options: For URLs: how to get at them; see `feedline.open`.

    Examples:
        >>> import tempfile
        >>> import feedline
        >>> with tempfile.TemporaryDirectory() as parent:
        ...     source = {"x": np.arange(6), "text": ["a", "b", "c", "d", "e", "f"]}
        ...     _ = feedline.pack(source, f"{parent}/data", chunk_samples=4)
        ...     dataset = read_store(f"{parent}/data")
        ...     dataset.count(), dataset.take(1)
        (6, [{'x': 0, 'text': 'a'}])
    """
    source = StoreDatasource(path, columns=columns, storage_options=storage_options)
    if num_tasks is None:
        return ray.data.read_datasource(source)
    num_tasks = check_integer("num_tasks", num_tasks, 1)
    return ray.data.read_datasource(source, override_num_blocks=num_tasks)


class StoreDatasource(Datasource):
    """A store as a `ray.data.Datasource`; `read_store` makes a dataset of one.

    Args:
        path: The path or URL of what `feedline.open` opens.
        columns: The columns to read; by default all.
        storage_options: For URLs: how to get at them.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        columns: Sequence[str] | None = None,
        storage_options: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__()
        # Tasks run in other folders.
        where = str(path) if is_url(path) else os.path.abspath(path)
        options = None if storage_options is None else dict(storage_options)
        with _Opened(where, options, None) as store:
            known = store.columns
            names = list(known) if columns is None else with_masks(list(columns), known)
            _check_columns(where, names, known)
            self._sizes = [int(size) for size in store.chunk_sizes]
            self._row_bytes = max(1, sum(known[name].sample_bytes for name in names))
            self._what = _What(where, options, tuple(names), store.fingerprint)

    def get_name(self) -> str:
        """Return what Ray calls the read tasks."""
        return "Feedline"

    def estimate_inmemory_data_size(self) -> int:
        """Return about the bytes of all samples."""
        return self._row_bytes * sum(self._sizes)

    def get_read_tasks(
        self, parallelism: int, per_task_row_limit: int | None = None, data_context: Any = None
    ) -> list[ReadTask]:
        """Return a task for each few chunks, `parallelism` of them if there are as many chunks.

        Args:
            parallelism: The number of tasks that Ray would like.
            per_task_row_limit: The most rows that Ray wants of a task.
            data_context: Not needed.
        """
        chunks = range(len(self._sizes))
        groups = [group for group in np.array_split(chunks, max(1, parallelism)) if len(group)]
        limit = {"per_task_row_limit": per_task_row_limit} if _HAS_LIMIT else {}
        return [self._task(int(group[0]), int(group[-1]) + 1, limit) for group in groups]

    def _task(self, first: int, end: int, limit: Mapping[str, Any]) -> ReadTask:
        num_rows = sum(self._sizes[first:end])
        metadata = BlockMetadata(
            num_rows=num_rows,
            size_bytes=num_rows * self._row_bytes,
            exec_stats=None,
            # Ray looks for files by these; a chunk may be in a part of one.
            input_files=None,
            **({"schema": None} if _HAS_SCHEMA else {}),
        )
        read = partial(_blocks, self._what, first, end, self._row_bytes)
        return ReadTask(read, metadata, **limit)


@dataclass(frozen=True)
class _What:
    """What a task reads: it opens the store where it runs."""

    path: str
    options: dict[str, Any] | None
    names: tuple[str, ...]
    fingerprint: str


class _Opened:
    """An open store, closed at the end; other data than before is an error."""

    def __init__(self, path: str, options: dict[str, Any] | None, expected: str | None) -> None:
        self._store: Store = open_store(path, storage_options=options)
        if expected is not None and self._store.fingerprint != expected:
            self._store.close()
            raise DamagedDataError(
                f"{path}: has changed since the dataset was made, or is other data on this node; "
                "make the dataset again, and let all nodes see the same data"
            )

    def __enter__(self) -> Store:
        return self._store

    def __exit__(self, *_: object) -> None:
        self._store.close()


def _check_columns(where: str, names: Sequence[str], known: Mapping[str, Column]) -> None:
    for name in names:
        if name not in known:
            raise InvalidValueError(
                f"columns contains {name!r:.80}, and must be of {', '.join(known)!s:.300}, those "
                f"of {where}"
            )
        if known[name].type_name.startswith("complex"):
            raise InvalidValueError(
                f"column {name!r:.80} is of {known[name].type_name}, which Arrow lacks; leave it "
                "out with columns=[…], or pack real and imaginary parts"
            )


def _blocks(what: _What, first: int, end: int, row_bytes: int) -> Iterator[Any]:
    """Yield the samples of some chunks as tables."""
    step = max(1, _BLOCK_BYTES // row_bytes)
    with _Opened(what.path, what.options, what.fingerprint) as store:
        if set(what.names) != set(store.columns) and hasattr(store, "select"):
            # So that nothing else is decoded.
            store = store.select(list(what.names))
        for chunk in range(first, end):
            for start in range(0, int(store.chunk_sizes[chunk]), step):
                stop = min(start + step, int(store.chunk_sizes[chunk]))
                found = store.read(chunk, np.arange(start, stop))
                yield pyarrow.table(
                    {name: _arrow_of(what.path, store.columns[name], found) for name in what.names}
                )
            store.release(chunk)


def _arrow_of(where: str, column: Column, found: Mapping[str, Any]) -> Any:
    values = found[column.name]
    if column.kind in ("array", "list"):
        values = as_numbers({column.name: column}, {column.name: values})[column.name]
    is_tensor = not isinstance(values, Lists) and values.ndim > 1 and values.dtype.kind in "biuf"
    if is_tensor:
        return ArrowTensorArray.from_numpy(np.ascontiguousarray(values))
    return to_arrow(where, column.name, values)


# Both have changed between the releases of Ray.
_HAS_LIMIT = "per_task_row_limit" in inspect.signature(ReadTask.__init__).parameters
_HAS_SCHEMA = "schema" in inspect.signature(BlockMetadata.__init__).parameters
