"""The arguments of `pack`, checked."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from feedline.errors import InvalidValueError, check_choice, check_integer
from feedline.packing.formats import FORMATS
from feedline.packing.selection import parse_columns
from feedline.packing.splits import parse_split
from feedline.plan.seeds import Seed, check_seed, describe_seed
from feedline.store.columns import Column
from feedline.store.extras import import_ray
from feedline.words import several

ENGINES = ("local", "ray")
DEFAULT_CHUNK_BYTES = 2**26
DEFAULT_MEMORY = 2**29
_MIN_MEMORY = 2**20


@dataclass(frozen=True, kw_only=True)
class Cut:
    """Where chunks end: after a number of samples, or before one that would make them too large.

    Args:
        num_samples: The number of samples in a chunk; None if bytes decide.
        num_bytes: The most bytes of a chunk, unless its only sample has more; if samples decide,
            about the bytes of a chunk.
        max_bytes: The most bytes that memory can hold.
        why: Where that comes from, for messages.
    """

    num_samples: int | None
    num_bytes: int
    max_bytes: int
    why: str

    def check_bytes(self, num_bytes: int) -> None:
        """Raise if memory cannot hold chunks of so many bytes."""
        if num_bytes > self.max_bytes:
            many = "" if self.num_samples is None else f" of {several(self.num_samples, 'sample')}"
            raise InvalidValueError(
                f"chunks{many} have {several(num_bytes, 'byte')} and must have at most "
                f"{self.max_bytes}, as {self.why}; use smaller chunks or a larger memory_budget"
            )

    def num_that_fit(self, sizes: NDArray[np.int64], num_held: int, num_bytes_held: int) -> int:
        """Return how many of the next rows go to a chunk that holds some already."""
        if self.num_samples is not None:
            return min(len(sizes), self.num_samples - num_held)
        ends = num_bytes_held + np.cumsum(sizes)
        count = int(np.searchsorted(ends, self.num_bytes, side="right"))
        return count if count or num_held else 1


@dataclass(kw_only=True)
class Settings:
    """The arguments of `pack`, without the source and the target; making it checks them."""

    format: str
    columns: Any
    chunk_samples: int | None
    chunk_bytes: int | None
    shuffle: bool
    seed: Seed
    split: Any
    engine: str
    num_threads: int | None
    memory_budget: int

    def __post_init__(self) -> None:
        if self.chunk_samples is not None and self.chunk_bytes is not None:
            raise InvalidValueError(
                f"chunk_samples={self.chunk_samples!r} and chunk_bytes={self.chunk_bytes!r} cannot "
                "be used together; pass one of them"
            )
        check_choice("format", self.format, FORMATS)
        if check_choice("engine", self.engine, ENGINES) == "ray":
            import_ray()
        self.selection = parse_columns(self.columns)
        for name in ("chunk_samples", "chunk_bytes"):
            if getattr(self, name) is not None:
                setattr(self, name, check_integer(name, getattr(self, name), 1, 2**62))
        self.seed = check_seed(self.seed)
        self.shares = parse_split(self.split)
        threads = (os.cpu_count() or 1) if self.num_threads is None else self.num_threads
        self.threads = check_integer("num_threads", threads, 1, 1024)
        # A task on a cluster has one core.
        self.reading_threads = 1 if self.engine == "ray" else self.threads
        self.memory_budget = check_memory(self.memory_budget)
        #: How many chunks are filled at the same time: without a shuffle, one of each split.
        self.num_open_chunks = 1 if self.shuffle else max(1, len(self.shares))

    def cut(self, columns: list[Column]) -> Cut:
        """Return where chunks end, or raise if memory cannot hold enough chunks.

        Half of the budget is for chunks: those being filled, and at least one being written. Lists
        are joined when they are written, which takes the room of one more.
        """
        has_lists = any(column.has_lists for column in columns)
        row_bytes = max(1, sum(8 if c.has_lists else c.row_bytes for c in columns))
        num_parts = 2 * (self.num_open_chunks + 1 + has_lists)
        max_bytes = self.memory_budget // num_parts
        wanted = self.chunk_bytes or min(DEFAULT_CHUNK_BYTES, max_bytes)
        num_samples = self.chunk_samples or max(1, wanted // row_bytes)
        cut = Cut(
            num_samples=None if has_lists and self.chunk_samples is None else num_samples,
            num_bytes=wanted if has_lists else num_samples * row_bytes,
            max_bytes=max_bytes,
            why=f"memory_budget={self.memory_budget} holds {num_parts} of them",
        )
        if cut.num_samples is None:
            cut.check_bytes(wanted)
        else:
            cut.check_bytes(num_samples * row_bytes)
        return cut

    def num_waiting_chunks(self, cut: Cut) -> int:
        """Return the number of full chunks that may be in memory at once."""
        chunk_bytes = min(cut.num_bytes, cut.max_bytes)
        free = self.memory_budget // 2 // max(1, chunk_bytes) - self.num_open_chunks
        return max(1, min(self.threads + 1, free))

    def request(self, source: Any) -> dict[str, Any] | None:
        """Return what is asked for, as JSON values; None if the source is read only once."""
        if source.get("kind") == "records":
            return None
        return {
            "source": source,
            "format": self.format,
            "selection": self.selection,
            "chunks": [self.chunk_samples, self.chunk_bytes, self.memory_budget],
            "shuffle": bool(self.shuffle),
            "seed": describe_seed(self.seed),
            "split": {name: str(share) for name, share in self.shares.items()},
        }

    def describe(self, source: Any, columns: list[Column], cut: Cut) -> dict[str, Any]:
        """Return everything that decides the bytes of the result, as JSON values."""
        return {
            "source": source,
            "format": self.format,
            "columns": [column.describe() for column in columns],
            "selection": self.selection,
            "chunk_samples": cut.num_samples,
            "chunk_bytes": cut.num_bytes if cut.num_samples is None else None,
            "shuffle": bool(self.shuffle),
            "seed": describe_seed(self.seed),
            "split": {name: str(share) for name, share in self.shares.items()},
        }


def check_memory(memory_budget: Any) -> int:
    """Return a number of bytes that is enough to pack with, or raise."""
    return check_integer("memory_budget", memory_budget, _MIN_MEMORY)
