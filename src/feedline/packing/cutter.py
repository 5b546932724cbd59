"""Cuts a stream of rows into chunks, passing over those that are finished."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from feedline.store.columns import Column

__all__ = ["Cutter"]

_Arrays = Mapping[str, NDArray[Any]]


class Cutter:
    """Collects the rows of one folder, from `position` on, and hands over each chunk when full."""

    def __init__(
        self,
        *,
        columns: list[Column],
        chunk_samples: int,
        position: int,
        finished: Collection[int],
        on_chunk: Callable[[int, _Arrays], None],
    ) -> None:
        self._columns = columns
        self._chunk_samples = chunk_samples
        self._finished = finished
        self._on_chunk = on_chunk
        self._open: dict[str, NDArray[Any]] | None = None
        self.position = position

    def add(self, arrays: _Arrays) -> None:
        """Take the next rows."""
        num_rows = len(next(iter(arrays.values())))
        done = 0
        while done < num_rows:
            number, offset = divmod(self.position, self._chunk_samples)
            count = min(num_rows - done, self._chunk_samples - offset)
            if number not in self._finished:
                self._copy(arrays, done, offset, count)
            done += count
            self.position += count
            if offset + count == self._chunk_samples:
                self._hand_over(number)

    def skip(self, num_rows: int) -> None:
        """Pass over rows, all of finished chunks."""
        assert self._open is None
        self.position += num_rows

    def finish(self) -> None:
        """Hand over the last chunk, which may be short."""
        self._hand_over(self.position // self._chunk_samples)

    def _copy(self, arrays: _Arrays, start: int, offset: int, count: int) -> None:
        if self._open is None:
            assert offset == 0, "the rows of an unfinished chunk come from its first one on"
            self._open = {
                column.name: np.empty((self._chunk_samples, *column.shape), column.dtype)
                for column in self._columns
            }
        for name, values in self._open.items():
            values[offset : offset + count] = arrays[name][start : start + count]

    def _hand_over(self, number: int) -> None:
        if self._open is None:
            return
        size = self.position - number * self._chunk_samples
        chunk = {name: values[:size] for name, values in self._open.items()}
        self._open = None
        self._on_chunk(number, chunk)
