"""The log of a run in a folder: opened, named and described by the loader that it belongs to."""

from __future__ import annotations

import os
import secrets
import time
from pathlib import Path
from typing import Any

from feedline.errors import InvalidValueError
from feedline.feed import PlannedLoader
from feedline.runs.consumption_log import ConsumptionLog

_TIMEOUT = 60.0


class RunLog:
    """A log of what each rank of a run receives, one file for each in a folder of the run's own.

    It is opened when the first pass begins. Its name is made up then, the same on all ranks, so
    every launch of a training is a run of its own, and `feedline audit FOLDER` sees them all.

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
        self.folder = Path(folder)
        self._loader = loader
        self._run: str | None = None
        self._log: ConsumptionLog | None = None

    def record(
        self, *, epoch: int, step: int, batch: int, ids: Any, is_real: Any = None, wait: float = 0.0
    ) -> None:
        """Note a batch: its samples, which of them are real, and the seconds of waiting."""
        self._opened().record(
            epoch=epoch, step=step, batch=batch, ids=ids, is_real=is_real, wait=wait
        )

    def event(self, name: str, /, **fields: Any) -> None:
        """Note something that happened; the event `stop` closes the file until more happens."""
        log = self._opened()
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
                "log=ConsumptionLog(..., run=NAME) with a name of your own"
            )
        return names[0]

    def _describe(self) -> dict[str, Any]:
        """Return what an audit should know about the data."""
        position, batching = self._loader.position, self._loader.batching
        tail = "drop" if batching.drop_last else position.plan.tail
        info: dict[str, Any] = {"num_samples": position.plan.num_indices, "tail": tail}
        if self._loader.batch_size is not None:
            info["batch_size"] = self._loader.batch_size
        if batching.num_entries > 1 and not batching.drop_last:
            info["entry_size"] = position.batch_size
        return info
