"""The formats: their file extensions, readers for sources, and writers of chunks.

Chunks are read in `store/formats.py`, which also reads files from other tools.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from feedline.errors import InvalidValueError
from feedline.packing.arrays import NpyFiles
from feedline.packing.arrow_files import ArrowFiles
from feedline.packing.parquet_writer import parquet_type, write_parquet
from feedline.packing.pt_file import ID_NAMES, add_ids, check_pt_columns, write_pt
from feedline.packing.rows import Rows, Source
from feedline.packing.selection import Selection
from feedline.packing.table_files import ParquetFiles
from feedline.packing.text_files import CsvFiles, JsonlFiles
from feedline.store.columns import Column
from feedline.store.extras import import_arrow
from feedline.store.lists import LIST_PARTS, Lists
from feedline.store.safetensors_chunk import write_safetensors


def chunk_name(format_: str, number: int) -> str:
    """Return the name of the file of a chunk; a chunk of `.npy` files is a folder."""
    return f"chunk-{number:06}" + ("" if format_ == "npy" else f".{format_}")


def stored_columns(format_: str, columns: list[Column]) -> list[Column]:
    """Return the columns that the chunks will have, or raise if the format cannot hold them."""
    names = {column.name for column in columns}
    for column in columns:
        only = "safetensors" if column.type_name == "bfloat16" else "npy"
        if format_ != only and (column.type_name == "bfloat16" or column.dtype.kind == "c"):
            raise InvalidValueError(
                f"column {column.name!r:.80} is {column}, which format={format_!r} cannot hold; "
                f"use format={only!r}, or exclude it with columns=[…]"
            )
        parts = [f"{column.name}/{part}" for part in LIST_PARTS if column.has_lists]
        if format_ != "parquet" and (taken := names.intersection(parts)):
            raise InvalidValueError(
                f"column name {min(taken)!r:.80} is needed for the lists of {column.name!r:.80}; "
                "rename it with columns={'new name': 'name in the source'}"
            )
    if format_ == "parquet":
        import_arrow()
        if empty := [column.name for column in columns if 0 in column.shape]:
            raise InvalidValueError(
                f"column {empty[0]!r:.80} has 0 values in each row, which format='parquet' cannot "
                "hold; exclude it with columns=[…], or use another format"
            )
        return [replace(column, type_name=parquet_type(column.type_name)) for column in columns]
    if format_ != "pt":
        return columns
    check_pt_columns(columns)
    return [*columns, *(Column(name, "int64") for name in ID_NAMES if name not in names)]


def write_chunk(
    format_: str, path: Path, rows: Rows, start: int, type_names: Mapping[str, str]
) -> None:
    """Write the columns of one chunk, whose first sample is number `start` of its folder.

    In formats of arrays, lists are two arrays: all values, and where each list begins. Those that
    have no dates hold them as int64; `metadata.json` tells what they are.
    """
    if format_ == "parquet":
        write_parquet(path, rows)
        return
    arrays: dict[str, NDArray[Any]] = {}
    names: dict[str, str] = {}
    for name, column in rows.items():
        parts = (
            {name: column}
            if not isinstance(column, Lists)
            else {f"{name}/{part}": getattr(column, part) for part in LIST_PARTS}
        )
        first = next(iter(parts))
        if type_names[name] == "bfloat16":
            names[first] = "bfloat16"
        if format_ != "npy" and parts[first].dtype.kind in "mM":
            parts[first] = parts[first].view(np.int64)
        arrays |= parts
    if format_ == "safetensors":
        write_safetensors(path, arrays, names)
    elif format_ == "pt":
        write_pt(path, add_ids(arrays, start, len(next(iter(rows.values())))))
    else:
        _write_npy(path, arrays)


def _write_npy(folder: Path, arrays: Mapping[str, NDArray[Any]]) -> None:
    for name, array in arrays.items():
        path = folder / f"{name}.npy"
        path.parent.mkdir(parents=True, exist_ok=True)
        with open(path, "wb") as file:
            header = {"descr": array.dtype.str, "fortran_order": False, "shape": array.shape}
            np.lib.format.write_array_header_1_0(file, header)
            # Unlike numpy's own writing, this tells why it failed.
            file.write(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)


class Kind(NamedTuple):
    """A kind of file: its reader as a source, and whether chunks are written so."""

    endings: tuple[str, ...]
    open: Callable[[list[Path], Selection | None, int], Source] | None = None
    is_written: bool = False


KINDS = {
    "safetensors": Kind((".safetensors",), is_written=True),
    "npy": Kind((".npy",), lambda paths, chosen, _: NpyFiles({"data": paths}, chosen), True),
    "pt": Kind((".pt",), is_written=True),
    "parquet": Kind((".parquet",), ParquetFiles, is_written=True),
    "arrow": Kind((".arrow", ".feather"), ArrowFiles),
    "csv": Kind((".csv",), CsvFiles),
    "jsonl": Kind((".jsonl", ".ndjson"), JsonlFiles),
}
FORMATS = tuple(name for name, kind in KINDS.items() if kind.is_written)
"""The formats of chunks."""
