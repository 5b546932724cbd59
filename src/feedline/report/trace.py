"""What ranks got at which step: some ranks and some steps, of a plan or of a run's logs.

A trace has at most a few thousand cells for any length of run. So a report takes the same time for
a thousand samples and for a trillion.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from feedline.runs.plan_report import spread
from feedline.runs.run_config_data import SourceInfo

Ids = NDArray[np.int64]

MOST_COLUMNS = 180
MOST_ROWS = 48


class Stretch(NamedTuple):
    """Steps `[first, end)` on one number of ranks. Those from `counted_end` on were discarded,
    because the run resumed from a checkpoint before them."""

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

    For a very large step `ids` has only the first samples; `num_real` is None if the others were
    not counted, and then `num_padded` and `num_batches` cover only the first.
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

    @property
    def is_whole(self) -> bool:
        """Whether `ids` has all real samples."""
        return self.num_real == len(self.ids)


class Covered(NamedTuple):
    """The number of positions of an epoch consumed before a step, and the number of different
    samples among them, if known."""

    epoch: int
    step: int
    num_consumed: int
    num_different: int | None = None


@dataclass(frozen=True, kw_only=True)
class Trace:
    """The sampled cells of a run, by column and rank.

    `num_positions` is the length of an epoch. `is_whole` is true if all steps and ranks are
    included. With very many epochs, `coverage` has some of them.
    """

    sources: tuple[SourceInfo, ...]
    stretches: tuple[Stretch, ...]
    columns: tuple[Column, ...]
    ranks: tuple[int, ...]
    cells: Mapping[tuple[int, int], Cell]
    coverage: tuple[Covered, ...]
    num_positions: int
    is_whole: bool
    num_epochs: int = 1

    @property
    def num_samples(self) -> int:
        """The number of samples of all sources."""
        return sum(source.num_samples for source in self.sources)

    def is_counted(self, column: Column) -> bool:
        """Return whether a column counts."""
        return column.step < self.stretches[column.stretch].counted_end

    @property
    def counted(self) -> list[int]:
        """The numbers of the columns that count."""
        return [n for n, column in enumerate(self.columns) if self.is_counted(column)]

    def cells_in(self, number: int) -> dict[int, Cell]:
        """Return what each rank got in a column, where that is known."""
        found = {rank: self.cells.get((number, rank)) for rank in self.ranks}
        return {rank: cell for rank, cell in found.items() if cell is not None}

    def ids_of(self, number: int) -> Ids:
        """Return the samples of a column, in the order of the plan: slot by slot, rank by rank."""
        parts = [np.empty(0, np.int64), *(cell.ids for cell in self.cells_in(number).values())]
        slots = np.concatenate([np.arange(len(part)) for part in parts])
        return np.concatenate(parts)[np.argsort(slots, kind="stable")]

    def groups(self, most: int) -> list[list[int]]:
        """Return the columns that count, in at most `most` groups of the same number of them; only
        the last may have fewer."""
        counted = self.counted
        width = max(1, -(-len(counted) // most))
        return [list(counted[first : first + width]) for first in range(0, len(counted), width)]

    @property
    def firsts(self) -> Ids:
        """The first index of each source."""
        return np.array([source.first_index for source in self.sources], dtype=np.int64)

    def known(self, ids: Ids) -> Ids:
        """Return the ids that are samples of the data."""
        return ids[(ids >= 0) & (ids < self.num_samples)]

    def sources_of(self, ids: Ids) -> Ids:
        """Return the number of the source of each sample, all of which are known."""
        return np.searchsorted(self.firsts, ids, side="right").astype(np.int64) - 1

    def counts_over_time(self, groups: Sequence[Sequence[int]], firsts: Ids) -> Ids:
        """Return how many samples each group of columns has of each part of the data.

        Parts begin at `firsts`. Of parts that begin together, the last has the samples.
        """
        counts = np.empty((len(groups), len(firsts)), dtype=np.int64)
        for number, group in enumerate(groups):
            ids = self.known(np.concatenate([self.ids_of(place) for place in group]))
            parts = np.searchsorted(firsts, ids, side="right") - 1
            counts[number] = np.bincount(parts, minlength=len(firsts))
        return counts

    def position_of(self, epoch: int, step: int) -> int:
        """Return about how many positions of an epoch are consumed before a step."""
        own = [point for point in self.coverage if point.epoch == epoch]
        steps, counts = [point.step for point in own], [point.num_consumed for point in own]
        return int(np.interp(step, steps, counts)) if own else 0


def spread_ranks(world_sizes: Iterable[int], most: int = MOST_ROWS) -> list[int]:
    """Return the ranks to look at: spread evenly, and the first and the last of each world size."""
    sizes = sorted(set(world_sizes))
    chosen = set(spread(0, sizes[-1], most))
    for size in sizes[-most // 4 :]:
        chosen |= set(spread(0, size, 4))
    return sorted(chosen)


def share_columns(lengths: Sequence[int], most: int = MOST_COLUMNS) -> list[int]:
    """Return how many columns each stretch gets: in proportion, and at least two.

    With very many stretches some get none, because a page could not show them.
    """
    total = max(1, sum(lengths))
    seen = set(spread(0, len(lengths), most // 2))
    return [
        min(length, max(2 if number in seen else 0, most * length // total))
        for number, length in enumerate(lengths)
    ]
