"""Batches that are written down as the training loop receives them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from time import perf_counter
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from feedline.feed.loader import Loader


class Recorder(Protocol):
    """What takes note of batches and events, as `feedline.runs.ConsumptionLog` does."""

    def record(
        self, *, epoch: int, step: int, batch: int, ids: Any, is_real: Any = None, wait: float = 0.0
    ) -> None:
        """Note a batch: its samples, which of them are real, and the seconds of waiting."""

    def event(self, name: str, /, **fields: Any) -> None:
        """Note something that happened."""


def logged(
    batches: Iterator[Any],
    loader: Loader[Any],
    recorder: Recorder,
    num_batches: int,
    step_of: Callable[[], int],
) -> Iterator[Any]:
    """Yield the batches of a pass of `loader`, each of them noted before it is handed out.

    When the last one is out, the event `epoch_end` is noted.
    """
    try:
        while True:
            start = perf_counter()
            batch = next(batches, _END)
            if batch is _END:
                return
            waited = perf_counter() - start
            latest = loader.delivered
            assert latest is not None
            recorder.record(
                epoch=loader.epoch,
                step=step_of(),
                batch=latest.number,
                ids=latest.ids,
                is_real=latest.is_real,
                wait=waited,
            )
            if latest.number + 1 == num_batches:
                # Whoever counts the batches does not ask for one more.
                recorder.event("epoch_end", epoch=loader.epoch, step=step_of())
            yield batch
    finally:
        close = getattr(batches, "close", None)
        if close is not None:
            close()


_END = object()
