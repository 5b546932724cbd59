"""The runs of a training, put together from the logs of their ranks."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from feedline.errors import InvalidValueError, check_integer
from feedline.runs.consumption_log import LogHeader, iter_log, read_log_header
from feedline.runs.log_entries import LoggedBatch, LoggedEvent

Table = NDArray[np.int64]


@dataclass
class RankPart:
    """What one rank logged in one run: for each batch its epoch, step and number of samples."""

    path: Path
    header: LogHeader
    number: int
    is_begun: bool = False
    time: float = 0.0
    resumed_at: int | None = None
    has_stopped: bool = False
    ends: dict[int, int] = field(default_factory=dict)
    dropped: dict[int, int] = field(default_factory=dict)
    spans: dict[int, list[int]] = field(default_factory=dict)
    numbers: array[int] = field(default_factory=lambda: array("q"))
    events: list[LoggedEvent] = field(default_factory=list)

    @property
    def table(self) -> Table:
        """One row for each batch: epoch, step, number of samples."""
        return np.frombuffer(self.numbers, dtype=np.int64).reshape(-1, 3)

    def add(self, start: int, end: int, batch: LoggedBatch) -> None:
        """Take note of a batch that stands at `[start, end)` in the file."""
        self.numbers.extend((batch.epoch, batch.step, len(batch.ids)))
        self.spans.setdefault(batch.epoch, [start, end])[1] = end

    def tell(self, event: LoggedEvent) -> None:
        """Take note of an event."""
        fields = event.fields
        self.events.append(event)
        if event.name in ("start", "resume"):
            self.is_begun = True
            self.time = _seconds(fields.get("time"))
        if event.name == "resume":
            self.resumed_at = self._number_in(event, "step")
        elif event.name == "epoch_end":
            epoch = self._number_in(event, "epoch")
            self.ends[epoch] = self._number_in(event, "step")
            if "num_dropped" in fields:
                self.dropped[epoch] = self._number_in(event, "num_dropped")
        elif event.name == "stop":
            self.has_stopped = True

    def batches(self, epoch: int, limit: float) -> Iterator[LoggedBatch]:
        """Yield the batches of an epoch in steps below `limit`."""
        if epoch not in self.spans:
            return
        for _, entry in iter_log(self.path, *self.spans[epoch]):
            if isinstance(entry, LoggedBatch) and entry.epoch == epoch and entry.step < limit:
                yield entry

    def _number_in(self, event: LoggedEvent, name: str) -> int:
        try:
            return check_integer(name, event.fields.get(name), 0, 2**62)
        except InvalidValueError as error:
            raise InvalidValueError(f"{self.path}: in event {event.name!r}, {error}") from None


@dataclass
class Run:
    """One launch of a training. Its batches count in steps below `limit`, from which the next run
    resumed."""

    name: str
    world_size: int
    ranks: dict[int, RankPart]
    limit: float = float("inf")

    @property
    def time(self) -> float:
        """When it began."""
        return min(part.time for part in self.ranks.values())

    @property
    def first_step(self) -> float:
        """The step that it began with; infinite if it neither loaded nor did anything."""
        steps = [part.resumed_at for part in self.ranks.values() if part.resumed_at is not None]
        if not steps:
            steps = [int(part.table[0, 1]) for part in self.ranks.values() if part.numbers]
        return min(steps, default=float("inf"))

    def counted(self, rank: int) -> Table:
        """Return the rows of a rank's table that count."""
        table = self.ranks[rank].table
        return table[table[:, 1] < self.limit]

    def num_batches(self, epoch: int) -> int:
        """Return how many batches of an epoch count, on the rank that has most."""
        return max(int((self.counted(rank)[:, 0] == epoch).sum()) for rank in self.ranks)

    @property
    def missing_ranks(self) -> list[int]:
        """The ranks whose logs are missing, if the others have anything that counts."""
        if not any(len(self.counted(rank)) for rank in self.ranks):
            return []
        return sorted(set(range(self.world_size)) - set(self.ranks))

    @property
    def parted_step(self) -> int | None:
        """The first step in which ranks diverged."""
        tables = [self.counted(rank)[:, :2] for rank in sorted(self.ranks)]
        shortest, longest = min(tables, key=len), max(tables, key=len)
        steps = []
        for table in tables:
            differs = np.flatnonzero((table[: len(shortest)] != shortest).any(axis=1))
            if len(differs):
                steps += [int(shortest[differs[0], 1]), int(table[differs[0], 1])]
        # Ranks of a run that was killed, or still runs, are not at the same step.
        is_settled = np.isfinite(self.limit) or any(
            part.has_stopped or part.ends for part in self.ranks.values()
        )
        if is_settled and len(longest) > len(shortest):
            steps.append(int(longest[len(shortest), 1]))
        return min(steps, default=None)


def _seconds(value: Any) -> float:
    try:
        return float(value) if isinstance(value, int | float) else 0.0
    except OverflowError:
        return 0.0


def runs_of(paths: Iterable[Path]) -> list[Run]:
    """Return the runs in the order in which they began, each with the step up to which it counts.

    A run that was resumed counts up to the checkpoint that was loaded: whatever it did afterwards
    has left no trace in the model.
    """
    runs: dict[tuple[str, int], Run] = {}
    for path in paths:
        for part in _parts_of(path):
            _sort_in(part, runs)
    ordered = sorted(runs.values(), key=lambda run: (run.time, run.name))
    limit = float("inf")
    for run in reversed(ordered):
        run.limit = limit
        limit = min(limit, run.first_step)
    return ordered


def _parts_of(path: Path) -> Iterator[RankPart]:
    """Yield what a log holds of each run; one that was appended to holds several."""
    part = RankPart(path, read_log_header(path), 0)
    place = 0
    for end, entry in iter_log(path):
        if isinstance(entry, LoggedBatch):
            part.add(place, end, entry)
        else:
            if entry.name in ("start", "resume") and (part.is_begun or part.numbers):
                yield part
                part = RankPart(path, part.header, part.number + 1)
            part.tell(entry)
        place = end
    yield part


def _sort_in(part: RankPart, runs: dict[tuple[str, int], Run]) -> None:
    header = part.header
    # Runs without a name are told apart by their folders.
    name = header.run or str(part.path.parent)
    run = runs.setdefault((name, part.number), Run(name, header.world_size, {}))
    other: Any = run.ranks.setdefault(header.rank, part)
    if other is not part:
        raise InvalidValueError(
            f"{part.path}: rank {header.rank} of run {name!r} is logged in {other.path} too; give "
            "every run a name of its own"
        )
    if run.world_size != header.world_size:
        raise InvalidValueError(
            f"{part.path}: world_size={header.world_size} must be {run.world_size}, as in other "
            f"logs of run {name!r}; give every run a name of its own"
        )
