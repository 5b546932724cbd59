"""An open chunk: arrays whose first axis counts samples, mapped from a file or decoded."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from feedline.errors import DamagedDataError
from feedline.lazy import lazy
from feedline.store.columns import Column, columns_of
from feedline.store.gather import RowSource

__all__ = ["OpenChunk"]


@dataclass(frozen=True, eq=False)
class OpenChunk:
    """The arrays of one chunk.

    Arrays may be views of a mapped file, with any strides and alignment, and are never written to.
    `type_names` names the types that numpy lacks. `num_bytes_held` counts ordinary memory: it is 0
    for a mapped file. `num_files` counts the files that stay open.
    """

    path: Path
    arrays: Mapping[str, NDArray[Any]]
    type_names: Mapping[str, str] = field(default_factory=dict)
    num_bytes_held: int = 0
    num_files: int = 1

    @property
    def columns(self) -> dict[str, Column]:
        """The columns by name."""
        return {column.name: column for column in columns_of(self.arrays, self.type_names)}

    @lazy
    def rows(self) -> dict[str, RowSource]:
        """The columns, ready for rows to be copied out of them."""
        return {name: RowSource(array) for name, array in self.arrays.items()}

    @property
    def num_samples(self) -> int:
        """The number of samples, or an error if the columns do not agree."""
        lengths = {name: len(array) for name, array in self.arrays.items()}
        if len(set(lengths.values())) != 1:
            listed = ", ".join(f"{name!r} has {length}" for name, length in lengths.items())
            raise DamagedDataError(
                f"{self.path}: columns must have equally many samples, but {listed or 'has none'}; "
                "write this chunk again"
            )
        return next(iter(lengths.values()))
