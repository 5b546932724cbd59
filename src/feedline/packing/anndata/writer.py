"""Writes rows as one zarr group in AnnData's encoding."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

from feedline.errors import InvalidValueError
from feedline.packing.anndata.columns import ColumnKind
from feedline.packing.anndata.matrices import SPARSE_PARTS
from feedline.packing.anndata.shards import ShardedWriter, TextWriter
from feedline.packing.anndata.sources import AnnDataFiles
from feedline.packing.rows import Rows
from feedline.store.lists import Lists

_VERSIONS = {
    "anndata": "0.1.0",
    "array": "0.2.0",
    "categorical": "0.2.0",
    "csr_matrix": "0.1.0",
    "dataframe": "0.2.0",
    "dict": "0.1.0",
    "nullable-boolean": "0.1.0",
    "nullable-integer": "0.1.0",
    "nullable-string-array": "0.1.0",
}


class AnnDataWriter:
    """The group of a collection, written row by row.

    Args:
        folder: Where to write it.
        files: The sources: their shape, types and columns.
        layout: For the matrix: `chunk`, the number of entries in an inner chunk, and `num_chunks`,
            the number of inner chunks in a shard; by default 256 MiB together.
        source_row: The name of the column for the row's number in the sources, if any.
        attributes: Attributes of the group, in addition to AnnData's own.
        pool: Threads that compress.
    """

    def __init__(
        self,
        folder: Path,
        files: AnnDataFiles,
        layout: dict[str, int | None],
        source_row: str | None,
        attributes: dict[str, Any],
        pool: ThreadPoolExecutor,
    ) -> None:
        import zarr

        self._files = files
        self._pool = pool
        self._num_values = 0
        # Of numbers or of strings, by the name of the column.
        self._writers: dict[str, Any] = {}
        self._root = zarr.open_group(
            folder, mode="w", zarr_format=3, attributes=_encoding("anndata") | attributes
        )
        for name in ("layers", "obsm", "obsp", "uns", "varm", "varp"):
            self._root.create_group(name, attributes=_encoding("dict"))
        self._begin_matrix(layout)
        self._begin_obs(source_row)
        index, names = files.named.var_index_name, files.named.var_name_parts()
        group = self._begin_frame("var", index, [])
        _write_texts(group, index, names, files.matrix.num_columns)

    def append(self, rows: Rows) -> None:
        """Write the next rows."""
        for name, column in rows.items():
            if name in SPARSE_PARTS and isinstance(column, Lists):
                self._writers[name].append(column.values)
                if name == SPARSE_PARTS[0]:
                    self._writers["X/indptr"].append(self._num_values + column.offsets[1:])
                    self._num_values += len(column.values)
            elif name in self._writers:
                self._writers[name].append(column)

    def finish(self) -> None:
        """Write the buffered rows."""
        for writer in self._writers.values():
            writer.finish()

    def close(self) -> None:
        """Close all files, finished or not."""
        for writer in self._writers.values():
            writer.close()

    def _begin_matrix(self, layout: dict[str, int | None]) -> None:
        num_rows, num_values = self._files.num_rows, self._files.num_values
        matrix = self._files.matrix
        shape = [num_rows, matrix.num_columns]
        if not self._files.is_sparse:
            self._numbers("X", self._root, "X", matrix.dtype, shape, **layout)
            return
        group = self._root.create_group("X", attributes=_encoding("csr_matrix") | {"shape": shape})
        for name, dtype in (("data", matrix.dtype), ("indices", np.dtype(np.int32))):
            self._numbers(f"X/{name}", group, name, dtype, [num_values], attributes={}, **layout)
        edge = np.dtype(np.int32 if num_values <= np.iinfo(np.int32).max else np.int64)
        self._numbers("X/indptr", group, "indptr", edge, [num_rows + 1], attributes={})
        self._writers["X/indptr"].append(np.zeros(1, np.int64))

    def _begin_frame(self, name: str, index: str, columns: list[str]) -> Any:
        frame: dict[str, Any] = {"_index": index, "column-order": columns}
        return self._root.create_group(name, attributes=_encoding("dataframe") | frame)

    def _begin_obs(self, source_row: str | None) -> None:
        index, *names = self._files.columns
        group = self._begin_frame("obs", index, [*names, *([source_row] if source_row else [])])
        for name, kind in self._files.columns.items():
            self._begin_column(group, name, kind)
        if source_row is not None:
            self._numbers("row", group, source_row, np.dtype(np.int64))

    def _begin_column(self, group: Any, name: str, kind: ColumnKind) -> None:
        place = f"obs/{name}"
        if kind.encoding == "categorical":
            assert kind.dtype is not None
            attributes = _encoding("categorical") | {"ordered": kind.is_ordered}
            group = group.create_group(name, attributes=attributes)
            self._numbers(place, group, "codes", kind.dtype)
            self._write_categories(group, kind)
            return
        if kind.encoding.startswith("nullable"):
            group = group.create_group(name, attributes=_encoding(kind.encoding))
            self._numbers(f"{place}/mask", group, "mask", np.dtype(np.bool_))
            name = "values"
        if kind.dtype is None:
            self._writers[place] = TextWriter(group, name, self._files.num_rows)
        else:
            self._numbers(place, group, name, kind.dtype)

    def _write_categories(self, group: Any, kind: ColumnKind) -> None:
        if kind.category_dtype is None:
            _write_texts(group, "categories", [kind.categories], len(kind.categories))
            return
        values = np.array(kind.categories, kind.category_dtype)
        writer = ShardedWriter(
            group,
            "categories",
            shape=values.shape,
            dtype=values.dtype,
            pool=self._pool,
            attributes=_encoding("array"),
        )
        writer.append(values)
        writer.finish()

    def _numbers(
        self,
        place: str,
        group: Any,
        name: str,
        dtype: np.dtype[Any],
        shape: Sequence[int] | None = None,
        **options: Any,
    ) -> None:
        """Begin an array for a column, by default with one number per row."""
        options.setdefault("attributes", _encoding("array"))
        shape = shape or [self._files.num_rows]
        self._writers[place] = ShardedWriter(
            group, name, shape=shape, dtype=dtype, pool=self._pool, **options
        )


def chunk_entries(files: AnnDataFiles, chunk_rows: int, max_bytes: int) -> int:
    """Return about the number of entries of the matrix in this many rows, or raise if it is too
    large."""
    matrix = files.matrix
    if files.is_sparse:
        mean = files.num_values / files.num_rows
        entries = max(1, min(files.num_values, round(mean * chunk_rows)))
        num_bytes = entries * max(4, matrix.dtype.itemsize)
    else:
        entries = min(files.num_rows, chunk_rows)
        num_bytes = entries * matrix.num_columns * matrix.dtype.itemsize
    if num_bytes > max_bytes:
        raise InvalidValueError(
            f"chunk_rows={chunk_rows} rows have about {num_bytes} bytes, which must be at most "
            f"{max_bytes}; use fewer, or a larger memory_budget"
        )
    return entries


def _encoding(kind: str) -> dict[str, Any]:
    return {"encoding-type": kind, "encoding-version": _VERSIONS[kind]}


def _write_texts(group: Any, name: str, parts: Iterable[Sequence[str]], count: int) -> None:
    writer = TextWriter(group, name, count)
    for texts in parts:
        writer.extend(texts)
    writer.finish()
