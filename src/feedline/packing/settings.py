"""How to pack, checked."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from feedline.errors import InvalidValueError, check_choice, check_integer
from feedline.packing.formats import FORMATS, check_format
from feedline.packing.keys import Seed, check_seed
from feedline.packing.names import Selection, parse_columns
from feedline.packing.splits import parse_split
from feedline.store.columns import Column

__all__ = ["Settings", "make_settings"]

DEFAULT_CHUNK_BYTES = 2**26
DEFAULT_MEMORY = 2**29
_MIN_MEMORY = 2**20


@dataclass(frozen=True, kw_only=True)
class Settings:
    """The arguments of `pack`, checked, without the source and the target."""

    format: str
    selection: Selection | None
    chunk_samples: int | None
    chunk_bytes: int | None
    shuffle: bool
    seed: Seed
    shares: Mapping[str, Fraction]
    num_threads: int
    memory_budget: int

    @property
    def num_open_chunks(self) -> int:
        """How many chunks are filled at the same time: without a shuffle, one of each split."""
        return 1 if self.shuffle else max(1, len(self.shares))

    def num_samples_per_chunk(self, row_bytes: int) -> int:
        """Return the number of samples of a chunk, or raise if memory cannot hold enough of them.

        Half of the budget is for chunks: those being filled, and at least one being written.
        """
        row_bytes = max(1, row_bytes)
        max_bytes = self.memory_budget // (2 * (self.num_open_chunks + 1))
        wanted = self.chunk_bytes or min(DEFAULT_CHUNK_BYTES, max_bytes)
        num_samples = self.chunk_samples or max(1, wanted // row_bytes)
        if num_samples * row_bytes > max_bytes:
            raise InvalidValueError(
                f"chunks of {num_samples} samples have {num_samples * row_bytes} bytes and must "
                f"have at most {max_bytes}, as memory_budget={self.memory_budget} holds "
                f"{2 * (self.num_open_chunks + 1)} of them; use smaller chunks or a larger "
                "memory_budget"
            )
        return num_samples

    def num_waiting_chunks(self, chunk_bytes: int) -> int:
        """Return how many full chunks may be in memory at once."""
        free = self.memory_budget // 2 // max(1, chunk_bytes) - self.num_open_chunks
        return max(1, min(self.num_threads + 1, free))

    def describe(self, source: Any, columns: list[Column], chunk_samples: int) -> dict[str, Any]:
        """Return as JSON values all that the bytes of the result depend on."""
        seed = self.seed
        return {
            "source": source,
            "format": self.format,
            "columns": [column.describe() for column in columns],
            "selection": self.selection,
            "chunk_samples": chunk_samples,
            "shuffle": self.shuffle,
            # Python refuses to write very long integers in decimal.
            "seed": seed if isinstance(seed, str) or seed.bit_length() < 4096 else f"{seed:#x}",
            "split": {name: str(share) for name, share in self.shares.items()},
        }


def make_settings(
    *,
    format: str,
    columns: Any,
    chunk_samples: int | None,
    chunk_bytes: int | None,
    shuffle: bool,
    seed: Any,
    split: Any,
    num_threads: int | None,
    memory_budget: int,
) -> Settings:
    """Return the arguments of `pack`, checked, or raise."""
    if chunk_samples is not None and chunk_bytes is not None:
        raise InvalidValueError(
            f"chunk_samples={chunk_samples!r} and chunk_bytes={chunk_bytes!r} are both given and "
            "must not be; give one of them"
        )
    if num_threads is None:
        num_threads = os.cpu_count() or 1
    check_format(check_choice("format", format, FORMATS))
    return Settings(
        format=format,
        selection=parse_columns(columns),
        chunk_samples=_check_optional("chunk_samples", chunk_samples),
        chunk_bytes=_check_optional("chunk_bytes", chunk_bytes),
        shuffle=bool(shuffle),
        seed=check_seed(seed),
        shares=parse_split(split),
        num_threads=check_integer("num_threads", num_threads, 1, 1024),
        memory_budget=check_integer("memory_budget", memory_budget, _MIN_MEMORY),
    )


def _check_optional(name: str, value: Any) -> int | None:
    return None if value is None else check_integer(name, value, 1, 2**62)
