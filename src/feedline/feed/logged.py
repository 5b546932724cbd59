"""Batches that are logged as the training loop receives them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from time import perf_counter
from typing import TYPE_CHECKING, Any, Protocol

from feedline.feed.waits import waits_of
from feedline.plan import Cursor, Plan, skipped_samples
from feedline.words import several

if TYPE_CHECKING:
    from feedline.feed.loader import Loader


# Events are read one by one, so that very many samples in one would take much memory.
_IDS_AT_ONCE = 2**16


class Recorder(Protocol):
    """The protocol of recorders, such as `feedline.runs.ConsumptionLog`."""

    def record(
        self, *, epoch: int, step: int, batch: int, ids: Any, is_real: Any = None, wait: float = 0.0
    ) -> None:
        """Record a batch: its samples, which of them are real, and the seconds of waiting.

        Loaders of Feedline give these as a `Wait`, a number that has its parts.
        """

    def event(self, name: str, /, **fields: Any) -> None:
        """Record an event."""


def note_skips(
    recorder: Recorder, plan: Plan, cursor: Cursor, step: int, ids: Callable[[Any], Any]
) -> None:
    """Record the samples that a resumed run skips in its epoch, on all ranks together.

    Args:
        recorder: The recorder of one rank.
        plan: What decides the order.
        cursor: The state that the run resumes from.
        step: The number of the step that it resumes at.
        ids: Returns the ids of samples of the plan.
    """
    if not cursor.num_skipped:
        return
    history = [past.to_json() for past in cursor.history]
    place = {"epoch": cursor.epoch, "step": step, "history": history}
    some: list[int] = []
    for samples in skipped_samples(plan, cursor.epoch, cursor.history):
        some += ids(samples).tolist()
        if len(some) >= _IDS_AT_ONCE:
            recorder.event("skipped_batches", **place, ids=some)
            some = []
    recorder.event("skipped_batches", **place, ids=some)


@dataclass(eq=False, repr=False)
class LoggedBatches(Iterator[Any]):
    """The batches of a pass, each recorded before it is delivered.

    After the last batch, the event `epoch_end` is recorded; before it, if the data is at a URL,
    `fetched`, with what this process has fetched.

    Args:
        batches: The pass.
        loader: The loader of the pass.
        recorder: The recorder.
        num_batches: The number of batches in the pass.
        step_of: Returns the number of the step of the latest batch.
        end: Fields to add to the event at the end of the epoch.
    """

    batches: Iterator[Any]
    loader: Loader[Any]
    recorder: Recorder
    num_batches: int
    step_of: Callable[[], int]
    end: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._waits = waits_of(self.loader)
        # Data at a URL counts what it has fetched.
        self._fetched: Any = getattr(getattr(self.loader, "store", None), "meters", None)
        if self.num_batches == 0:
            self._note_end()

    def __repr__(self) -> str:
        batches = several(self.num_batches, "batch", "batches")
        return f"<LoggedBatches: {batches} of {type(self.loader).__name__}>"

    def __next__(self) -> Any:
        before, start = self._waits.now(), perf_counter()
        batch = next(self.batches)
        waited = self._waits.since(before, perf_counter() - start)
        latest = self.loader.delivered
        assert latest is not None
        skipped = getattr(latest, "skipped_ids", None)
        if skipped:
            place = {"epoch": self.loader.epoch, "step": self.step_of(), "batch": latest.number}
            self.recorder.event("skipped", **place, ids=skipped)
        self.recorder.record(
            epoch=self.loader.epoch,
            step=self.step_of(),
            batch=latest.number,
            ids=latest.ids,
            is_real=latest.is_real,
            wait=waited,
        )
        if latest.number + 1 == self.num_batches:
            # A loop that counts the batches does not ask for one more.
            self._note_end()
        return batch

    def _note_end(self) -> None:
        self._note_fetched()
        self.recorder.event("epoch_end", epoch=self.loader.epoch, step=self.step_of(), **self.end)

    def _note_fetched(self) -> None:
        """Record what this process has fetched of data at a URL since the pass began, once."""
        before, self._fetched = self._fetched, None
        if before is not None:
            store: Any = getattr(self.loader, "store", None)
            place = {"epoch": self.loader.epoch, "step": self.step_of()}
            self.recorder.event("fetched", **place, **(store.meters - before).numbers())

    def close(self) -> None:
        """End the threads that read ahead for the pass."""
        self._note_fetched()
        close = getattr(self.batches, "close", None)
        if close is not None:
            close()
