"""Reading many runs of zarr arrays at once, decoded right into place."""

from __future__ import annotations

import asyncio
import math
import os
from collections.abc import Callable, Iterator, Sequence
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from feedline.errors import DamagedDataError, MissingDataError
from feedline.store.runs import Runs
from feedline.store.zarr_reading import damage_in, with_fast_codecs

#: A chunk is decoded as a whole, so its size is what a header can make us allocate.
MAX_CHUNK_BYTES = 2**30


class ZarrArray:
    """An array whose entries are read by the run.

    Args:
        array: An open zarr array.
        may_lack: Says whether entries `[start, end)` may be without a file; zarr writes none where
            all are fill values. Where they may not, a file that is missing is an error.
    """

    def __init__(self, array: Any, *, may_lack: Callable[[int, int], bool]) -> None:
        self.array = array
        self.shape: tuple[int, ...] = tuple(int(size) for size in array.shape)
        self.dtype: np.dtype[Any] = np.dtype(array.dtype)
        self.chunk_size = int(array.chunks[0])
        #: The shape of what is stored as one; the inner chunks of a shard are its own affair.
        self.stored_shape: tuple[int, ...] = tuple(array.shards or array.chunks)
        self._may_lack = may_lack
        self._decoder: tuple[int, Any] | None = None
        self._found: set[int] = set()
        num_bytes = math.prod(array.chunks) * self.dtype.itemsize
        if num_bytes > MAX_CHUNK_BYTES:
            raise DamagedDataError(
                f"{array.store_path}: has chunks of {num_bytes} bytes, which must be at most "
                f"{MAX_CHUNK_BYTES}; write it again in smaller chunks"
            )

    def decoder(self) -> Any:
        """Return the array as this process decodes it."""
        if self._decoder is None or self._decoder[0] != os.getpid():
            self._decoder = os.getpid(), with_fast_codecs(self.array)
        return self._decoder[1]

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_decoder": None}

    def check_files(self, runs: Runs) -> None:
        """Raise if a file that must be there is not; each is looked for once."""
        root = getattr(self.array.store, "root", None)
        if root is None:
            return
        size = self.stored_shape[0]
        wanted = {
            number for start, end, _ in runs for number in range(start // size, -(-end // size))
        }
        for number in sorted(wanted - self._found):
            path = Path(root) / self.array.path / self.array.metadata.encode_chunk_key((number,))
            end = min((number + 1) * size, self.shape[0])
            if not path.exists() and not self._may_lack(number * size, end):
                raise MissingDataError(f"{path}: is missing; restore the file")
            self._found.add(number)


def read_runs(parts: Sequence[tuple[ZarrArray, Runs, NDArray[Any]]]) -> None:
    """Decode runs of entries of several arrays, each into its own buffer, all at once."""
    from zarr.core.buffer import default_buffer_prototype
    from zarr.core.sync import sync

    prototype = default_buffer_prototype()
    names = ", ".join(sorted({str(array.array.store_path) for array, _, _ in parts}))
    with damage_in(names):
        reads = []
        for array, runs, out in parts:
            array.check_files(runs)
            if runs.num_entries:
                target = prototype.nd_buffer.from_numpy_array(out)
                reads.append((array.decoder()._async_array, _RunsIndexer(array, runs), target))

        async def read_all() -> None:
            await asyncio.gather(
                *(
                    array._get_selection(indexer, prototype=prototype, out=target)
                    for array, indexer, target in reads
                )
            )

        sync(read_all())


class _RunsIndexer:
    """What zarr iterates over: which part of which stored chunk goes where."""

    def __init__(self, array: ZarrArray, runs: Runs) -> None:
        self._array = array
        self._runs = runs
        self.shape = (runs.num_entries, *array.shape[1:])
        self.drop_axes: tuple[int, ...] = ()

    def __iter__(self) -> Iterator[Any]:
        from zarr.core.indexing import ChunkProjection

        size, *trailing = self._array.stored_shape
        columns = [
            [
                (number, slice(0, min(step, length - number * step)), number * step)
                for number in range(-(-length // step))
            ]
            for step, length in zip(trailing, self._array.shape[1:], strict=True)
        ]
        for start, end, offset in self._runs:
            for number in range(start // size, -(-end // size)):
                first, stop = max(start, number * size), min(end, (number + 1) * size)
                inside = slice(first - number * size, stop - number * size)
                into = slice(offset + first - start, offset + stop - start)
                is_whole = stop - first == min(size, self._array.shape[0] - number * size)
                for others in product(*columns):
                    yield ChunkProjection(
                        (number, *(n for n, _, _ in others)),
                        (inside, *(part for _, part, _ in others)),
                        (into, *(slice(at, at + part.stop) for _, part, at in others)),
                        is_whole,
                    )
