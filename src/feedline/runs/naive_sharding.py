"""What would happen without a plan: every rank its own share, split anew after a resize.

The model is what a common sampler and loader do: one order of `num_samples` from `seed + epoch`;
rank r takes every `world_size`-th place from r on, so some ranks may have one sample more; each
rank makes batches of its own share. A run that is resumed on other ranks splits the same order
anew and skips as many batches as were trained, that is, `step * world_size * batch_size` places
counted with the *new* world size.

A batch that only some ranks have is never trained: they wait for the others, and the run hangs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from feedline.errors import check_integer, check_sequence
from feedline.plan import PastSegment
from feedline.plan.cursor import check_past
from feedline.plan.frozen import store

__all__ = ["NaiveSharding"]


@dataclass(frozen=True, kw_only=True)
class NaiveSharding:
    """One epoch under naive sharding; each past is a part of it on one world size.

    The last part goes on to the end of the epoch, whatever its number of batches.

    Examples:
        >>> parts = [PastSegment(4, 5, 10), PastSegment(2, 5, 0)]
        >>> run = NaiveSharding(num_samples=1000, parts=parts, drops_last=False)
        >>> run.num_repeated, run.num_lost
        (100, 0)
    """

    num_samples: int
    parts: Sequence[PastSegment]
    drops_last: bool

    def __post_init__(self) -> None:
        store(
            self,
            num_samples=check_integer("num_samples", self.num_samples, 1),
            parts=tuple(check_past(part) for part in check_sequence("parts", self.parts)),
        )

    def batch_counts(self, world_size: int, batch_size: int) -> tuple[int, int]:
        """Return the fewest and the most batches that a rank has in an epoch."""
        whole, over = divmod(self.num_samples, world_size)
        if self.drops_last:
            return whole // batch_size, (whole + (over > 0)) // batch_size
        return -(-whole // batch_size), -(-(whole + (over > 0)) // batch_size)

    @property
    def intervals(self) -> list[tuple[int, int]]:
        """The places `[start, stop)` of the order that each part trains on all ranks."""
        intervals = []
        done = 0
        for number, (world_size, batch_size, num_batches) in enumerate(self.parts):
            fewest, _ = self.batch_counts(world_size, batch_size)
            is_last = number == len(self.parts) - 1
            end = max(done, fewest if is_last else min(done + num_batches, fewest))
            together = world_size * batch_size
            start, stop = (min(n * together, self.num_samples) for n in (done, end))
            intervals.append((start, stop))
            done = end
        return intervals

    @property
    def num_consumed(self) -> int:
        """The number of times that a sample is consumed."""
        return sum(stop - start for start, stop in self.intervals)

    @property
    def num_lost(self) -> int:
        """The number of samples that nobody consumes."""
        return self.num_samples - self._num_distinct

    @property
    def num_repeated(self) -> int:
        """The number of times that a sample is consumed again."""
        return self.num_consumed - self._num_distinct

    @property
    def fewest_batches(self) -> int:
        """The fewest batches that a rank of the last part has in the epoch."""
        return self.batch_counts(*self.parts[-1][:2])[0]

    @property
    def most_batches(self) -> int:
        """The most batches that a rank of the last part has in the epoch."""
        return self.batch_counts(*self.parts[-1][:2])[1]

    @property
    def num_waiting_ranks(self) -> int:
        """The number of ranks that wait for ever, in a batch that the others do not have."""
        if self.fewest_batches == self.most_batches:
            return 0
        return self.num_samples % self.parts[-1].world_size

    @property
    def hangs(self) -> bool:
        """Whether ranks have unequal numbers of batches at the end of the epoch."""
        return self.num_waiting_ranks > 0

    @property
    def _num_distinct(self) -> int:
        total, reached = 0, 0
        for start, stop in sorted(self.intervals):
            total += max(0, stop - max(start, reached))
            reached = max(reached, stop)
        return total
