"""Files tied to ranks: rank r of W reads files r, r + W, r + 2W, … and no others.

Ranks then have unequal numbers of samples, so a strategy decides how many each rank gets:
`exact` requires equal numbers, `oversampling` repeats up to the largest, and
`undersampling` stops at the smallest. Another number of ranks would mean other files for each, so
an epoch can only resume on the same number of ranks.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from feedline.errors import (
    InvalidValueError,
    PlanMismatchError,
    check_choice,
    check_flag,
    check_integer,
)
from feedline.plan.batches import Block, Place, every_nth
from feedline.plan.chunking import UnequalChunks
from feedline.plan.draws import Draws
from feedline.plan.frozen import described, store
from feedline.plan.orders import EpochOrder, Indices, check_index_list
from feedline.plan.plan import Plan
from feedline.plan.seeds import Seed, check_seed, derive_key
from feedline.plan.shares import Share
from feedline.plan.versions import of_kind
from feedline.plan.windows import WindowOrder
from feedline.words import one_line, several

FILE_STRATEGIES = ("exact", "oversampling", "undersampling")
"""The strategy for ranks with unequal numbers of samples."""
_MAX_ORDERS = 64


@one_line
@dataclass(frozen=True, kw_only=True, eq=False)
class FileSharesPlan(Plan):
    """Every rank gets the samples of its own files; all ranks get equally many.

    Args:
        sizes: The number of samples in each file.
        strategy: `"exact"`, `"oversampling"` or `"undersampling"`.
        shuffle: Shuffle the files, and the samples in each file.
        seed: Any integer or string.
        names: The files' names, for messages.

    Examples:
        >>> plan = FileSharesPlan(sizes=[4, 2, 3], strategy="oversampling")
        >>> plan.target_samples(2), plan.segment(world_size=2, batch_size=2).num_padded
        (7, 5)
    """

    sizes: Sequence[int] | NDArray[np.int64]
    strategy: str
    shuffle: bool = True
    seed: Seed = 0
    names: Sequence[str] = ()
    chunks: UnequalChunks = field(init=False, repr=False)

    def __post_init__(self) -> None:
        check_choice("strategy", self.strategy, FILE_STRATEGIES)
        sizes = check_index_list("sizes", self.sizes).copy()
        sizes.flags.writeable = False
        shuffle = check_flag("shuffle", self.shuffle)
        store(self, shuffle=shuffle, seed=check_seed(self.seed))
        store(self, sizes=sizes, chunks=UnequalChunks(sizes))
        if len(self.names) not in (0, len(sizes)):
            raise InvalidValueError(
                f"names has {len(self.names)} names but must have {len(sizes)}, one for each file"
            )

    @property
    def num_indices(self) -> int:
        return self.chunks.num_samples

    def begin(self, epoch: int) -> FileSharesRest:
        return FileSharesRest(self, epoch)

    def describe(self) -> dict[str, Any]:
        chunks = self.chunks.describe()
        kind = of_kind("file shares", has_changed=bool(self.shuffle))
        return described(self, "sizes", "names", chunks=chunks, **kind)

    def files_of(self, rank: int, world_size: int) -> NDArray[np.int64]:
        """Return the files of a rank; when oversampling, a rank without files borrows one."""
        files = np.arange(rank, len(self.sizes), world_size)
        if len(files) == 0 and self.strategy == "oversampling":
            return np.array([rank % len(self.sizes)])
        return files

    def own_samples(self, world_size: int) -> list[int]:
        """Return the number of samples in the files of each rank, without borrowed files."""
        sizes = np.asarray(self.sizes)
        return [int(sizes[rank::world_size].sum()) for rank in range(world_size)]

    def target_samples(self, world_size: int) -> int:
        """Return the number of samples of every rank, or raise if it cannot be equal."""
        world_size = check_integer("world_size", world_size, 1, 2**31)
        counts = self.own_samples(world_size)
        if self.strategy == "exact" and len(set(counts)) > 1:
            raise InvalidValueError(self._explain_unequal(counts))
        empty = [rank for rank, count in enumerate(counts) if count == 0]
        if self.strategy == "oversampling":
            for rank in empty:
                if self.sizes[rank % len(self.sizes)] == 0:
                    raise InvalidValueError(
                        f"rank {rank} of {world_size} has only empty files, so it has no samples "
                        "to repeat; use fewer ranks or sampling_strategy='balanced'"
                    )
            return max(counts)
        if empty:
            raise InvalidValueError(
                f"world_size={world_size} leaves rank {_listed(empty)} without samples, because "
                f"there are {several(len(self.sizes), 'file')}; use at most that many ranks, or "
                "sampling_strategy='balanced', which splits the samples of all files"
            )
        return min(counts)

    def _explain_unequal(self, counts: list[int]) -> str:
        values, frequencies = np.unique(counts, return_counts=True)
        usual = int(values[np.argmax(frequencies)])
        lines = [
            f"sampling_strategy='exact' needs equally many samples on all {len(counts)} ranks, but "
            f"there are {len(values)} different numbers: {_listed(values.tolist())}. Most ranks "
            f"have {usual}. Use 'balanced', 'oversampling' or 'undersampling', or files of one "
            "size in a multiple of the number of ranks. The others:"
        ]
        names = self.names or [f"file {number}" for number in range(len(self.sizes))]
        for rank, count in enumerate(counts):
            if count != usual:
                files = self.files_of(rank, len(counts)).tolist()
                listed = ", ".join(f"{names[file]}: {int(self.sizes[file])}" for file in files)
                lines.append(f"rank {rank}: {several(count, 'sample')}, files: {listed or 'none'}")
        return "\n".join(lines)


@dataclass(frozen=True)
class FileSharesRest:
    """What is left: all but the first `num_done` entries of every rank of `world_size`."""

    plan: FileSharesPlan
    epoch: int
    num_done: int = 0
    world_size: int | None = None

    @property
    def num_left(self) -> int:
        if self.world_size is None:
            return self.plan.num_indices
        return self.world_size * (self.plan.target_samples(self.world_size) - self.num_done)

    def deal(self, world_size: int, batch_size: int) -> FileSharesDeal:
        if self.world_size not in (None, world_size):
            raise PlanMismatchError(
                f"world_size={world_size} must be {self.world_size}, as when the cursor was saved, "
                f"because strategy={self.plan.strategy!r} ties files to ranks; resume on the same "
                "number of ranks, or start a run with sampling_strategy='balanced'",
                {"world_size": (self.world_size, world_size)},
            )
        return FileSharesDeal(self, world_size, batch_size)


class FileSharesDeal:
    """Every rank's own entries, cut into batches."""

    def __init__(self, rest: FileSharesRest, world_size: int, batch_size: int) -> None:
        self._rest = rest
        self._world_size = world_size
        self._target = rest.plan.target_samples(world_size)
        # All ranks have equally many entries, so one share answers for each of them.
        self._share = Share(self._target - rest.num_done, 1, batch_size, "pad_ranks")
        self._orders: dict[tuple[int, int], _RankPass] = {}
        self._own = np.array(rest.plan.own_samples(world_size))
        self.num_batches = self._share.num_batches
        self.num_dropped = int(np.maximum(self._own - self._target, 0).sum())
        num_left = self._share.num_positions * world_size
        self.num_padded = num_left - self.num_real(0, self.num_batches)

    def block(self, rank: int, start: int, stop: int) -> Block:
        first, end = self._share.span(0, start, stop)
        entries = np.arange(first, end, dtype=np.int64) + self._rest.num_done
        num_own = self._rank_pass(rank, 0).num_positions
        passes, positions = np.divmod(entries, num_own)
        indices = np.empty(len(entries), dtype=np.int64)
        for number in np.unique(passes).tolist():
            chosen = passes == number
            indices[chosen] = self._rank_pass(rank, number).indices(positions[chosen])
        # Entries are real when they are the rank's own and come for the first time.
        is_real = (passes == 0) & (rank < len(self._rest.plan.sizes))
        return Block(
            first=start,
            indices=indices,
            bounds=self._share.bounds(0, start, stop),
            is_real=None if is_real.all() else is_real,
        )

    def draws(self, rank: int, numbers: range) -> Draws:
        start, stop = numbers[0], numbers[-1] + 1
        first, _ = self._share.span(0, start, stop)
        chosen = every_nth(self._share.bounds(0, start, stop), numbers.step)[1]
        num_own = self._rank_pass(rank, 0).num_positions
        passes = (chosen + first + self._rest.num_done) // num_own
        return Draws(np.zeros(len(passes), dtype=np.int64), passes)

    def num_real(self, start: int, stop: int) -> int:
        first, end = (self._rest.num_done + self._share.num_consumed(n) for n in (start, stop))
        return int((np.minimum(self._own, end) - np.minimum(self._own, first)).sum())

    def after(self, num_batches: int) -> FileSharesRest:
        done = self._rest.num_done + self._share.num_consumed(num_batches)
        world_size = self._world_size if done else self._rest.world_size
        return FileSharesRest(self._rest.plan, self._rest.epoch, done, world_size)

    def find(self, index: int) -> list[Place]:
        plan, done = self._rest.plan, self._rest.num_done
        file = int(plan.chunks.rows_of(np.array([index], dtype=np.int64))[0][0])
        num_files = len(plan.sizes)
        borrowers = range(num_files + file, self._world_size, num_files)
        places = []
        for rank in (file % self._world_size, *borrowers):
            num_own = self._rank_pass(rank, 0).num_positions
            for number in range(-(-self._target // num_own)):
                is_real = number == 0 and rank < num_files
                for position in self._rank_pass(rank, number).find(index):
                    entry = number * num_own + position
                    if done <= entry < self._target:
                        place = self._share.place(0, entry - done, is_real=is_real)
                        places.append(place._replace(rank=rank))
        return places

    def _rank_pass(self, rank: int, number: int) -> _RankPass:
        key = rank, number
        if key not in self._orders:
            if len(self._orders) > _MAX_ORDERS:
                self._orders.clear()
            files = self._rest.plan.files_of(rank, self._world_size)
            self._orders[key] = _RankPass(self._rest.plan, self._rest.epoch, files, rank, number)
        return self._orders[key]


class _RankPass:
    """One pass of a rank over its files: file by file, the samples of each shuffled."""

    def __init__(
        self, plan: FileSharesPlan, epoch: int, files: NDArray[np.int64], rank: int, number: int
    ) -> None:
        self._folder = plan.chunks
        self._files = files
        self._own = UnequalChunks(np.asarray(plan.sizes)[files])
        seed = derive_key(plan.seed, "file shares", number, rank)
        order = WindowOrder(chunks=self._own, shuffle=plan.shuffle, seed=seed)
        self._order: EpochOrder = order.at(epoch)
        self.num_positions = self._own.num_samples

    def indices(self, positions: Indices) -> Indices:
        which, rows = self._own.rows_of(self._order.indices(positions))
        return self._folder.starts(self._files[which]) + rows

    def find(self, index: int) -> list[int]:
        file, row = self._folder.rows_of(np.array([index], dtype=np.int64))
        which = np.flatnonzero(self._files == file[0])
        if not len(which):
            return []
        local = int(self._own.starts(which)[0] + row[0])
        found: list[int] = self._order.find(local).tolist()
        return found


def _listed(values: Sequence[int]) -> str:
    shown = ", ".join(map(str, values[:8]))
    return shown if len(values) <= 8 else f"{shown} and {len(values) - 8} more"
