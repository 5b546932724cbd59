"""How to pack, checked: the arguments of `pack`, and which columns are taken under which names."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from feedline.errors import InvalidValueError, check_choice, check_integer
from feedline.packing.formats import FORMATS, check_format
from feedline.packing.keys import Seed, check_seed
from feedline.packing.splits import parse_split
from feedline.store.columns import Column

DEFAULT_CHUNK_BYTES = 2**26
DEFAULT_MEMORY = 2**29
_MIN_MEMORY = 2**20

Selection = dict[str, str]
"""The name in the source of each column, by its new name."""


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
                f"chunk_samples={self.chunk_samples!r} and chunk_bytes={self.chunk_bytes!r} are "
                "both given and must not be; give one of them"
            )
        check_format(check_choice("format", self.format, FORMATS))
        self.selection = parse_columns(self.columns)
        for name in ("chunk_samples", "chunk_bytes"):
            if getattr(self, name) is not None:
                setattr(self, name, check_integer(name, getattr(self, name), 1, 2**62))
        self.seed = check_seed(self.seed)
        self.shares: Mapping[str, Fraction] = parse_split(self.split)
        threads = (os.cpu_count() or 1) if self.num_threads is None else self.num_threads
        self.threads = check_integer("num_threads", threads, 1, 1024)
        self.memory_budget = check_memory(self.memory_budget)
        #: How many chunks are filled at the same time: without a shuffle, one of each split.
        self.num_open_chunks = 1 if self.shuffle else max(1, len(self.shares))

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
        return max(1, min(self.threads + 1, free))

    def describe(self, source: Any, columns: list[Column], chunk_samples: int) -> dict[str, Any]:
        """Return as JSON values all that the bytes of the result depend on."""
        seed = self.seed
        return {
            "source": source,
            "format": self.format,
            "columns": [column.describe() for column in columns],
            "selection": self.selection,
            "chunk_samples": chunk_samples,
            "shuffle": bool(self.shuffle),
            # Python refuses to write very long integers in decimal.
            "seed": seed if isinstance(seed, str) or seed.bit_length() < 4096 else f"{seed:#x}",
            "split": {name: str(share) for name, share in self.shares.items()},
        }


def check_memory(memory_budget: Any) -> int:
    """Return a number of bytes that is enough to pack with, or raise."""
    return check_integer("memory_budget", memory_budget, _MIN_MEMORY)


def parse_columns(columns: Any) -> Selection | None:
    """Return the wanted columns, or None for all of them.

    Examples:
        >>> parse_columns({"sequences/item": "item"})
        {'sequences/item': 'item'}
    """
    if columns is None:
        return None
    if isinstance(columns, Mapping):
        pairs = list(columns.items())
    elif isinstance(columns, Iterable) and not isinstance(columns, str | bytes):
        names = list(columns)
        pairs = list(zip(names, names, strict=True))
    else:
        raise InvalidValueError(
            f"columns={columns!r:.80} must be a list of names, or a mapping of new names to names "
            "in the source"
        )
    if not pairs:
        raise InvalidValueError("columns is empty and must have at least 1 name; None takes all")
    for new, old in pairs:
        if not isinstance(old, str):
            raise InvalidValueError(f"columns has {old!r:.80}, which must be a string")
        check_name(new)
    selection = dict(pairs)
    if len(selection) != len(pairs):
        twice = next(new for new, _ in pairs if sum(new == other for other, _ in pairs) > 1)
        raise InvalidValueError(f"columns has {twice!r:.80} twice; name each column once")
    _check_overlaps(selection)
    return selection


def select(selection: Selection | None, found: Iterable[str], where: str) -> Selection:
    """Return the columns to take out of those that a source has, or raise."""
    available = list(found)
    if not available:
        raise InvalidValueError(f"{where}: has 0 columns and must have at least 1")
    if selection is None:
        if len(set(available)) != len(available):
            twice = next(name for name in available if available.count(name) > 1)
            raise InvalidValueError(
                f"{where}: has column {twice!r:.80} twice; choose others by columns=[…]"
            )
        for name in available:
            check_name(name)
        _check_overlaps(available)
        return {name: name for name in available}
    for old in selection.values():
        if available.count(old) != 1:
            listed = ", ".join(repr(name) for name in available[:20])
            raise InvalidValueError(
                f"{where}: has {available.count(old)} columns named {old!r:.80} and must have 1; "
                f"it has {listed:.500}"
            )
    return selection


def old_names(selection: Selection) -> list[str]:
    """Return the names in the source, each once; a column may be taken under several names."""
    return list(dict.fromkeys(selection.values()))


def check_name(name: Any) -> str:
    """Return the name of a column if chunks can have it; in some it is the name of a file."""
    parts = name.split("/") if isinstance(name, str) else [""]
    if any(not part or part.startswith(".") or set(part) & set("\\\0:") for part in parts):
        raise InvalidValueError(
            f"column name {name!r:.80} must be like 'item' or 'sequences/item': parts that are not "
            "empty and do not begin with a dot, no backslashes or colons; rename it by "
            "columns={'new name': 'name in the source'}"
        )
    if name == "__metadata__":
        raise InvalidValueError(f"column name {name!r} is reserved; rename it by columns={{…}}")
    return str(name)


def _check_overlaps(names: Iterable[str]) -> None:
    # As files, column "a" is a.npy, which column "a.npy/b" would need to be a folder.
    files = {f"{name}.npy" for name in names}
    for name in names:
        parts = name.split("/")
        if any("/".join(parts[:count]) in files for count in range(1, len(parts))):
            raise InvalidValueError(f"column name {name!r:.80} collides with another; rename it")
