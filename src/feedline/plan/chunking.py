"""How a dataset is cut into chunks: all of one size, or each of its own."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray

from feedline.errors import InvalidValueError, check_integer
from feedline.plan.fingerprint import digest_array
from feedline.plan.orders import Indices, check_index_list
from feedline.plan.permutation import MAX_SIZE, Permutation

__all__ = ["Chunking", "EqualChunks", "Slots", "UnequalChunks"]


class Slots(Protocol):
    """Chunks laid one after another in some order; slot s holds the s-th of them."""

    def starts(self, slots: Indices) -> Indices:
        """Return where each slot begins; slot `num_chunks` begins at the end."""

    def slots_of(self, places: Indices) -> Indices:
        """Return the slot that holds each place."""


class Chunking(Protocol):
    """A dataset cut into chunks."""

    @property
    def num_samples(self) -> int:
        """The number of samples in all chunks together."""

    @property
    def num_chunks(self) -> int:
        """The number of chunks."""

    def rows_of(self, indices: Indices) -> tuple[Indices, Indices]:
        """Return the chunk that holds each index, and its row in there."""

    def starts(self, chunks: Indices) -> Indices:
        """Return the first index of each chunk."""

    def slots(self, permutation: Permutation | None) -> Slots:
        """Return the chunks laid out in the order of `permutation`."""

    def describe(self) -> dict[str, Any]:
        """Return the chunking as JSON values."""


@dataclass(frozen=True, kw_only=True)
class EqualChunks:
    """Chunks of one size; the last one holds what is left.

    Examples:
        >>> chunks = EqualChunks(num_samples=10, chunk_size=4)
        >>> chunks.num_chunks
        3
    """

    num_samples: int
    chunk_size: int

    def __post_init__(self) -> None:
        check_integer("num_samples", self.num_samples, 1, MAX_SIZE)
        check_integer("chunk_size", self.chunk_size, 1, MAX_SIZE)

    @property
    def num_chunks(self) -> int:
        return -(-self.num_samples // self.chunk_size)

    def rows_of(self, indices: Indices) -> tuple[Indices, Indices]:
        chunks = indices // self.chunk_size
        return chunks, indices - chunks * self.chunk_size

    def starts(self, chunks: Indices) -> Indices:
        return chunks * self.chunk_size

    def slots(self, permutation: Permutation | None) -> Slots:
        last = self.num_chunks - 1
        if permutation is not None:
            last = int(permutation.inverse(np.array([last], dtype=np.int64))[0])
        return _EqualSlots(self, last)

    def describe(self) -> dict[str, Any]:
        return {
            "kind": "equal",
            "num_samples": self.num_samples,
            "chunk_size": self.chunk_size,
        }


@dataclass(frozen=True, eq=False)
class UnequalChunks:
    """Chunks of any sizes, empty ones included; costs 8 bytes a chunk.

    Examples:
        >>> chunks = UnequalChunks([3, 0, 2])
        >>> [part.tolist() for part in chunks.rows_of(np.array([2, 3]))]
        [[0, 2], [2, 0]]
    """

    sizes: ArrayLike

    def __post_init__(self) -> None:
        sizes = check_index_list("sizes", self.sizes)
        if sizes.size == 0 or sizes.sum(dtype=np.float64) > MAX_SIZE or sizes.sum() < 1:
            raise InvalidValueError(
                f"sizes has {sizes.size} chunks with {sizes.sum()} samples but must have at least "
                "one sample and fewer than 2**63"
            )
        object.__setattr__(self, "sizes", sizes)

    @cached_property
    def _edges(self) -> NDArray[np.int64]:
        return _edges_of(np.asarray(self.sizes))

    @property
    def num_samples(self) -> int:
        return int(self._edges[-1])

    @property
    def num_chunks(self) -> int:
        return len(self._edges) - 1

    def rows_of(self, indices: Indices) -> tuple[Indices, Indices]:
        chunks = np.searchsorted(self._edges, indices, side="right") - 1
        return chunks, indices - self._edges[chunks]

    def starts(self, chunks: Indices) -> Indices:
        return self._edges[chunks]

    def slots(self, permutation: Permutation | None) -> Slots:
        if permutation is None:
            return _UnequalSlots(self._edges)
        return _UnequalSlots(
            _edges_of(np.asarray(self.sizes)[permutation.forward(np.arange(self.num_chunks))])
        )

    def describe(self) -> dict[str, Any]:
        return {"kind": "unequal", "sizes": self._digest}

    @cached_property
    def _digest(self) -> dict[str, Any]:
        return digest_array(np.asarray(self.sizes))


def _edges_of(sizes: NDArray[np.int64]) -> NDArray[np.int64]:
    edges = np.zeros(len(sizes) + 1, dtype=np.int64)
    np.cumsum(sizes, out=edges[1:])
    return edges


class _EqualSlots:
    """All slots are full but one, which holds the last chunk."""

    def __init__(self, chunks: EqualChunks, last_slot: int) -> None:
        self._size = chunks.chunk_size
        self._last_slot = last_slot
        self._missing = chunks.num_chunks * chunks.chunk_size - chunks.num_samples
        self._after_last = (last_slot + 1) * chunks.chunk_size - self._missing

    def starts(self, slots: Indices) -> Indices:
        return slots * self._size - self._missing * (slots > self._last_slot)

    def slots_of(self, places: Indices) -> Indices:
        return (places + self._missing * (places >= self._after_last)) // self._size


class _UnequalSlots:
    def __init__(self, edges: NDArray[np.int64]) -> None:
        self._edges = edges

    def starts(self, slots: Indices) -> Indices:
        return self._edges[slots]

    def slots_of(self, places: Indices) -> Indices:
        return np.searchsorted(self._edges, places, side="right") - 1
