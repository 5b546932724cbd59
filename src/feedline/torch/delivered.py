"""How far a pass of a loader has come, and the iterators that keep count of it."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from feedline.feed import IdTrail, PlannedMarks
from feedline.torch.plan_sampler import Pass

if TYPE_CHECKING:
    from feedline.torch.loader import DataLoader

__all__ = ["Delivered", "Delivering", "NotedIndices"]


@dataclass
class Delivered:
    """How far a pass has come. The loader holds this, and not the iterator: an iterator that the
    training loop has dropped must be free to end its workers."""

    running: Pass
    num_expected: int
    num_batches: int = 0
    trail: IdTrail | None = None
    marks: PlannedMarks | None = None
    asked: deque[Any] = field(default_factory=deque)
    latest: Any = None

    def take_note(self) -> None:
        """Take note of what was asked for to get the batch that has come."""
        # Of datasets that make their own batches, nothing is asked for.
        self.latest = self.asked.popleft() if self.asked else None
        if self.trail is not None:
            self.trail.deliver(self.latest)


class Delivering(Iterator[Any]):
    """An iterator of torch's loader that counts what it hands out."""

    def __init__(
        self, loader: DataLoader[Any], delivered: Delivered, batches: Iterator[Any]
    ) -> None:
        self._loader = loader
        self._delivered = delivered
        self._batches = batches
        self._num_failed = 0

    def __next__(self) -> Any:
        try:
            batch = next(self._batches)
        except StopIteration:
            raise
        except Exception:
            # The loop may go on after an error; then the batch that failed has been passed over.
            self._num_failed += 1
            self._delivered.take_note()
            raise
        number = self._delivered.num_batches + self._num_failed
        self._delivered.num_batches = number + 1
        self._num_failed = 0
        self._delivered.take_note()
        if self._loader.with_mask:
            return batch, self._loader.mask_of(self._delivered.running, number)
        return batch

    def __len__(self) -> int:
        return len(self._loader)


class NotedIndices:
    """An index sampler whose loader takes note of what it yields."""

    def __init__(self, inner: Any, loader: DataLoader[Any]) -> None:
        self._inner = inner
        self._loader = loader

    def __iter__(self) -> Iterator[Any]:
        # At once: the sampler is bound to a pass while torch makes its iterator.
        return _noted(iter(self._inner), self._loader.current_notes())

    def __len__(self) -> int:
        return len(self._inner)


def _noted(entries: Iterator[Any], notes: deque[Any] | None) -> Iterator[Any]:
    for indices in entries:
        if notes is not None:
            notes.append(indices)
        yield indices
