"""Who got what when: some of the ranks in some of the steps, of a plan or of a run's logs.

A trace has at most a few thousand cells, however long the run is. So everything that a report draws
takes the same time for a thousand samples and for a trillion.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from feedline.runs.run_config_parts import SourceInfo

__all__ = [
    "Cell",
    "Column",
    "Covered",
    "Stretch",
    "Trace",
    "num_ranks",
    "share_columns",
    "spread",
    "spread_ranks",
]

Ids = NDArray[np.int64]

MOST_COLUMNS = 180
MOST_ROWS = 48


class Stretch(NamedTuple):
    """Steps `[first, end)` on one number of ranks. Those from `counted_end` on were thrown away,
    because the run went on from a checkpoint before them."""

    name: str
    world_size: int
    first: int
    counted_end: int
    end: int


class Column(NamedTuple):
    """One step of one stretch."""

    stretch: int
    epoch: int
    step: int


class Cell(NamedTuple):
    """What one rank got in one step: real samples, in the order in which they came.

    Of a very large step `ids` has the first ones only; `num_real` is None where the others were not
    even counted.
    """

    ids: Ids
    num_real: int | None
    num_padded: int = 0
    num_batches: int = 1
    bucket: int | None = None
    wait: float | None = None

    @property
    def num_known(self) -> int:
        """The number of real samples, as far as they were counted."""
        return len(self.ids) if self.num_real is None else self.num_real


class Covered(NamedTuple):
    """How many positions of an epoch are consumed before a step, and how many different samples
    that were, where it is known."""

    epoch: int
    step: int
    num_consumed: int
    num_different: int | None = None


@dataclass(frozen=True, kw_only=True)
class Trace:
    """The cells of a run that were looked at, by column and rank.

    `num_positions` is the length of an epoch. `is_whole` says that no step and no rank was left
    out.
    """

    sources: tuple[SourceInfo, ...]
    stretches: tuple[Stretch, ...]
    columns: tuple[Column, ...]
    ranks: tuple[int, ...]
    cells: Mapping[tuple[int, int], Cell]
    coverage: tuple[Covered, ...]
    num_positions: int
    is_whole: bool

    @property
    def num_samples(self) -> int:
        """The number of samples of all sources."""
        return sum(source.num_samples for source in self.sources)

    def is_counted(self, column: Column) -> bool:
        """Return whether a column counts."""
        return column.step < self.stretches[column.stretch].counted_end

    def ids_of(self, number: int) -> Ids:
        """Return the samples of a column, in the order of the plan: slot by slot, rank by rank."""
        parts = [
            self.cells[number, rank].ids for rank in self.ranks if (number, rank) in self.cells
        ]
        if not parts:
            return np.empty(0, dtype=np.int64)
        if len({len(part) for part in parts}) == 1:
            return np.stack(parts, axis=1).ravel()
        slots = np.concatenate([np.arange(len(part)) for part in parts])
        return np.concatenate(parts)[np.argsort(slots, kind="stable")]

    def sources_of(self, ids: Ids) -> Ids:
        """Return the number of the source of each sample."""
        firsts = np.array([source.first_index for source in self.sources], dtype=np.int64)
        return np.searchsorted(firsts, ids, side="right").astype(np.int64) - 1


def spread(first: int, end: int, most: int) -> list[int]:
    """Return at most `most` numbers of a range, evenly, with the first and the last.

    Examples:
        >>> spread(0, 5, 10), spread(0, 100, 3)
        ([0, 1, 2, 3, 4], [0, 50, 99])
    """
    count = end - first
    if count <= most:
        return list(range(first, end))
    return sorted({first + round(n * (count - 1) / max(1, most - 1)) for n in range(most)})


def spread_ranks(world_sizes: Iterable[int]) -> list[int]:
    """Return the ranks to look at: spread evenly, and the last one of each world size."""
    sizes = sorted(set(world_sizes))
    chosen = set(spread(0, sizes[-1], MOST_ROWS))
    for size in sizes[-MOST_ROWS // 4 :]:
        chosen.add(size - 1)
    return sorted(chosen)


def num_ranks(count: int) -> str:
    """Return a number of ranks in words."""
    return f"{count:,} rank" + ("" if count == 1 else "s")


def share_columns(lengths: Sequence[int]) -> list[int]:
    """Return how many columns each stretch gets: in proportion, and at least two."""
    total = max(1, sum(lengths))
    return [min(length, max(2, MOST_COLUMNS * length // total)) for length in lengths]
