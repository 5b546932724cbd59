"""Reading many parts of zarr arrays at once: each inner chunk is decoded once, right into place.

zarr decodes whole inner chunks, whatever part of one is asked for. So rows that are wanted are
rounded to inner chunks, chunks that follow each other are joined to runs, and all runs are read in
one call.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from feedline.errors import DamagedDataError, MissingDataError

__all__ = ["Runs", "open_zarr", "read_runs", "runs_of"]

Indices = NDArray[np.int64]


def open_zarr(path: Path) -> Any:
    """Return the zarr group or array in a folder, opened for reading."""
    zarr = _import_zarr()
    if not path.exists():
        raise MissingDataError(f"{path}: there is no such folder")
    try:
        return zarr.open(path, mode="r")
    except Exception as error:  # zarr raises many kinds for damaged metadata
        raise DamagedDataError(f"{path}: is no zarr group or array ({error})") from None


def _import_zarr() -> Any:
    try:
        import zarr
    except ModuleNotFoundError as error:
        if error.name != "zarr":
            raise
        raise ModuleNotFoundError(
            "zarr stores need zarr, which is not installed; install feedline[zarr]", name="zarr"
        ) from None
    if importlib.util.find_spec("zarrs") is not None:
        zarr.config.set({"codec_pipeline.path": "zarrs.ZarrsCodecPipeline"})
    return zarr


class Runs:
    """Runs of entries along the first axis of an array, laid one after another in a buffer."""

    def __init__(self, starts: Indices, ends: Indices) -> None:
        self.starts = starts
        self.ends = ends
        self.offsets = np.concatenate([[0], np.cumsum(ends - starts)]).astype(np.int64)
        self.num_entries = int(self.offsets[-1])

    def places_of(self, entries: Indices) -> Indices:
        """Return where in the buffer each entry lies; it is known to be in some run."""
        which = np.searchsorted(self.starts, entries, side="right") - 1
        return entries - self.starts[which] + self.offsets[which]


def runs_of(starts: Indices, ends: Indices, chunk_size: int, num_entries: int) -> Runs:
    """Return the runs of whole chunks that hold the entries of all intervals `[start, end)`.

    Examples:
        >>> runs = runs_of(np.array([5, 12]), np.array([9, 14]), chunk_size=4, num_entries=15)
        >>> runs.starts.tolist(), runs.ends.tolist()
        ([4], [15])
    """
    filled = ends > starts
    low = starts[filled] // chunk_size
    high = -(-ends[filled] // chunk_size)
    order = np.argsort(low, kind="stable")
    low, high = low[order], np.maximum.accumulate(high[order])
    # A run begins where a chunk is left out after all before it.
    is_first = np.ones(len(low), dtype=np.bool_)
    is_first[1:] = low[1:] > high[:-1]
    is_last = np.append(is_first[1:], True)[: len(low)]
    return Runs(low[is_first] * chunk_size, np.minimum(high[is_last] * chunk_size, num_entries))


def read_runs(parts: Sequence[tuple[Any, Runs, NDArray[Any]]]) -> None:
    """Decode runs of entries of several arrays, each into its own buffer, all at once."""
    import asyncio

    from zarr.core.buffer import default_buffer_prototype
    from zarr.core.sync import sync

    prototype = default_buffer_prototype()

    async def read_all() -> None:
        await asyncio.gather(
            *(
                array._async_array._get_selection(
                    _RunsIndexer(array, runs),
                    prototype=prototype,
                    out=prototype.nd_buffer.from_numpy_array(out),
                )
                for array, runs, out in parts
                if runs.num_entries
            )
        )

    sync(read_all())


class _RunsIndexer:
    """What zarr iterates over: which part of which stored chunk goes where."""

    def __init__(self, array: Any, runs: Runs) -> None:
        # A shard is what is stored as one; its inner chunks are its own affair.
        self._stored = array.shards or array.chunks
        self._trailing = array.shape[1:]
        self._length = array.shape[0]
        self._runs = runs
        self.shape = (runs.num_entries, *self._trailing)
        self.drop_axes: tuple[int, ...] = ()

    def __iter__(self) -> Iterator[Any]:
        from itertools import product

        from zarr.core.indexing import ChunkProjection

        size = self._stored[0]
        columns = [
            [
                (number, slice(0, min(step, length - number * step)), number * step)
                for number in range(-(-length // step))
            ]
            for step, length in zip(self._stored[1:], self._trailing, strict=True)
        ]
        offset = 0
        for start, end in zip(self._runs.starts.tolist(), self._runs.ends.tolist(), strict=True):
            while start < end:
                number = start // size
                stop = min(end, (number + 1) * size)
                inside = slice(start - number * size, stop - number * size)
                into = slice(offset, offset + stop - start)
                is_whole = stop - start == min(size, self._length - number * size)
                for others in product(*columns):
                    yield ChunkProjection(
                        (number, *(n for n, _, _ in others)),
                        (inside, *(part for _, part, _ in others)),
                        (into, *(slice(at, at + part.stop) for _, part, at in others)),
                        is_whole,
                    )
                offset += stop - start
                start = stop
