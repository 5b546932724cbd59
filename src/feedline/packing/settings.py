"""The arguments of `pack`, checked."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any

from feedline.errors import InvalidValueError, check_choice, check_integer
from feedline.packing.formats import FORMATS
from feedline.packing.selection import parse_columns
from feedline.packing.splits import parse_split
from feedline.plan.seeds import Seed, check_seed, describe_seed
from feedline.store.columns import Column
from feedline.words import several

DEFAULT_CHUNK_BYTES = 2**26
DEFAULT_MEMORY = 2**29
_MIN_MEMORY = 2**20


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
    num_threads: int | None
    memory_budget: int

    def __post_init__(self) -> None:
        if self.chunk_samples is not None and self.chunk_bytes is not None:
            raise InvalidValueError(
                f"chunk_samples={self.chunk_samples!r} and chunk_bytes={self.chunk_bytes!r} cannot "
                "be used together; pass one of them"
            )
        check_choice("format", self.format, FORMATS)
        self.selection = parse_columns(self.columns)
        for name in ("chunk_samples", "chunk_bytes"):
            if getattr(self, name) is not None:
                setattr(self, name, check_integer(name, getattr(self, name), 1, 2**62))
        self.seed = check_seed(self.seed)
        self.shares = parse_split(self.split)
        threads = (os.cpu_count() or 1) if self.num_threads is None else self.num_threads
        self.threads = check_integer("num_threads", threads, 1, 1024)
        self.memory_budget = check_memory(self.memory_budget)
        #: How many chunks are filled at the same time: without a shuffle, one of each split.
        self.num_open_chunks = 1 if self.shuffle else max(1, len(self.shares))

    def num_samples_per_chunk(self, row_bytes: int) -> int:
        """Return the number of samples in a chunk, or raise if memory cannot hold enough chunks.

        Half of the budget is for chunks: those being filled, and at least one being written.
        """
        row_bytes = max(1, row_bytes)
        max_bytes = self.memory_budget // (2 * (self.num_open_chunks + 1))
        wanted = self.chunk_bytes or min(DEFAULT_CHUNK_BYTES, max_bytes)
        num_samples = self.chunk_samples or max(1, wanted // row_bytes)
        if num_samples * row_bytes > max_bytes:
            raise InvalidValueError(
                f"chunks of {several(num_samples, 'sample')} have "
                f"{several(num_samples * row_bytes, 'byte')} and must have at most {max_bytes}, as "
                f"memory_budget={self.memory_budget} holds {2 * (self.num_open_chunks + 1)} of "
                "them; use smaller chunks or a larger memory_budget"
            )
        return num_samples

    def num_waiting_chunks(self, chunk_bytes: int) -> int:
        """Return the number of full chunks that may be in memory at once."""
        free = self.memory_budget // 2 // max(1, chunk_bytes) - self.num_open_chunks
        return max(1, min(self.threads + 1, free))

    def describe(self, source: Any, columns: list[Column], chunk_samples: int) -> dict[str, Any]:
        """Return everything that decides the bytes of the result, as JSON values."""
        return {
            "source": source,
            "format": self.format,
            "columns": [column.describe() for column in columns],
            "selection": self.selection,
            "chunk_samples": chunk_samples,
            "shuffle": bool(self.shuffle),
            "seed": describe_seed(self.seed),
            "split": {name: str(share) for name, share in self.shares.items()},
        }


def check_memory(memory_budget: Any) -> int:
    """Return a number of bytes that is enough to pack with, or raise."""
    return check_integer("memory_budget", memory_budget, _MIN_MEMORY)
