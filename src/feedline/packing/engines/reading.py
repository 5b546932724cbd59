"""Parts of a source that tasks read ahead in turn, since only they know how many rows these have.

A `Stream` leaves what they have read in the memory of the cluster until it is in chunks, so that
packing in order writes everything once.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from feedline.packing.engines import tasks
from feedline.packing.engines.cluster import Cluster
from feedline.packing.engines.ordering import Chunk, Cutting
from feedline.packing.fitting import Wider
from feedline.packing.parts import Part, PartedSource
from feedline.packing.plan import Plan
from feedline.packing.rows import SourceFault
from feedline.packing.workshop import Entry
from feedline.store.manifest import ChunkFile


class PartReader:
    """Reads the parts of a source by tasks, a few of them ahead.

    Args:
        plan: What is packed.
        source: Its source.
        parts: The parts of the source.
        cluster: Where tasks run.
        shared: The reference to what tasks share.
        known: The number of rows of parts that need not be read.
    """

    def __init__(
        self,
        *,
        plan: Plan,
        source: PartedSource,
        parts: Sequence[Part],
        cluster: Cluster,
        shared: Any,
        known: Mapping[int, int],
    ) -> None:
        self._plan = plan
        self._source = source
        self._parts = parts
        self._cluster = cluster
        self._shared = shared
        self._known = known

    def read(self, task: Callable[..., Any], num_returns: int) -> Iterator[tuple[int, list[Any]]]:
        """Yield the number of rows of each part, and references to what else the task returns.

        There are none of parts that need not be read.
        """
        waiting: deque[list[Any]] = deque()
        ahead = iter(range(len(self._parts)))
        row = 0
        for number, part in enumerate(self._parts):
            while len(waiting) < self._cluster.max_waiting and (later := next(ahead, -1)) >= 0:
                arguments = self._shared, self._parts[later]
                is_known = later in self._known
                submit = self._cluster.submit
                waiting.append(
                    [] if is_known else submit(task, *arguments, num_returns=num_returns)
                )
            row = row if number and self._parts[number - 1].file == part.file else 0
            found = waiting.popleft()
            num_rows = self._num_read(part, row, found[0]) if found else self._known[number]
            yield num_rows, found[1:]
            row += num_rows

    def _num_read(self, part: Part, row: int, count: Any) -> int:
        try:
            return int(self._cluster.get(count))
        except Wider:
            raise
        except SourceFault:
            # Only here is known which rows these are, so that the error can tell.
            first = row if part.file is not None else part.start
            for _ in self._plan.fitting.fitted(self._source.read(part, first)):
                pass
            raise


class Stream:
    """The chunks of a source in its order, written from the memory of tasks that have read it.

    What a run has read is told to the journal: after an interruption, reading begins at the part
    that has the first row of the first chunk that is missing.

    Args:
        plan: What is packed, in order and without splits.
        source: Its source.
        part_bytes: About the bytes of a part.
        cluster: Where tasks run.
        shared: The reference to what tasks share.
        entries: The journal since the work was begun.
        finished: The chunks that are finished, by number.
    """

    def __init__(
        self,
        *,
        plan: Plan,
        source: PartedSource,
        part_bytes: int,
        cluster: Cluster,
        shared: Any,
        entries: Sequence[Entry],
        finished: Mapping[int, ChunkFile],
    ) -> None:
        self._cluster = cluster
        self._shared = shared
        self._finished = dict(finished)
        self._chunk = self._start = 0
        while (file := self._finished.get(self._chunk)) is not None:
            self._chunk, self._start = self._chunk + 1, self._start + file.num_samples
        self._cutting = Cutting(plan.cut, self._chunk, self._start)
        self._has_sizes = plan.cut.num_samples is None
        self._rows_at_once = max(1, part_bytes // plan.spilled_row_bytes)
        parts = source.parts(part_bytes, plan.spilled_row_bytes)
        told = {entry["part"]: entry["rows"] for entry in entries if "part" in entry}
        known: dict[int, int] = {}
        stop = 0
        while (count := told.get(len(known))) is not None and stop + count <= self._start:
            known[len(known)], stop = count, stop + count
        self._reader = PartReader(
            plan=plan, source=source, parts=parts, cluster=cluster, shared=shared, known=known
        )
        self._read: list[Entry] = []
        #: The number of rows in chunks that were finished before.
        self.num_finished = sum(file.num_samples for file in self._finished.values())
        #: The number of rows that were read, or need not be.
        self.num_rows = 0

    def take_read(self) -> list[Entry]:
        """Return what the journal should say of parts that were read since the last time."""
        entries, self._read = self._read, []
        return entries

    def calls(self) -> Iterator[tuple[int, Any]]:
        """Yield tasks that write the chunks that are missing, each with the number of its split."""
        # Where each part that is held in memory begins and ends, and its rows.
        held: deque[tuple[int, int, Any]] = deque()
        group: list[Chunk] = []
        reading = self._reader.read(tasks.read_sized_part, 3)
        for number, (count, found) in enumerate(reading):
            start, self.num_rows = self.num_rows, self.num_rows + count
            if not found:
                continue
            self._read.append({"part": number, "rows": count})
            held.append((start, self.num_rows, found[1]))
            skipped = min(count, max(0, self._start - start))
            sizes = np.zeros(count, np.int64)
            if self._has_sizes:
                sizes = self._cluster.get(found[0])
            for chunk in self._cutting.add(sizes[skipped:]):
                yield from self._calls_of(chunk, group, held)
        for chunk in self._cutting.end():
            yield from self._calls_of(chunk, group, held)
        yield from self._call(group, held)

    def _calls_of(
        self, chunk: Chunk, group: list[Chunk], held: deque[tuple[int, int, Any]]
    ) -> Iterator[tuple[int, Any]]:
        """Take the next chunk; yield the task that writes those before it, if there are enough."""
        if chunk.number in self._finished:
            yield from self._call(group, held)
        else:
            group.append(chunk)
        if group and chunk.stop - group[0].start >= self._rows_at_once:
            yield from self._call(group, held)
        while held and held[0][1] <= (group[0].start if group else chunk.stop):
            held.popleft()

    def _call(
        self, group: list[Chunk], held: deque[tuple[int, int, Any]]
    ) -> Iterator[tuple[int, Any]]:
        if not group:
            return
        first, stop = group[0].start, group[-1].stop
        needed = [part for part in held if part[1] > first and part[0] < stop]
        parts = [rows for *_, rows in needed]
        arguments = self._shared, list(group), needed[0][0], *parts
        group.clear()
        yield 0, self._cluster.submit(tasks.write_read_chunks, *arguments)
