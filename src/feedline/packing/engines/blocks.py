"""Blocks: rows of the source on their way to chunks, dealt to cells, one file for each block.

    num_cells × (offset, number of rows, number of bytes), as int64
    for each cell that has rows: its sort columns, then its rows, as `write_rows` writes them

A cell is a range of the keys of a split; without a shuffle, it is a split. Within a cell, rows are
in the order of the source, so the cells of all blocks, one after another, are too. A file appears
when all of it is on disk.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from feedline.errors import PackError
from feedline.packing.rows import Rows, read_rows, take_rows, write_rows
from feedline.store.writing import remove, reported, sync

KEY, SIZE = "\0key", "\0size"
_FIELDS = 3
Table = NDArray[np.int64]


def block_name(number: int, place: int) -> str:
    """Return the name of the file of a block, which may have several."""
    return f"{number:08}-{place:04}.rows"


def write_block(path: Path, sorts: Rows, rows: Rows, cells: NDArray[np.int64], num: int) -> Table:
    """Write rows by their cells; return the offset, rows and bytes of each cell.

    `sorts` has what tells the order and the chunks of rows, read alone where rows are not needed.
    """
    if num > 1:
        order = np.argsort(cells, kind="stable")
        sorts, rows = take_rows(sorts, order), take_rows(rows, order)
    table = np.zeros((num, _FIELDS), np.int64)
    table[:, 1] = np.bincount(cells, minlength=num)
    ends = np.cumsum(table[:, 1])
    unfinished = path.with_name(f".{path.name}.{uuid.uuid4().hex}")
    with reported(path):
        try:
            with open(unfinished, "wb") as file:
                file.seek(table.nbytes)
                for cell in np.flatnonzero(table[:, 1]).tolist():
                    part = slice(ends[cell] - table[cell, 1], ends[cell])
                    table[cell, 0] = file.tell()
                    for columns in (sorts, rows):
                        write_rows(file, {name: column[part] for name, column in columns.items()})
                    table[cell, 2] = file.tell() - table[cell, 0]
                file.seek(0)
                file.write(table.data)
            sync([unfinished])
            os.replace(unfinished, path)
        except BaseException:
            remove(unfinished)
            raise
    return table


def read_table(path: Path, num_cells: int, num_bytes: int) -> Table | None:
    """Return the table of a block; None if the file is not there, or not of that size."""
    try:
        if path.stat().st_size != num_bytes:
            return None
        return np.fromfile(path, np.int64, num_cells * _FIELDS).reshape(num_cells, _FIELDS)
    except FileNotFoundError:
        return None


def cells_of(
    paths: Sequence[Path], cell: int, sorts: Rows, rows: Rows | None
) -> Iterator[tuple[Rows, Rows]]:
    """Yield the sort columns and the rows of a cell in each block; no rows if they are not wanted.

    `sorts` and `rows` have the columns and their types.
    """
    for path in paths:
        try:
            with open(path, "rb") as file:
                file.seek(cell * _FIELDS * 8)
                offset, num_rows, _ = np.frombuffer(file.read(_FIELDS * 8), np.int64).tolist()
                if num_rows:
                    file.seek(offset)
                    yield read_rows(file, sorts), {} if rows is None else read_rows(file, rows)
        except FileNotFoundError:
            raise PackError(
                f"{path}: does not exist on {os.uname().nodename}; every node must see the folder "
                "to pack to: use shared storage; pack again to resume"
            ) from None
