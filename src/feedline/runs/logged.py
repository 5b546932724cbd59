"""A loader whose batches are logged as they are handed out."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from feedline.feed import Loader, LoaderWrapper, LoggedBatches, Recorder


class LoggedLoader(LoaderWrapper):
    """Any of Feedline's loaders, with a log of what it hands out.

    Feedline's own loaders take `log=` too; this is for a log that is opened by hand. When the last
    batch of an epoch is out, the event `epoch_end` is logged.

    Args:
        loader: A loader that says which samples it delivers.
        log: Where to write, such as a `ConsumptionLog`.
        log_step: Returns the number of the step that a batch is for; by default each batch is a
            step. A `StepScheduler` sets it.

    Examples:
        >>> import tempfile
        >>> from feedline.feed import Feed
        >>> from feedline.plan import SamplePlan, Shuffled
        >>> from feedline.runs import ConsumptionLog, read_log
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
        self, loader: Loader[Any], log: Recorder, *, log_step: Callable[[], int] | None = None
    ) -> None:
        super().__init__(loader)
        self.log = log
        self.log_step = log_step
        self._num_handed_out = 0

    def __iter__(self) -> Iterator[Any]:
        num_batches = self.num_batches_left()
        # At once, and not with the first batch: the loader begins its pass here.
        batches = map(self._counted, iter(self.loader))
        return LoggedBatches(batches, self, self.log, num_batches, self._step)

    def _counted(self, batch: Any) -> Any:
        self._num_handed_out += 1
        return batch

    def _step(self) -> int:
        return self._num_handed_out - 1 if self.log_step is None else self.log_step()
