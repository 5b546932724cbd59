"""The runs of a training, assembled from the logs of their ranks."""

from __future__ import annotations

import math
import struct
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from feedline.errors import InvalidValueError, check_integer, check_sequence
from feedline.feed.waits import PARTS, Wait
from feedline.plan import PastSegment
from feedline.plan.cursor import check_past
from feedline.runs.consumption_log import LogHeader, iter_log, read_log_header
from feedline.runs.log_records import Ids, LoggedBatch, LoggedEvent

# How far apart the places of a loader in two epochs are, as it numbers them without a clock.
PLACES_PER_EPOCH = 2**40

# More would not have a place.
_MOST_EPOCHS = 2**21
_MOST_MISSING = 1000

# One row for each batch; the seconds of waiting come last, with their parts if these are known.
_NAMES = ("epoch", "step", "batch", "num_ids", "num_real")
_WAITS = ("wait", *PARTS)
_ROW = struct.Struct("<qqqqqdddd")
_ROWS = np.dtype([*((name, "<i8") for name in _NAMES), *((name, "<f8") for name in _WAITS)])
_UNKNOWN = (math.nan,) * len(PARTS)

Table = NDArray[np.void]


class SkippedIds(NamedTuple):
    """Samples that were skipped in one batch of one rank."""

    epoch: int
    step: int
    batch: int
    ids: Ids


class SkippedBatches(NamedTuple):
    """Samples of batches that a run skips in an epoch, and the history that it resumed from."""

    epoch: int
    ids: Ids
    history: tuple[PastSegment, ...]


@dataclass
class RankPart:
    """What one rank logged in one run, up to byte `end` of its file.

    `has_clock` is whether a `StepScheduler` numbered the steps, or None if the log does not contain
    it. `place` is the position of the loader; each batch advances it by `places_per_batch`.
    """

    path: Path
    header: LogHeader
    number: int
    end: int
    is_begun: bool = False
    time: float = 0.0
    resumed_at: int | None = None
    has_stopped: bool = False
    has_clock: bool | None = None
    place: int = 0
    places_per_batch: int = 1
    is_renumbered: bool = False
    ends: dict[int, int] = field(default_factory=dict)
    dropped: dict[int, int] = field(default_factory=dict)
    skips: list[SkippedIds] = field(default_factory=list)
    skipped_batches: list[SkippedBatches] = field(default_factory=list)
    spans: dict[int, list[list[int]]] = field(default_factory=dict)
    _last_epoch: int | None = None
    rows: bytearray = field(default_factory=bytearray)
    events: list[LoggedEvent] = field(default_factory=list)

    @cached_property
    def table(self) -> Table:
        """One row for each batch: epoch, step, batch, num_ids, num_real, wait and its parts, which
        are NaN where they are unknown.

        Use it after the last batch.
        """
        return np.frombuffer(self.rows, dtype=_ROWS)

    def add(self, end: int, batch: LoggedBatch) -> None:
        """Add the next batch, which ends at `end` in the file."""
        sizes = len(batch.ids), len(batch.real_ids)
        wait = batch.wait
        parts = map(wait.__getattribute__, PARTS) if isinstance(wait, Wait) else _UNKNOWN
        self.rows += _ROW.pack(batch.epoch, batch.step, batch.batch, *sizes, wait, *parts)
        spans = self.spans.setdefault(batch.epoch, [])
        # Epochs may take turns, so each has several spans; none is read for another epoch.
        if spans and self._last_epoch == batch.epoch:
            spans[-1][1] = end
        else:
            spans.append([self.end, end])
        self._last_epoch = batch.epoch

    def tell(self, event: LoggedEvent) -> None:
        """Add an event."""
        fields = event.fields
        self.events.append(event)
        if event.name in ("start", "resume"):
            self.is_begun = True
            self.time = _seconds(fields.get("time"))
            if isinstance(fields.get("has_clock"), bool):
                self.has_clock = fields["has_clock"]
                self.place = self._number_in(event, "place")
                self.places_per_batch = self._number_in(event, "places_per_batch")
        if event.name == "resume":
            self.resumed_at = self._number_in(event, "step")
        elif event.name == "epoch_end":
            epoch = self._number_in(event, "epoch")
            self.ends[epoch] = self._number_in(event, "step")
            if "num_dropped" in fields:
                self.dropped[epoch] = self._number_in(event, "num_dropped")
        elif event.name == "skipped":
            epoch, step, batch = (self._number_in(event, n) for n in ("epoch", "step", "batch"))
            self.skips.append(SkippedIds(epoch, step, batch, self._ids_in(event)))
        elif event.name == "skipped_batches":
            epoch, history = self._number_in(event, "epoch"), self._history_in(event)
            self.skipped_batches.append(SkippedBatches(epoch, self._ids_in(event), history))
        elif event.name == "stop":
            self.has_stopped = True

    def batches(self, epoch: int, limit: float = float("inf")) -> Iterator[LoggedBatch]:
        """Yield the batches of an epoch in steps below `limit`."""
        for span in self.spans.get(epoch, ()):
            for _, entry in iter_log(self.path, *span):
                if isinstance(entry, LoggedBatch):
                    if self.is_renumbered:
                        entry = entry._replace(step=int(self._place_of(epoch, entry.batch)))
                    if entry.step < limit:
                        yield entry

    def skipped(self, epoch: int, limit: float = float("inf")) -> Iterator[Ids]:
        """Yield the samples of an epoch that were skipped in steps below `limit`."""
        for skip in self.skips:
            step = int(self._place_of(epoch, skip.batch)) if self.is_renumbered else skip.step
            if skip.epoch == epoch and step < limit:
                yield skip.ids

    def renumber(self) -> None:
        """Number the steps by the positions of the loader, for a loader without a scheduler."""
        epochs = [self.place // PLACES_PER_EPOCH, *self.ends, *self.spans]
        most = int(self.table["batch"].max(initial=0)) * self.places_per_batch
        is_below = int(self.table["batch"].min(initial=0)) < 0
        if max(epochs) >= _MOST_EPOCHS or most >= PLACES_PER_EPOCH or is_below:
            raise InvalidValueError(
                f"{self.path}: has epoch {max(epochs)} and place {most} in it, which must be below "
                f"{_MOST_EPOCHS} and {PLACES_PER_EPOCH}; remove this log from the audit"
            )
        self.is_renumbered = True
        self.table = self.table.copy()
        self.table["step"] = self._place_of(self.table["epoch"], self.table["batch"])
        self.resumed_at = None if self.resumed_at is None else self.place
        for epoch in self.ends:
            own = self.table["step"][self.table["epoch"] == epoch]
            self.ends[epoch] = int(own.max(initial=self._place_of(epoch, 0)))

    def _place_of(self, epoch: Any, batch: Any) -> Any:
        is_first = epoch == self.place // PLACES_PER_EPOCH
        start = np.where(is_first, self.place, epoch * PLACES_PER_EPOCH)
        return start + batch * self.places_per_batch

    def _ids_in(self, event: LoggedEvent) -> Ids:
        ids = event.fields.get("ids")
        if isinstance(ids, list) and all(type(one) is int and abs(one) < 2**63 for one in ids):
            return np.array(ids, dtype=np.int64)
        raise InvalidValueError(
            f"{self.path}: in event {event.name!r}, ids={ids!r:.80} must be a list of integers"
        )

    def _history_in(self, event: LoggedEvent) -> tuple[PastSegment, ...]:
        try:
            return tuple(map(check_past, check_sequence("history", event.fields.get("history"))))
        except InvalidValueError as error:
            raise InvalidValueError(f"{self.path}: in event {event.name!r}, {error}") from None

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
    _counts: tuple[float, dict[int, int], dict[int, int]] | None = None

    @property
    def time(self) -> float:
        """When it began."""
        return min(part.time for part in self.ranks.values())

    @property
    def first_rank(self) -> RankPart:
        """What the lowest rank logged."""
        return self.ranks[min(self.ranks)]

    @property
    def info(self) -> Mapping[str, Any]:
        """The run's info about its data."""
        return next(iter(self.ranks.values())).header.info

    @property
    def batch_size(self) -> int:
        """The number of samples in a batch: from the info of the run, or else its largest batch."""
        told = self.info.get("batch_size")
        if told is not None:
            return check_integer("batch_size", told, 1)
        return max(int(part.table["num_ids"].max(initial=1)) for part in self.ranks.values())

    @property
    def entry_size(self) -> int:
        """The number of samples that are dealt to a rank together: a batch, unless the run's info
        says otherwise."""
        told = self.info.get("entry_size")
        return self.batch_size if told is None else check_integer("entry_size", told, 1)

    @property
    def first_step(self) -> float:
        """The step that it began with; infinite if it logged nothing."""
        steps = [part.resumed_at for part in self.ranks.values() if part.resumed_at is not None]
        if not steps:
            steps = [int(part.table["step"][0]) for part in self.ranks.values() if part.rows]
        return min(steps, default=float("inf"))

    def counted(self, rank: int) -> Table:
        """Return the rows of a rank's table that count."""
        table = self.ranks[rank].table
        return table[table["step"] < self.limit]

    def num_batches(self, epoch: int) -> int:
        """Return how many batches of an epoch count, on the rank that has most."""
        return self._by_epoch()[0].get(epoch, 0)

    def num_logged(self, epoch: int) -> int:
        """Return how many real samples of an epoch count, on all ranks together."""
        return self._by_epoch()[1].get(epoch, 0)

    def _by_epoch(self) -> tuple[dict[int, int], dict[int, int]]:
        """Return the most batches of a rank and the samples of all, counted once for all epochs."""
        if self._counts is None or self._counts[0] != self.limit:
            batches: dict[int, int] = {}
            samples: dict[int, int] = {}
            for table in map(self.counted, self.ranks):
                epochs, places = np.unique(table["epoch"], return_inverse=True)
                sums = np.zeros(len(epochs), np.int64)
                np.add.at(sums, places, table["num_real"])
                counts = np.bincount(places, minlength=len(epochs))
                rows = zip(epochs.tolist(), counts.tolist(), sums.tolist(), strict=True)
                for epoch, count, total in rows:
                    batches[epoch] = max(batches.get(epoch, 0), count)
                    samples[epoch] = samples.get(epoch, 0) + total
            self._counts = self.limit, batches, samples
        return self._counts[1:]

    @property
    def counts(self) -> bool:
        """Whether anything of it counts."""
        return self.first_step < self.limit

    def skipped_batches(self, epoch: int) -> list[SkippedBatches]:
        """Return the batches of an epoch that it skips, as it was told when it resumed."""
        parts = self.ranks.values()
        return [told for part in parts for told in part.skipped_batches if told.epoch == epoch]

    @property
    def epochs_with_skips(self) -> set[int]:
        """The epochs that it skips batches of."""
        parts = self.ranks.values()
        return {told.epoch for part in parts for told in part.skipped_batches}

    def ends_of(self, epoch: int) -> list[RankPart]:
        """Return the ranks that reached the end of an epoch in a step that counts."""
        return [part for part in self.ranks.values() if part.ends.get(epoch, np.inf) < self.limit]

    @property
    def missing_ranks(self) -> list[int]:
        """The first ranks whose logs are missing, if the others have anything that counts."""
        if not any(len(self.counted(rank)) for rank in self.ranks):
            return []
        absent = (rank for rank in range(self.world_size) if rank not in self.ranks)
        return list(islice(absent, _MOST_MISSING))

    @property
    def parted_step(self) -> int | None:
        """The first step in which ranks diverged."""
        tables = [self.counted(rank)[["epoch", "step"]] for rank in sorted(self.ranks)]
        shortest, longest = min(tables, key=len), max(tables, key=len)
        steps = []
        for table in tables:
            differs = np.flatnonzero(table[: len(shortest)] != shortest)
            if len(differs):
                steps += [int(shortest["step"][differs[0]]), int(table["step"][differs[0]])]
        # Ranks of a run that was killed, or still runs, are not at the same step.
        is_settled = np.isfinite(self.limit) or any(
            part.has_stopped or part.ends for part in self.ranks.values()
        )
        if is_settled and len(longest) > len(shortest):
            steps.append(int(longest["step"][len(shortest)]))
        return min(steps, default=None)


def _seconds(value: Any) -> float:
    try:
        return float(value) if isinstance(value, int | float) else 0.0
    except OverflowError:
        return 0.0


def runs_of(paths: Iterable[Path]) -> list[Run]:
    """Return the runs in the order in which they began, each with the step up to which it counts.

    A run that was resumed counts up to the checkpoint that was loaded: later steps did not affect
    the model.
    """
    runs: dict[tuple[str, int], Run] = {}
    for path in paths:
        for part in parts_of(path):
            _sort_in(part, runs)
    parts = [part for run in runs.values() for part in run.ranks.values()]
    if {part.has_clock for part in parts} == {True, False}:
        # Steps of a clock and those of a loader alone cannot be compared; its places can.
        for part in parts:
            part.renumber()
    ordered = sorted(runs.values(), key=lambda run: (run.time, run.name))
    limit = float("inf")
    for run in reversed(ordered):
        run.limit = limit
        limit = min(limit, run.first_step)
    return ordered


def parts_of(path: Path) -> Iterator[RankPart]:
    """Yield the part of each run in a log; a log that was appended to has several."""
    header = read_log_header(path)
    with path.open("rb") as file:
        part = RankPart(path, header, 0, len(file.readline()))
    for end, entry in iter_log(path):
        if isinstance(entry, LoggedBatch):
            part.add(end, entry)
        else:
            if entry.name in ("start", "resume") and (part.is_begun or part.rows):
                yield part
                part = RankPart(path, header, part.number + 1, end)
            part.tell(entry)
        part.end = end
    yield part


def _sort_in(part: RankPart, runs: dict[tuple[str, int], Run]) -> None:
    header = part.header
    # Runs without a name are distinguished by their folders.
    name = header.run or str(part.path.parent)
    run = runs.setdefault((name, part.number), Run(name, header.world_size, {}))
    other: Any = run.ranks.setdefault(header.rank, part)
    if other is not part:
        raise InvalidValueError(
            f"{part.path}: rank {header.rank} of run {name!r} is logged in {other.path} too; give "
            "every run its own name"
        )
    if run.world_size != header.world_size:
        raise InvalidValueError(
            f"{part.path}: world_size={header.world_size} must be {run.world_size}, as in other "
            f"logs of run {name!r}; give every run its own name"
        )
