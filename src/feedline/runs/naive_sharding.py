"""What would happen without a plan: a fixed share for every rank, split again after a resize.

The model is what a common sampler and loader do: one order of `num_samples` from `seed + epoch`;
rank r takes every `world_size`-th place from r on, so some ranks may have one sample more; each
rank makes batches of its own share. A run that resumes on other ranks splits the same order again
and skips as many batches as were trained, that is, `step * world_size * batch_size` places counted
with the *new* world size.

A batch that only some ranks have is never trained: they wait for the others, and the run hangs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import InitVar, dataclass, field

from feedline.errors import check_integer, check_sequence
from feedline.plan import PastSegment
from feedline.plan.cursor import check_past
from feedline.plan.frozen import store


@dataclass(frozen=True, kw_only=True)
class NaiveSharding:
    """One epoch under naive sharding; each of `parts` is a part of it on one world size.

    The last part goes to the end of the epoch. `num_repeated`
    counts each time that a sample is consumed again. `fewest_batches` and `most_batches` are those
    of the ranks in the last part; the run `hangs` where they differ, with `num_waiting_ranks`.

    Examples:
        >>> parts = [PastSegment(4, 5, 10), PastSegment(2, 5, 0)]
        >>> run = NaiveSharding(num_samples=1000, parts=parts, drops_last=False)
        >>> run.num_repeated, run.num_lost
        (100, 0)
    """

    num_samples: InitVar[int]
    parts: InitVar[Sequence[PastSegment]]
    drops_last: InitVar[bool]
    num_consumed: int = field(init=False)
    num_repeated: int = field(init=False)
    num_lost: int = field(init=False)
    fewest_batches: int = field(init=False)
    most_batches: int = field(init=False)
    num_waiting_ranks: int = field(init=False)
    hangs: bool = field(init=False)

    def __post_init__(
        self, num_samples: int, parts: Sequence[PastSegment], drops_last: bool
    ) -> None:
        num_samples = check_integer("num_samples", num_samples, 1)
        past = [check_past(part) for part in check_sequence("parts", parts)]
        intervals, done, fewest, most = [], 0, 0, 0
        for number, (world_size, batch_size, num_batches, _) in enumerate(past, 1):
            whole, over = divmod(num_samples, world_size)
            shares = (whole, whole + (over > 0))
            fewest, most = (n // batch_size if drops_last else -(-n // batch_size) for n in shares)
            end = max(done, fewest if number == len(past) else min(done + num_batches, fewest))
            together = world_size * batch_size
            intervals.append([min(n * together, num_samples) for n in (done, end)])
            done = end
        num_distinct = reached = 0
        for start, stop in sorted(intervals):
            num_distinct += max(0, stop - max(start, reached))
            reached = max(reached, stop)
        num_consumed = sum(stop - start for start, stop in intervals)
        num_waiting = num_samples % past[-1].world_size if fewest < most else 0
        store(
            self,
            num_consumed=num_consumed,
            num_repeated=num_consumed - num_distinct,
            num_lost=num_samples - num_distinct,
            fewest_batches=fewest,
            most_batches=most,
            num_waiting_ranks=num_waiting,
            hangs=num_waiting > 0,
        )
