"""Loaders that log what they deliver, and the log of a run in its own folder."""

from __future__ import annotations

import os
import secrets
import time
from collections.abc import Callable, Iterator
from typing import Any

from numpy.typing import ArrayLike

from feedline.errors import InvalidValueError
from feedline.feed import Loader, LoaderWrapper, LoggedBatches, PlannedLoader, Recorder
from feedline.runs.consumption_log import ConsumptionLog
from feedline.store.remote.urls import local_folder
from feedline.words import path_shown

_TIMEOUT = 60.0


class LoggedLoader(LoaderWrapper):
    """Any of Feedline's loaders, with a log of what it delivers.

    Feedline's own loaders also take `log=`; this class is for a log that you open yourself. After
    the last batch of an epoch, the event `epoch_end` is logged.

    Args:
        loader: A loader that knows which samples it delivers.
        log: The log, such as a `ConsumptionLog`.
        log_step: Returns the number of the step of a batch; by default each batch is a step. A
            `StepScheduler` sets it.

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
        planned = self.loader if isinstance(self.loader, PlannedLoader) else None
        loaded = None if planned is None else planned.position.loaded
        # At once, and not with the first batch: the loader begins its pass here.
        batches = map(self._counted, iter(self.loader))
        if planned is not None and loaded is not None:
            planned.note_skips(self.log, loaded, self._step() + (self.log_step is None))
        return LoggedBatches(batches, self, self.log, num_batches, self._step)

    def _counted(self, batch: Any) -> Any:
        self._num_handed_out += 1
        return batch

    def _step(self) -> int:
        return self._num_handed_out - 1 if self.log_step is None else self.log_step()


class RunLog:
    """A log of what each rank of a run receives, one file per rank in the run's own folder.

    It is opened when the first pass begins. Its name is chosen then, the same on all ranks, so
    every launch of a training is a separate run, and `feedline audit FOLDER` reads them all.

    Args:
        folder: The folder for the logs of all runs of one training.
        loader: The loader whose batches are logged.

    Examples:
        >>> import tempfile
        >>> from feedline.feed import Feed
        >>> from feedline.plan import SamplePlan, Shuffled
        >>> from feedline.runs import audit_logs
        >>> from feedline.store import FolderStore, pack
        >>> folder = tempfile.TemporaryDirectory()
        >>> _ = pack({"x": range(100)}, f"{folder.name}/data")
        >>> plan = SamplePlan(order=Shuffled(num_samples=100))
        >>> with Feed(FolderStore(f"{folder.name}/data"), plan, batch_size=10) as feed:
        ...     feed.log = RunLog(f"{folder.name}/logs", feed)
        ...     _ = list(feed)
        >>> audit_logs([f"{folder.name}/logs"]).ok
        True
        >>> folder.cleanup()
    """

    def __init__(self, folder: str | os.PathLike[str], loader: PlannedLoader) -> None:
        self.folder = local_folder("log", folder)
        self._loader = loader
        self._run: str | None = None
        self._log: ConsumptionLog | None = None

    def __repr__(self) -> str:
        state = "not open" if self._log is None else "open"
        run = "opens with the first batch" if self._run is None else f"run {self._run}, {state}"
        return f"<RunLog {path_shown(self.folder)}: {run}>"

    def record(
        self,
        *,
        epoch: int,
        step: int,
        batch: int,
        ids: ArrayLike,
        is_real: ArrayLike | None = None,
        wait: float = 0.0,
    ) -> None:
        """Note a batch, as `ConsumptionLog.record` does."""
        self._opened().record(
            epoch=epoch, step=step, batch=batch, ids=ids, is_real=is_real, wait=wait
        )

    def event(self, name: str, /, **fields: Any) -> None:
        """Record an event; the event `stop` closes the file until the next record."""
        log = self._opened()
        running = self._loader.position.current
        if name in ("start", "resume") and running is not None:
            # An audit compares these where a clock numbers the steps of some runs only.
            fields["has_clock"] = self._loader.log_step is not None
            fields["place"] = running.ordinal(0)
            fields["places_per_batch"] = self._loader.batching.num_entries
        log.event(name, **fields)
        if name == "stop":
            log.close()
            self._log = None

    def _opened(self) -> ConsumptionLog:
        if self._log is None:
            peers = self._loader.peers
            self._run = self._run or self._agree_on_name()
            self._log = ConsumptionLog(
                self.folder / self._run / f"rank{peers.rank}.log",
                rank=peers.rank,
                world_size=peers.world_size,
                run=self._run,
                info=self._describe(),
            )
        return self._log

    def _agree_on_name(self) -> str:
        peers = self._loader.peers
        own = f"{time.strftime('%Y%m%d-%H%M%S', time.gmtime())}-{secrets.token_hex(4)}"
        names: list[str] = peers.gather(own, _TIMEOUT)
        if len(names) != peers.world_size:
            raise InvalidValueError(
                f"log={str(self.folder)!r} needs {peers.world_size} ranks that can reach each "
                "other, to agree on a name for the run; initialize a process group, or pass "
                "log=ConsumptionLog(..., run=NAME) with your own name"
            )
        return names[0]

    def _describe(self) -> dict[str, Any]:
        """Return the facts about the data for an audit."""
        position, batching = self._loader.position, self._loader.batching
        tail = "drop" if batching.drop_last else position.plan.tail
        info: dict[str, Any] = {"num_samples": position.plan.num_indices, "tail": tail}
        if self._loader.batch_size is not None:
            info["batch_size"] = self._loader.batch_size
        if batching.num_entries > 1 and not batching.drop_last:
            info["entry_size"] = position.batch_size
        return info
