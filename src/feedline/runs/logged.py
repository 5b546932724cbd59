"""A loader whose batches are logged as they are handed out."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from time import perf_counter
from typing import Any

from feedline.errors import InvalidValueError
from feedline.runs.consumption_log import ConsumptionLog

__all__ = ["LoggedLoader"]


class LoggedLoader:
    """Any of Feedline's loaders, with a log of what it hands out.

    Everything else is that of the loader, so this stands wherever the loader does, as in a
    `StepScheduler`. When the last batch of an epoch is out, the event `epoch_end` is logged.

    Args:
        loader: One of Feedline's loaders, or any that has `latest_ids`.
        log: Where to write.
        log_step: Returns the number of the step that a batch is for, as
            `lambda: scheduler.step`; by default each batch is a step. May be set later.

    Examples:
        >>> import tempfile
        >>> from feedline.feed import Feed
        >>> from feedline.plan import SamplePlan, Shuffled
        >>> from feedline.runs import read_log
        >>> from feedline.store import FolderStore, pack
        >>> folder = tempfile.TemporaryDirectory()
        >>> _ = pack({"x": range(100)}, f"{folder.name}/data")
        >>> feed = Feed(
        ...     FolderStore(f"{folder.name}/data"),
        ...     SamplePlan(order=Shuffled(num_samples=100)),
        ...     batch_size=10,
        ... )
        >>> with ConsumptionLog(f"{folder.name}/rank0.log", rank=0, world_size=1) as log:
        ...     batches = list(LoggedLoader(feed, log))
        >>> entries = read_log(f"{folder.name}/rank0.log").entries
        >>> entries[3].ids.tolist() == batches[3].arrays["x"].tolist()
        True
        >>> folder.cleanup()
    """

    def __init__(
        self, loader: Any, log: ConsumptionLog, *, log_step: Callable[[], int] | None = None
    ) -> None:
        if not callable(getattr(loader, "latest_ids", None)):
            raise InvalidValueError(
                f"loader={type(loader).__name__} has no latest_ids, so it cannot be logged; use "
                "one of Feedline's loaders"
            )
        self.loader = loader
        self.log = log
        self.log_step = log_step
        self._num_handed_out = 0

    def __getattr__(self, name: str) -> Any:
        if name == "loader":
            raise AttributeError(name)
        return getattr(self.loader, name)

    @property
    def tracks_ids(self) -> bool:
        """Whether the loader compares batches with the plan as they are handed out."""
        return bool(self.loader.tracks_ids)

    @tracks_ids.setter
    def tracks_ids(self, wanted: bool) -> None:
        self.loader.tracks_ids = wanted

    def __len__(self) -> int:
        """The number of batches of a whole epoch."""
        return len(self.loader)

    def __iter__(self) -> Iterator[Any]:
        count = getattr(self.loader, "num_batches_left", None)
        num_batches = None if count is None else int(count())
        # At once, and not with the first batch: the loader begins its pass here.
        return self._logged(iter(self.loader), num_batches)

    def _logged(self, batches: Iterator[Any], num_batches: int | None) -> Iterator[Any]:
        number = 0
        try:
            while True:
                start = perf_counter()
                try:
                    batch = next(batches)
                except StopIteration:
                    if num_batches is None:
                        self._log_end()
                    return
                self._record(number, perf_counter() - start)
                number += 1
                if number == num_batches:
                    # Whoever counts the batches does not ask for one more.
                    self._log_end()
                yield batch
        finally:
            close = getattr(batches, "close", None)
            if close is not None:
                close()

    def _record(self, number: int, waited: float) -> None:
        loader = self.loader
        is_real = getattr(loader, "latest_is_real", None)
        self._num_handed_out += 1
        self.log.record(
            epoch=loader.epoch,
            step=self._step(),
            batch=number,
            ids=loader.latest_ids(),
            is_real=None if is_real is None else is_real(),
            wait=waited,
        )

    def _log_end(self) -> None:
        self.log.event("epoch_end", epoch=self.loader.epoch, step=self._step())

    def _step(self) -> int:
        return self._num_handed_out - 1 if self.log_step is None else self.log_step()
