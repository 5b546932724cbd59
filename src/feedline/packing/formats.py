"""The formats: their file extensions, readers for sources, and writers of chunks.

Chunks are read in `store/formats.py`, which also reads files from other tools.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from feedline.errors import InvalidValueError
from feedline.packing.arrays import NpyFiles
from feedline.packing.pt_file import ID_NAMES, add_ids, check_pt_columns, write_pt
from feedline.packing.rows import Source
from feedline.packing.selection import Selection
from feedline.packing.table_files import CsvFiles, JsonlFiles, ParquetFiles
from feedline.store.columns import Column
from feedline.store.extras import import_arrow
from feedline.store.safetensors_chunk import write_safetensors

_Arrays = Mapping[str, NDArray[Any]]


def chunk_name(format_: str, number: int) -> str:
    """Return the name of the file of a chunk; a chunk of `.npy` files is a folder."""
    return f"chunk-{number:06}" + ("" if format_ == "npy" else f".{format_}")


def stored_columns(format_: str, columns: list[Column]) -> list[Column]:
    """Return the columns that the chunks will have, or raise if the format cannot hold them."""
    if format_ == "parquet":
        import_arrow()
        if empty := [column.name for column in columns if 0 in column.shape]:
            raise InvalidValueError(
                f"column {empty[0]!r:.80} has 0 values in each row, which format='parquet' cannot "
                "hold; exclude it with columns=[…], or use another format"
            )
    if format_ != "pt":
        return columns
    check_pt_columns(columns)
    names = {column.name for column in columns}
    return [*columns, *(Column(name, "int64") for name in ID_NAMES if name not in names)]


def write_chunk(format_: str, path: Path, arrays: _Arrays, start: int) -> None:
    """Write the columns of one chunk, whose first sample is number `start` of its folder."""
    write = KINDS[format_].write
    assert write is not None
    write(path, add_ids(arrays, start) if format_ == "pt" else arrays)


def _write_npy(folder: Path, arrays: _Arrays) -> None:
    for name, array in arrays.items():
        path = folder / f"{name}.npy"
        path.parent.mkdir(parents=True, exist_ok=True)
        with open(path, "wb") as file:
            header = {"descr": array.dtype.str, "fortran_order": False, "shape": array.shape}
            np.lib.format.write_array_header_1_0(file, header)
            # Unlike numpy's own writing, this tells why it failed.
            file.write(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)


def _write_parquet(path: Path, arrays: _Arrays) -> None:
    arrow = import_arrow()
    table = {}
    for name, array in arrays.items():
        table[name] = arrow.array(np.ascontiguousarray(array).reshape(-1))
        for size in reversed(array.shape[1:]):
            table[name] = arrow.FixedSizeListArray.from_arrays(table[name], size)
    num_rows = len(next(iter(arrays.values())))
    import_arrow("pyarrow.parquet").write_table(
        arrow.table(table), path, row_group_size=max(1, num_rows), use_dictionary=False
    )


class Kind(NamedTuple):
    """A kind of file: its reader as a source, and its chunk writer, if any."""

    endings: tuple[str, ...]
    open: Callable[[list[Path], Selection | None, int], Source] | None = None
    write: Callable[[Path, _Arrays], None] | None = None


KINDS = {
    "safetensors": Kind((".safetensors",), write=lambda path, a: write_safetensors(path, a, {})),
    "npy": Kind((".npy",), lambda paths, chosen, _: NpyFiles({"data": paths}, chosen), _write_npy),
    "pt": Kind((".pt",), write=write_pt),
    "parquet": Kind((".parquet",), ParquetFiles, _write_parquet),
    "csv": Kind((".csv",), CsvFiles),
    "jsonl": Kind((".jsonl", ".ndjson"), JsonlFiles),
}
FORMATS = tuple(name for name, kind in KINDS.items() if kind.write)
"""The formats of chunks."""
