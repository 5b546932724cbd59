"""What a loader counts on the way of its batches: what torch asks for, and what is delivered."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch

from feedline.feed import Pass
from feedline.feed.called import interrupted, stopped
from feedline.feed.preparation import Prepared
from feedline.feed.skips import SkipCount, Skips, marks_in
from feedline.torch.worker_errors import raise_if_killed


class Asked:
    """The indices that torch takes from a pass, kept until their batch has arrived."""

    def __init__(self) -> None:
        self.batches: Iterator[Any] = iter(())
        self.waiting: deque[Any] = deque()
        #: The number of batches that were asked for.
        self.num_asked = 0
        #: What was asked for to get the latest batch; None of a dataset that is not asked.
        self.latest: Any = None

    def __iter__(self) -> Iterator[Any]:
        # A generator, because torch makes an iterator twice at times and uses the second one.
        for indices in self.batches:
            self.waiting.append(indices)
            self.num_asked += 1
            yield indices

    def take(self) -> None:
        """Record that a batch has arrived, or has failed."""
        self.latest = self.waiting.popleft() if self.waiting else None


@dataclass(eq=False)
class Arriving(Iterator[Any]):
    """What torch's loader yields of the user's dataset; it ends when all that was asked has come.

    Args:
        batches: The iterator of torch's loader.
        asked: What it has asked for.
    """

    batches: Iterator[Any]
    asked: Asked
    num_arrived: int = 0

    @property
    def _workers(self) -> Any:
        # An error may be that of a killed worker.
        return getattr(self.batches, "_workers", ())

    def __next__(self) -> Any:
        try:
            batch = next(self.batches)
        except StopIteration as error:
            if self.num_arrived >= self.asked.num_asked:
                raise
            self.num_arrived += 1
            raise stopped("the dataset or collate_fn") from error
        except Exception:
            self.num_arrived += 1
            raise
        self.num_arrived += 1
        return batch


@dataclass(eq=False)
class Delivering(Iterator[Any]):
    """An iterator of torch's loader that records in its pass what it delivers."""

    batches: Iterator[Any]
    running: Pass
    asked: Asked
    with_mask: bool
    device: torch.device | None
    form: Callable[[Any], Any] | None
    count: SkipCount
    num_failed: int = 0
    is_interrupted: bool = False

    def __next__(self) -> Any:
        if self.is_interrupted:
            raise interrupted()
        skips: Skips = None
        try:
            batch = next(self.batches)
            if isinstance(batch, Prepared):
                batch, skips = batch
            # Before the batch counts: a text that is not UTF-8 is found here.
            if self.form is not None:
                batch = self.form(batch)
        except StopIteration:
            raise
        except Exception as error:
            # The loop may continue after an error; then the batch that failed is skipped.
            self.num_failed += 1
            self.asked.take()
            raise_if_killed(self.batches, error)
            raise
        except BaseException:
            # A batch that workers make still comes; one that is made here was taken already.
            self.is_interrupted = not getattr(self.batches, "_workers", ())
            raise
        self.running.deliver(1 + self.num_failed, skips)
        self.num_failed = 0
        self.asked.take()
        if skips:
            self.count.note(skips)
        return (batch, self._mask(skips)) if self.with_mask else batch

    def _mask(self, skips: Skips) -> torch.Tensor:
        block = self.running.planned(self.running.num_delivered - 1)
        if block.is_real is None and not skips:
            return torch.ones(len(block.indices), dtype=torch.bool, device=self.device)
        return torch.from_numpy(marks_in(block, skips)).to(self.device)

    def __len__(self) -> int:
        return self.running.num_batches


@dataclass(frozen=True)
class OnColumns:
    """Changes a batch of prepared samples, and keeps what is known of it.

    Args:
        change: Makes a batch of a batch.
    """

    change: Callable[[Any], Any]

    def __call__(self, batch: Prepared) -> Prepared:
        return batch._replace(columns=self.change(batch.columns))


@dataclass(frozen=True)
class InTurn:
    """One change of a batch after another.

    Args:
        first: What comes first.
        then: What comes after it.
    """

    first: Callable[[Any], Any]
    then: Callable[[Any], Any]

    def __call__(self, batch: Any) -> Any:
        return self.then(self.first(batch))
