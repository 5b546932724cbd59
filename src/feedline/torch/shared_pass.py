"""The position of a dataset, in memory that its loader's workers share.

Workers hold copies of the dataset, made when they started. Persistent ones outlive an epoch, so
what the training process says later, an epoch or a loaded state, has to reach them: it is written
here, and each worker reads it when a pass begins.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from itertools import chain, islice

import torch

from feedline.errors import InvalidValueError
from feedline.plan import PastSegment, Plan, Segment

#: How often sizes may change within a pass whose workers save what they have sent.
MAX_PHASES = 32
_NUM_WORDS = 1024
_MAX_WORKERS = 256
_EPOCH, _IS_RESUMED, _TAKEN_BY, _IN_WORKERS, _NUM_USED = range(5)
_PROCESSES = 8
# By worker: the number of its phases; by phase: its kind, and what each worker has sent in it.
_NUM_PHASES = _PROCESSES + _MAX_WORKERS
_PHASES = _NUM_PHASES + _MAX_WORKERS
_PHASE_WORDS = 3 + _MAX_WORKERS
_HISTORY = _PHASES + MAX_PHASES * _PHASE_WORDS


class SharedPass:
    """The epoch, and where in it the next pass begins."""

    def __init__(self) -> None:
        # Not `share_memory_`: it copies, which torch does in threads of its own from this size on,
        # and they keep a core busy for milliseconds afterwards. It is new, so it is all zeros.
        storage = torch.UntypedStorage._new_shared(8 * (_HISTORY + _NUM_WORDS))
        self._words = torch.empty(0, dtype=torch.int64).set_(storage)

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
        sizes = segment.world_size, segment.batch_size, segment.num_done
        numbers = _to_words((*segment.history, PastSegment(*sizes, segment.skipped)))
        fitting = torch.tensor(numbers[:_NUM_WORDS], dtype=torch.int64)
        self._words[_HISTORY : _HISTORY + len(fitting)] = fitting
        self._words[_NUM_USED] = len(numbers)
        self._words[_TAKEN_BY] = 0
        self._words[_PROCESSES:_NUM_PHASES] = 0
        self._words[_IS_RESUMED] = 1

    def begin_in_worker(
        self, plan: Plan, world_size: int, batch_size: int, pass_number: int, worker: int
    ) -> Segment:
        """Return the segment of a pass that begins in a worker.

        `pass_number` is above 0, the same in all workers of one pass, and mostly another in each
        pass: it comes from a random seed, which users may set.
        """
        _check_worker(worker)
        words = self._words
        words[_IN_WORKERS] = 1
        sizes = {"world_size": world_size, "batch_size": batch_size, "epoch": self.epoch}
        if not self._is_next(pass_number, worker):
            return plan.segment(**sizes)
        num_used = int(words[_NUM_USED])
        if num_used > _NUM_WORDS:
            raise InvalidValueError(
                f"the state has {num_used} numbers about the changes of the ranks or the batch "
                f"size, and the skips, of one epoch, but workers support at most {_NUM_WORDS}; "
                "finish the epoch with num_workers=0"
            )
        *history, now = _from_words(words[_HISTORY : _HISTORY + num_used].tolist())
        return Segment(
            plan=plan,
            history=tuple(history),
            num_done=now.num_batches,
            skipped=now.skipped,
            world_size=world_size,
            batch_size=batch_size,
            epoch=self.epoch,
        )

    def tell(self, worker: int, phases: Sequence[Sequence[int]]) -> None:
        """Record what a worker has sent before the state that it has loaded, for the others.

        A phase is three numbers that all workers have in common, and what this one has sent.
        """
        _check_worker(worker)
        self._words[_IN_WORKERS] = 1
        table = self._phase_table
        table[:, 3 + worker] = 0
        for row, phase in zip(table, phases, strict=False):
            # Whoever knows a phase writes the same three numbers.
            row[:3] = torch.tensor(phase[:3], dtype=torch.int64)
            row[3 + worker] = phase[3]
        self._words[_NUM_PHASES + worker] = len(phases)

    def told(self, num_workers: int) -> list[list[int]]:
        """Return the phases with what all workers have sent; each must have told its own."""
        num_phases = int(self._words[_NUM_PHASES : _NUM_PHASES + num_workers].max())
        table = self._phase_table[:num_phases, : 3 + num_workers]
        return [[*row[:3].tolist(), int(row[3:].sum())] for row in table]

    @property
    def _phase_table(self) -> torch.Tensor:
        return self._words[_PHASES:_HISTORY].reshape(MAX_PHASES, _PHASE_WORDS)

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


def _check_worker(worker: int) -> None:
    if worker >= _MAX_WORKERS:
        # Two workers in one slot would take each other for an earlier pass.
        raise InvalidValueError(
            f"worker={worker} must be below {_MAX_WORKERS}; use at most {_MAX_WORKERS} workers"
        )


def _to_words(history: Sequence[PastSegment]) -> list[int]:
    """Return entries of a history as integers: each with how many skips it has, and these."""
    words: list[int] = []
    for past in history:
        words += [*past[:3], len(past.skipped), *chain.from_iterable(past.skipped)]
    return words


def _from_words(words: Sequence[int]) -> list[PastSegment]:
    left = iter(words)
    history = []
    for world_size in left:
        batch_size, num_batches, num_skips = islice(left, 3)
        skipped = tuple((next(left), next(left)) for _ in range(num_skips))
        history.append(PastSegment(world_size, batch_size, num_batches, skipped))
    return history
