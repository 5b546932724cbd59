"""How a dataset is cut into chunks: of one size, or of different sizes."""

from __future__ import annotations

from dataclasses import InitVar, dataclass, field
from typing import Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import ArrayLike, NDArray

from feedline.errors import InvalidValueError
from feedline.lazy import lazy
from feedline.plan.frozen import described, digest_array, store, store_integers
from feedline.plan.orders import Indices, check_index_list
from feedline.plan.permutation import MAX_SIZE, KeepLast, Permutation
from feedline.words import several

# The starts of this many slots are kept, a mebibyte at most; of more, those of every 16th.
_MOST_LISTED = 2**17
_SLOTS_PER_GROUP = 16
_GROUPS_AT_ONCE = 2**11


class Slots(Protocol):
    """Chunks laid one after another in some order; slot s holds the s-th of them."""

    def starts(self, slots: Indices) -> Indices:
        """Return where each slot begins; slot `num_chunks` begins at the end."""

    def slots_of(self, places: Indices) -> Indices:
        """Return the slot that holds each place."""

    def start(self, slot: int) -> int:
        """Return where one slot begins."""

    def slot_of(self, place: int) -> int:
        """Return the slot that holds one place."""


@runtime_checkable
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

    def slots(self, permutation: Permutation | KeepLast | None) -> Slots:
        """Return the chunks laid out in the order of `permutation`."""

    def describe(self) -> dict[str, Any]:
        """Return the chunking as JSON values."""


@dataclass(frozen=True, kw_only=True)
class EqualChunks:
    """Chunks of one size; the last one holds what is left.

    Args:
        num_samples: The number of samples in all chunks together.
        chunk_size: The number of samples of a chunk.

    Examples:
        >>> chunks = EqualChunks(num_samples=10, chunk_size=4)
        >>> chunks.num_chunks
        3
    """

    num_samples: int
    chunk_size: int

    def __post_init__(self) -> None:
        store_integers(self, "num_samples", "chunk_size", low=1, high=MAX_SIZE)

    @property
    def num_chunks(self) -> int:
        return -(-self.num_samples // self.chunk_size)

    def rows_of(self, indices: Indices) -> tuple[Indices, Indices]:
        chunks = indices // self.chunk_size
        return chunks, indices - chunks * self.chunk_size

    def starts(self, chunks: Indices) -> Indices:
        return chunks * self.chunk_size

    def slots(self, permutation: Permutation | KeepLast | None) -> Slots:
        last = self.num_chunks - 1
        if permutation is not None:
            last = int(permutation.inverse(np.array([last], dtype=np.int64))[0])
        return _EqualSlots(self, last)

    def describe(self) -> dict[str, Any]:
        return described(self, kind="equal")


@dataclass(frozen=True, eq=False, repr=False)
class UnequalChunks:
    """Chunks of any sizes, empty ones included; costs 8 bytes a chunk.

    Args:
        sizes: The number of samples of each chunk.

    Examples:
        >>> chunks = UnequalChunks([3, 0, 2])
        >>> [part.tolist() for part in chunks.rows_of(np.array([2, 3]))]
        [[0, 2], [2, 0]]
    """

    sizes: InitVar[ArrayLike]
    _edges: NDArray[np.int64] = field(init=False, repr=False)

    def __post_init__(self, given: ArrayLike) -> None:
        sizes = check_index_list("sizes", given)
        if sizes.size == 0 or sizes.sum(dtype=np.float64) > MAX_SIZE or sizes.sum() < 1:
            raise InvalidValueError(
                f"sizes has {sizes.size} chunks with {sizes.sum()} samples but must have at least "
                "one sample and fewer than 2**63"
            )
        edges = np.zeros(len(sizes) + 1, dtype=np.int64)
        np.cumsum(sizes, out=edges[1:])
        store(self, _edges=edges)

    @property
    def num_samples(self) -> int:
        return int(self._edges[-1])

    @property
    def num_chunks(self) -> int:
        return len(self._edges) - 1

    @property
    def num_listed(self) -> int:
        """The number of entries that are held, 8 bytes each."""
        return self.num_chunks + 1

    def rows_of(self, indices: Indices) -> tuple[Indices, Indices]:
        chunks = np.searchsorted(self._edges, indices, side="right") - 1
        return chunks, indices - self._edges[chunks]

    def starts(self, chunks: Indices) -> Indices:
        return self._edges[chunks]

    def slots(self, permutation: Permutation | KeepLast | None) -> Slots:
        if permutation is None:
            return _ListedSlots(self._edges)
        if self.num_chunks > _MOST_LISTED:
            return _ShuffledSlots(self._edges, permutation)
        chunks = permutation.forward(np.arange(self.num_chunks))
        edges = np.zeros(self.num_chunks + 1, dtype=np.int64)
        np.cumsum(self._edges[chunks + 1] - self._edges[chunks], out=edges[1:])
        return _ListedSlots(edges)

    def describe(self) -> dict[str, Any]:
        return {"kind": "unequal", "sizes": self._digest}

    def __repr__(self) -> str:
        chunks = several(self.num_chunks, "chunk")
        return f"UnequalChunks({chunks}, {several(self.num_samples, 'sample')})"

    @lazy
    def _digest(self) -> dict[str, Any]:
        return digest_array(np.diff(self._edges))


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
        # Counted from the end of the last chunk, because adding what it lacks could overflow.
        later = (places - self._after_last) // self._size + (self._last_slot + 1)
        return np.where(places < self._after_last, places // self._size, later)

    def start(self, slot: int) -> int:
        return slot * self._size - self._missing * (slot > self._last_slot)

    def slot_of(self, place: int) -> int:
        if place < self._after_last:
            return place // self._size
        return (place - self._after_last) // self._size + self._last_slot + 1


class _ListedSlots:
    """Unequal chunks, with the start of every slot at hand."""

    def __init__(self, edges: NDArray[np.int64]) -> None:
        self._edges = edges

    def starts(self, slots: Indices) -> Indices:
        begun: Indices = self._edges[slots]
        return begun

    def slots_of(self, places: Indices) -> Indices:
        return np.searchsorted(self._edges, places, side="right") - 1

    def start(self, slot: int) -> int:
        return int(self._edges[slot])

    def slot_of(self, place: int) -> int:
        return int(np.searchsorted(self._edges, place, side="right")) - 1


class _ShuffledSlots:
    """Very many unequal chunks in a shuffled order.

    Only the start of every 16th slot is kept; those between are summed up when they are needed.
    """

    def __init__(self, edges: NDArray[np.int64], permutation: Permutation | KeepLast) -> None:
        self._edges = edges
        self._permutation = permutation
        num_groups = -(-permutation.n // _SLOTS_PER_GROUP)
        self._starts = np.zeros(num_groups + 1, dtype=np.int64)
        for first in range(0, num_groups, _GROUPS_AT_ONCE):
            groups = np.arange(first, min(first + _GROUPS_AT_ONCE, num_groups))
            self._starts[groups + 1] = self._sizes_in(groups).sum(axis=1)
        np.cumsum(self._starts, out=self._starts)

    def starts(self, slots: Indices) -> Indices:
        groups = slots // _SLOTS_PER_GROUP
        if not np.any(slots - groups * _SLOTS_PER_GROUP):
            at_once: Indices = self._starts[groups]
            return at_once
        groups = np.minimum(groups, len(self._starts) - 2)
        distinct, which = np.unique(groups, return_inverse=True)
        begun: Indices = self._edges_in(distinct)[which, slots - groups * _SLOTS_PER_GROUP]
        return begun

    def slots_of(self, places: Indices) -> Indices:
        distinct = np.unique(np.searchsorted(self._starts, places, side="right") - 1)
        begun = self._edges_in(distinct)[:, :-1].ravel()
        latest = np.searchsorted(begun, places, side="right") - 1
        return distinct[latest // _SLOTS_PER_GROUP] * _SLOTS_PER_GROUP + latest % _SLOTS_PER_GROUP

    def start(self, slot: int) -> int:
        return int(self.starts(np.array([slot], dtype=np.int64))[0])

    def slot_of(self, place: int) -> int:
        return int(self.slots_of(np.array([place], dtype=np.int64))[0])

    def _edges_in(self, groups: Indices) -> Indices:
        """Return a row per group: where each of its slots begins, and where the last one ends."""
        sizes = self._sizes_in(groups)
        edges = np.zeros((len(groups), _SLOTS_PER_GROUP + 1), dtype=np.int64)
        np.cumsum(sizes, axis=1, out=edges[:, 1:])
        return edges + self._starts[groups][:, None]

    def _sizes_in(self, groups: Indices) -> Indices:
        """Return a row per group: the sizes of its slots, zero beyond the last slot."""
        slots = groups[:, None] * _SLOTS_PER_GROUP + np.arange(_SLOTS_PER_GROUP)
        inside = slots < self._permutation.n
        chunks = np.zeros(slots.shape, dtype=np.int64)
        chunks[inside] = self._permutation.forward(slots[inside])
        return np.where(inside, self._edges[chunks + 1] - self._edges[chunks], 0)
