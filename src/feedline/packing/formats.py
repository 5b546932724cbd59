"""How a chunk is written in each format."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from feedline.errors import InvalidValueError
from feedline.packing.pt_file import ID_NAMES, add_ids, check_pt_columns, write_pt
from feedline.store.columns import Column
from feedline.store.extras import import_arrow

FORMATS = ("safetensors", "npy", "pt", "parquet")
"""The formats of chunks."""

_Arrays = Mapping[str, NDArray[Any]]


def check_format(format_: str) -> None:
    """Raise if what a format needs is not installed."""
    if format_ == "parquet":
        import_arrow()


def chunk_name(format_: str, number: int) -> str:
    """Return the name of the file of a chunk; a chunk of `.npy` files is a folder."""
    return f"chunk-{number:06}" + ("" if format_ == "npy" else f".{format_}")


def stored_columns(format_: str, columns: list[Column]) -> list[Column]:
    """Return the columns that the chunks will have, or raise if the format cannot hold them."""
    if format_ == "parquet" and (empty := [c.name for c in columns if 0 in c.shape]):
        raise InvalidValueError(
            f"column {empty[0]!r:.80} has no values in a row, which format='parquet' cannot hold; "
            "leave it out by columns=[…], or use another format"
        )
    if format_ != "pt":
        return columns
    check_pt_columns(columns)
    names = {column.name for column in columns}
    return [*columns, *(Column(name, "int64") for name in ID_NAMES if name not in names)]


def write_chunk(format_: str, path: Path, arrays: _Arrays, start: int) -> None:
    """Write the columns of one chunk, whose first sample is number `start` of its folder."""
    if format_ == "safetensors":
        from feedline.store.safetensors_chunk import write_safetensors

        write_safetensors(path, arrays, {})
    elif format_ == "npy":
        _write_npy(path, arrays)
    elif format_ == "pt":
        write_pt(path, add_ids(arrays, start))
    else:
        _write_parquet(path, arrays)


def _write_npy(folder: Path, arrays: _Arrays) -> None:
    for name, array in arrays.items():
        path = folder / f"{name}.npy"
        path.parent.mkdir(parents=True, exist_ok=True)
        with open(path, "wb") as file:
            np.lib.format.write_array_header_1_0(
                file,
                {"descr": array.dtype.str, "fortran_order": False, "shape": array.shape},
            )
            # Unlike numpy's own writing, this tells why it failed.
            file.write(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)


def _write_parquet(path: Path, arrays: _Arrays) -> None:
    arrow = import_arrow()
    table = {name: _as_lists(arrow, array) for name, array in arrays.items()}
    num_rows = len(next(iter(arrays.values())))
    import_arrow("pyarrow.parquet").write_table(
        arrow.table(table), path, row_group_size=max(1, num_rows), use_dictionary=False
    )


def _as_lists(arrow: Any, array: NDArray[Any]) -> Any:
    values = arrow.array(np.ascontiguousarray(array).reshape(-1))
    for size in reversed(array.shape[1:]):
        values = arrow.FixedSizeListArray.from_arrays(values, size)
    return values
