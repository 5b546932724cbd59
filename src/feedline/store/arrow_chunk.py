"""Chunks in parquet and Arrow files: each row group or record batch of a file is a chunk."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from feedline.errors import DamagedDataError, StoreError
from feedline.store.arrow_files import opened_file
from feedline.store.arrow_types import OTHERS, Form, Leaf, form_of, leaves_of
from feedline.store.arrow_values import Mask, column_values
from feedline.store.chunk import OpenChunk
from feedline.store.columns import MISSING, Column
from feedline.store.extras import import_arrow
from feedline.store.lists import ListSource
from feedline.words import several

Leaves = Mapping[str, tuple[Leaf, Form]]


def group_sizes(path: Path) -> tuple[int, ...]:
    """Return the number of samples in each row group or record batch of a file."""
    with opened_file(path) as file:
        return file.sizes()


def column_names(path: Path) -> list[str]:
    """Return the names of all columns of a file; fields of structs have paths."""
    with opened_file(path) as file:
        return [leaf.name for leaf in leaves_of(import_arrow(), file.schema)]


def open_group(
    path: Path,
    group: int,
    columns: Sequence[str] | None = None,
    expected: Mapping[str, Column] | None = None,
    *,
    lists: Collection[str] = (),
) -> OpenChunk:
    """Open one row group or record batch of a file; only `columns` are read.

    Numbers, bools and times give one value per sample, and lists of one length add an axis. Lists
    of different lengths, bytes and texts give sources of lists. Arrow files that are not compressed
    stay mapped, except for bools and nulls, which are stored as bits.

    Args:
        path: The file.
        group: The number of the row group or record batch.
        columns: The columns to read; by default all that are expected.
        expected: The columns of the whole data, if these are known. Otherwise, this group alone
            decides which are columns of lists, and which have nulls.
        lists: Columns that are read as lists, even if all have one length.
    """
    arrow = import_arrow()
    with opened_file(path) as file:
        asked = list(expected) if columns is None and expected is not None else columns
        leaves = leaves_to_read(arrow, path, file.schema, asked)
        table = file.read(group, list(leaves.values()))
        arrays = arrays_of_table(path, table, leaves, asked, expected, lists)
        held = sum(_bytes_held(values, file.bytes_) for values in arrays.values())
        held += file.num_bytes_filled
        num_files = int(any(_is_mapped(values, file.bytes_) for values in arrays.values()))
    return OpenChunk(path, arrays, num_bytes_held=held, num_files=num_files, shares_file=True)


def arrays_of_table(
    path: Path,
    table: Any,
    leaves: Leaves,
    asked: Sequence[str] | None,
    expected: Mapping[str, Column] | None,
    lists: Collection[str],
) -> dict[str, Any]:
    """Return the values of a table or record batch; see `open_group`."""
    arrow = import_arrow()
    # Buffers that are shorter than they should be are found here, not by reading beyond them.
    table.validate()
    arrays: dict[str, Any] = {}
    for name, (leaf, form) in leaves.items():
        where = f"{path}: column {name!r:.200}"
        values, is_missing = column_values(
            arrow,
            where,
            _pieces(arrow, table.column(leaf.steps[0])),
            leaf.steps[1:],
            form,
            None if expected is None else expected.get(name),
            as_lists=name in lists,
        )
        arrays[name] = values
        if _has_mask(where, name, asked, expected, is_missing):
            is_missing = np.zeros(len(values), np.bool_) if is_missing is None else is_missing
            arrays[name + MISSING] = is_missing
    return arrays if asked is None else {name: arrays[name] for name in dict.fromkeys(asked)}


def leaves_to_read(arrow: Any, path: Path, schema: Any, columns: Sequence[str] | None) -> Leaves:
    """Return the leaves to read for some columns, or raise if one is missing or has no form."""
    leaves = leaves_of(arrow, schema)
    names = [leaf.name for leaf in leaves]
    known = dict(zip(names, leaves, strict=True))
    asked = names if columns is None else list(columns)
    wanted = dict.fromkeys(n if n in known else n.removesuffix(MISSING) for n in asked)
    unknown = [name for name in wanted if name not in known]
    if unknown or not wanted:
        missing = f"column {unknown[0]!r:.80} is missing; it " if unknown else ""
        raise DamagedDataError(
            f"{path}: {missing}has columns {names!s:.200} and must have "
            f"{unknown or 'at least one'!s:.200}; write it again, or {OTHERS}"
        )
    for name in wanted:
        if names.count(name) > 1:
            raise StoreError(
                f"{path}: column {name!r} appears {names.count(name)} times and must appear once; "
                f"rename one, or {OTHERS}"
            )
    where = f"{path}: column "
    return {n: (known[n], form_of(arrow, f"{where}{n!r:.200}", known[n].type_)) for n in wanted}


def _pieces(arrow: Any, column: Any) -> list[Any]:
    pieces = column.chunks if isinstance(column, arrow.ChunkedArray) else [column]
    return [piece for piece in pieces if len(piece)] or [arrow.array([], column.type)]


def _has_mask(
    where: str,
    name: str,
    asked: Sequence[str] | None,
    expected: Mapping[str, Column] | None,
    is_missing: Mask,
) -> bool:
    """Return whether to add where values are missing, or raise if no column could tell."""
    mask = name + MISSING
    if is_missing is not None and expected is not None and mask not in expected:
        raise StoreError(
            f"{where} has {several(int(is_missing.sum()), 'null')}, but the data has no column "
            f"{mask!r:.200} that could tell; fill them, or {OTHERS}"
        )
    return (mask in asked) if asked is not None else is_missing is not None


def compression_of(path: Path) -> str | None:
    """Return the name of the compression of a parquet or Arrow file; None if it has none."""
    with opened_file(path) as file:
        return file.compression


def _bytes_held(values: NDArray[Any] | ListSource, bytes_: NDArray[np.uint8]) -> int:
    """Return the bytes of ordinary memory that values take, other than the mapped file."""
    is_mapped = _is_mapped(values, bytes_)
    if not isinstance(values, ListSource):
        return 0 if is_mapped else values.nbytes
    return values.nbytes - (values.memory.nbytes if is_mapped else 0)


def _is_mapped(values: NDArray[Any] | ListSource, bytes_: NDArray[np.uint8]) -> bool:
    memory = values.memory if isinstance(values, ListSource) else values
    return np.may_share_memory(memory, bytes_)
