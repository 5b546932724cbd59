"""The position of a dataset, in memory that its loader's workers share.

Workers hold copies of the dataset, made when they started. Persistent ones outlive an epoch, so
what the training process says later, an epoch or a loaded state, has to reach them: it is written
here, and each worker reads it when a pass begins.
"""

from __future__ import annotations

import os

import torch

from feedline.errors import InvalidValueError
from feedline.plan import PastSegment, Plan, Segment
from feedline.words import several

_MAX_HISTORY = 256
_MAX_WORKERS = 256
_EPOCH, _IS_RESUMED, _TAKEN_BY, _IN_WORKERS, _NUM_DONE, _NUM_PAST = range(6)
_PROCESSES = 8
_HISTORY = _PROCESSES + _MAX_WORKERS


class SharedPass:
    """The epoch, and where in it the next pass begins."""

    def __init__(self) -> None:
        words = torch.zeros(_HISTORY + 3 * _MAX_HISTORY, dtype=torch.int64)
        self._words: torch.Tensor = words.share_memory_()

    @property
    def epoch(self) -> int:
        """The epoch that passes begin in."""
        return int(self._words[_EPOCH])

    @property
    def was_taken(self) -> bool:
        """Whether workers have begun the resumed pass."""
        return bool(self._words[_IS_RESUMED]) and bool(self._words[_TAKEN_BY])

    @property
    def was_in_workers(self) -> bool:
        """Whether a worker has begun a pass since the place was last set."""
        return bool(self._words[_IN_WORKERS])

    def go_to_epoch(self, epoch: int) -> None:
        """Make passes begin at the start of an epoch."""
        self._words[_IS_RESUMED] = 0
        self._words[_IN_WORKERS] = 0
        self._words[_EPOCH] = epoch

    def go_to(self, segment: Segment) -> None:
        """Make the next pass begin where a segment was resumed; later ones begin at the start."""
        self.go_to_epoch(segment.epoch)
        numbers = [number for past in segment.history[:_MAX_HISTORY] for number in past]
        self._words[_HISTORY : _HISTORY + len(numbers)] = torch.tensor(numbers, dtype=torch.int64)
        self._words[_NUM_DONE] = segment.num_done
        self._words[_NUM_PAST] = len(segment.history)
        self._words[_TAKEN_BY] = 0
        self._words[_PROCESSES:_HISTORY] = 0
        self._words[_IS_RESUMED] = 1

    def begin_in_worker(
        self, plan: Plan, world_size: int, batch_size: int, pass_number: int, worker: int
    ) -> Segment:
        """Return the segment of a pass that begins in a worker.

        `pass_number` is above 0, the same in all workers of one pass, and mostly another in each
        pass: it comes from a random seed, which users may set.
        """
        if worker >= _MAX_WORKERS:
            # Two workers in one slot would take each other for an earlier pass.
            raise InvalidValueError(
                f"worker={worker} must be below {_MAX_WORKERS}; use at most {_MAX_WORKERS} workers"
            )
        words = self._words
        words[_IN_WORKERS] = 1
        sizes = {"world_size": world_size, "batch_size": batch_size, "epoch": self.epoch}
        if not self._is_next(pass_number, worker):
            return plan.segment(**sizes)
        num_past = int(words[_NUM_PAST])
        if num_past > _MAX_HISTORY:
            raise InvalidValueError(
                f"the state has {several(num_past, 'change')} of the number of ranks or the batch "
                f"size in one epoch but workers support at most {_MAX_HISTORY}; finish the epoch "
                "with num_workers=0"
            )
        past = words[_HISTORY:].reshape(-1, 3)[:num_past].tolist()
        history = tuple(PastSegment(*numbers) for numbers in past)
        return Segment(plan=plan, history=history, num_done=int(words[_NUM_DONE]), **sizes)

    def _is_next(self, pass_number: int, worker: int) -> bool:
        """Whether a pass in workers is the one that resumes."""
        words = self._words
        slot = _PROCESSES + worker
        # An earlier pass with the same number had another process for this worker.
        is_first_process = int(words[slot]) in (0, os.getpid())
        words[slot] = os.getpid()
        if not words[_IS_RESUMED] or not is_first_process:
            return False
        if int(words[_TAKEN_BY]) not in (0, pass_number):
            return False
        # All workers of a pass write the same number, so it does not matter who is first.
        words[_TAKEN_BY] = pass_number
        return True
