"""The reader of a chunk, by its file extension."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from feedline.errors import DamagedDataError
from feedline.store.arrow_chunk import open_group
from feedline.store.chunk import OpenChunk
from feedline.store.columns import Column
from feedline.store.npy_chunk import open_npy
from feedline.store.pt_chunk import open_pt
from feedline.store.safetensors_chunk import open_safetensors

_GROUPED = (".parquet", ".arrow", ".feather")
#: The endings of files that hold samples.
FILE_ENDINGS = (*_GROUPED, ".safetensors", ".npy", ".pt", ".pth")


def is_grouped(path: str) -> bool:
    """Whether a file holds several chunks: row groups or record batches."""
    return path.endswith(_GROUPED)


def open_chunk(
    path: Path,
    group: int = 0,
    columns: Sequence[str] | None = None,
    expected: Mapping[str, Column] | None = None,
) -> OpenChunk:
    """Open one chunk; columns that are not in `columns` are not decoded.

    Files whose types leave it open which columns have lists follow what is `expected`.
    """
    if is_grouped(path.name):
        return open_group(path, group, columns, expected)
    if path.suffix in (".pt", ".pth"):
        return open_pt(path)
    if path.suffix == ".safetensors":
        return open_safetensors(path)
    if path.suffix == ".npy" or path.is_dir():
        return open_npy(path)
    raise DamagedDataError(
        f"{path}: unknown file type; chunks are .pt, .safetensors, .parquet, .arrow, .feather or "
        ".npy files, or folders of .npy files"
    )
