"""Zarr arrays that are written sequentially.

zarr itself writes a shard from memory, all of it at once. Here inner chunks go to disk as they are
filled, so that memory does not grow with shards, and shards need not shrink with memory.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from feedline.store.lists import Lists

SHARD_BYTES = 2**28
_TEXT_ROWS = 2**15
_COLUMN_ROWS = 2**16


class ShardedWriter:
    """An array of numbers in shards, compressed with Blosc.

    Args:
        group: The zarr group to put it in.
        name: Its name there.
        shape: Its shape; exactly this many entries must be appended.
        dtype: The type of its values.
        pool: Threads that compress.
        chunk: The number of entries in an inner chunk.
        num_chunks: The number of inner chunks in a shard; by default 256 MiB together.
        attributes: Its attributes.
    """

    def __init__(
        self,
        group: Any,
        name: str,
        *,
        shape: Sequence[int],
        dtype: np.dtype[Any],
        pool: ThreadPoolExecutor,
        chunk: int = _COLUMN_ROWS,
        num_chunks: int | None = None,
        attributes: dict[str, Any] | None = None,
    ) -> None:
        from numcodecs.blosc import Blosc
        from zarr.codecs import BloscCodec

        self._chunk = max(1, min(chunk, shape[0]))
        chunk_bytes = self._chunk * math.prod(shape[1:]) * dtype.itemsize
        wanted = num_chunks or max(1, SHARD_BYTES // chunk_bytes)
        # A shard has an entry for every chunk in it, also for those past the end of the array.
        self._num_chunks = max(1, min(wanted, -(-shape[0] // self._chunk)))
        self._array = group.create_array(
            name,
            shape=tuple(shape),
            dtype=dtype,
            chunks=(self._chunk, *shape[1:]),
            shards=(self._chunk * self._num_chunks, *shape[1:]),
            compressors=BloscCodec(cname="lz4", clevel=3, shuffle="shuffle"),
            fill_value=False if dtype == np.bool_ else 0,
            attributes=attributes or {},
        )
        self._dtype = dtype
        self._encode = Blosc(cname="lz4", clevel=3, shuffle=Blosc.SHUFFLE).encode
        self._pool = pool
        self._pending: list[NDArray[Any]] = []
        self._num_pending = 0
        self._num_rows = 0
        self._file: BinaryIO | None = None
        self._num_shards = 0
        self._index: list[tuple[int, int]] = []

    def append(self, values: NDArray[Any]) -> None:
        """Write the next entries."""
        self._pending.append(values)
        self._num_pending += len(values)
        self._num_rows += len(values)
        if self._num_pending >= self._chunk:
            joined = np.concatenate(self._pending) if len(self._pending) > 1 else values
            whole = self._num_pending // self._chunk * self._chunk
            self._write(joined[:whole])
            self._pending = [joined[whole:].copy()]
            self._num_pending -= whole

    def finish(self) -> None:
        """Write the buffered entries; the last chunk is padded."""
        assert self._num_rows == self._array.shape[0]
        if self._num_pending:
            last = np.zeros((self._chunk, *self._array.shape[1:]), self._dtype)
            np.concatenate(self._pending, out=last[: self._num_pending])
            self._write(last)
        if self._file is not None:
            self._end_shard(self._file)

    def close(self) -> None:
        """Close the file, finished or not."""
        if self._file is not None:
            self._file.close()

    def _write(self, values: NDArray[Any]) -> None:
        values = np.ascontiguousarray(values, self._dtype)
        chunks = [values[at : at + self._chunk] for at in range(0, len(values), self._chunk)]
        for encoded in self._pool.map(self._encode, chunks):
            if self._file is None:
                self._file = self._begin_shard()
            self._index.append((self._file.tell(), len(encoded)))
            self._file.write(encoded)
            if len(self._index) == self._num_chunks:
                self._end_shard(self._file)

    def _begin_shard(self) -> BinaryIO:
        place = (self._num_shards, *(0 for _ in self._array.shape[1:]))
        key = self._array.metadata.encode_chunk_key(place)
        path = Path(self._array.store.root) / self._array.path / key
        path.parent.mkdir(parents=True, exist_ok=True)
        self._num_shards += 1
        return open(path, "xb")

    def _end_shard(self, file: BinaryIO) -> None:
        index = np.full((self._num_chunks, 2), np.iinfo(np.uint64).max, np.uint64)
        index[: len(self._index)] = self._index
        file.write(_encode_index(index))
        file.close()
        self._file, self._index = None, []


class TextWriter:
    """An array of strings. It is not sharded, because readers of whole columns would not
    benefit."""

    def __init__(self, group: Any, name: str, num_rows: int) -> None:
        from zarr.codecs import BloscCodec

        self._array = group.create_array(
            name,
            shape=(num_rows,),
            dtype=str,
            chunks=(max(1, min(num_rows, _TEXT_ROWS)),),
            compressors=BloscCodec(cname="lz4", clevel=3, shuffle="noshuffle"),
            attributes={"encoding-type": "string-array", "encoding-version": "0.2.0"},
        )
        self._pending: list[str] = []
        self._num_rows = 0

    def append(self, values: Lists) -> None:
        """Write the next strings."""
        self.extend(values.tolist())

    def extend(self, texts: Sequence[str]) -> None:
        """Write the next strings."""
        self._pending += texts
        while len(self._pending) >= _TEXT_ROWS:
            self._write(_TEXT_ROWS)

    def finish(self) -> None:
        """Write the buffered entries."""
        self._write(len(self._pending))
        assert self._num_rows == self._array.shape[0]

    def close(self) -> None:
        """Do nothing: no file is open."""

    def _write(self, count: int) -> None:
        if count:
            stop = self._num_rows + count
            self._array[self._num_rows : stop] = np.array(self._pending[:count], object)
            del self._pending[:count]
            self._num_rows = stop


def _encode_index(index: NDArray[np.uint64]) -> bytes:
    """Return the index at the end of a shard: the numbers and their checksum."""
    from numcodecs.checksum32 import CRC32C

    return bytes(CRC32C(location="end").encode(index.astype("<u8")))
