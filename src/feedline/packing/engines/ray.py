"""The engine of a Ray cluster: the driver plans, keeps the journal, and leaves the work to tasks.

    read and deal   a part of the source -> blocks on shared storage, dealt to cells
    measure         only where bytes decide where chunks end: the sizes of rows, in order
    write           some chunks <- their cells, sorted

The result is that of the engine of one machine, to the byte. All that is finished is on disk and in
the journal before it counts, so whatever dies costs what it was doing. Where chunks can be read
from the source as they are, there are no blocks.
"""

from __future__ import annotations

import uuid
from collections import deque
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from feedline.packing.chunk_files import Finished
from feedline.packing.engines import tasks
from feedline.packing.engines.blocks import block_name
from feedline.packing.engines.cluster import Cluster, connected
from feedline.packing.engines.ordering import (
    Run,
    chunks_between,
    edges_by_bytes,
    even_edges,
    grouped,
    runs_of_cells,
    runs_of_files,
    runs_together,
)
from feedline.packing.engines.reading import PartReader, Stream
from feedline.packing.engines.resuming import entries_since
from feedline.packing.engines.tasks import Dealt, Work
from feedline.packing.parts import Part, PartedSource, for_one_core
from feedline.packing.plan import Plan
from feedline.packing.rows import (
    Rows,
    concatenate_rows,
    num_bytes_of,
    num_rows_of,
    part_of_rows,
)
from feedline.packing.splits import Splits
from feedline.packing.workshop import Entry, Workshop
from feedline.store.progress import Progress
from feedline.store.writing import remove, reported, sync

# More cells make no difference to memory, but each block has a piece of every one.
_MAX_PARTS = 4096
_NUM_PARTS_IF_UNKNOWN = 256


def run(plan: Plan, workshop: Workshop, progress: Progress) -> int:
    """Write all chunks and their metadata; return how many were already finished."""
    with connected() as ray:
        cluster = Cluster(
            ray,
            task_bytes=plan.settings.memory_budget,
            num_tasks=plan.settings.num_threads,
        )
        return _Driver(plan, workshop, progress, cluster).run()


class _Driver:
    def __init__(
        self, plan: Plan, workshop: Workshop, progress: Progress, cluster: Cluster
    ) -> None:
        self._plan = plan
        self._workshop = workshop
        self._progress = progress
        self._cluster = cluster
        self._folders = plan.folders(workshop.data)
        self._finished = Finished.taken_over(self._folders, plan.settings.format, workshop.entries)
        self._num_resumed = len(self._finished)
        self._begun, self._entries = self._begin()
        source = plan.source
        self._source: PartedSource | None = None
        if isinstance(source, PartedSource) and cluster.can_hold(source):
            self._source = source
        self._work = Work(
            source=None if self._source is None else for_one_core(self._source),
            fitting=plan.fitting,
            splits=plan.splits,
            cut=plan.cut,
            format=plan.settings.format,
            seed=plan.settings.seed if plan.settings.shuffle else None,
            num_parts=self._begun["num_parts"],
            folder=workshop.spills / self._begun["run"],
            data=self._folders,
            num_bytes=plan.settings.memory_budget // 4,
        )
        self._shared = cluster.put(self._work)

    def run(self) -> int:
        """Write everything; return how many chunks were already finished."""
        num_rows = self._num_rows_without_blocks()
        if num_rows is None and self._source is not None and self._can_stream(self._source):
            self._write_as_read(self._source)
            return self._num_resumed
        if num_rows is not None:
            names: list[str] = []
            runs = [[Run(start=0, num_rows=num_rows)]]
        else:
            names, runs = self._runs(self._dealt())
        counts = [one[-1].stop if one else 0 for one in runs]
        self._plan.refuse_empty(counts)
        shared = self._cluster.put(names)
        self._write(shared, runs, self._edges(shared, runs))
        self._plan.complete(self._workshop.data, self._finished, counts)
        return self._num_resumed

    def _begin(self) -> tuple[Entry, list[Entry]]:
        """Return how the work was begun, and the journal since; begin it if it was not."""
        entries = entries_since(self._workshop.entries, "cluster")
        begun = entries[0].get("cluster") if entries else None
        is_intact = not any("dealt" in entry for entry in entries)
        if not begun or not is_intact or not (self._workshop.spills / begun["run"]).is_dir():
            budget, num_rows = self._plan.settings.memory_budget, self._plan.source.num_rows_guess
            wanted = _NUM_PARTS_IF_UNKNOWN
            if num_rows is not None:
                wanted = -(-16 * num_rows * self._plan.spilled_row_bytes // budget)
            begun = {
                "run": uuid.uuid4().hex,
                "num_parts": max(1, min(_MAX_PARTS, wanted)) if self._plan.settings.shuffle else 1,
                "block_bytes": budget // 8,
            }
            entries = [{"cluster": begun}]
            # Before any file goes that an older entry speaks of.
            self._workshop.journal.append(*entries)
        folder = self._workshop.spills / begun["run"]
        with reported(folder):
            folder.mkdir(parents=True, exist_ok=True)
            for path in (*self._workshop.spills.iterdir(), *folder.glob(".*")):
                if path != folder:
                    remove(path)
            sync([self._workshop.spills, folder])
        return begun, entries

    @property
    def _is_in_order(self) -> bool:
        return not self._plan.settings.shuffle and len(self._plan.splits.names) == 1

    def _num_rows_without_blocks(self) -> int | None:
        """Return the number of rows if tasks can write chunks straight from the source."""
        source = self._source
        if source is None or source.num_rows is None or self._plan.cut.num_samples is None:
            return None
        return source.num_rows if self._is_in_order and self._parts_are_small else None

    def _can_stream(self, source: PartedSource) -> bool:
        """Whether chunks can be written from the memory of the tasks that read their rows."""
        return self._is_in_order and (source.num_rows is None or self._parts_are_small)

    @property
    def _parts_are_small(self) -> bool:
        """Where reading can begin only now and then, too much would be read in vain, or at once."""
        largest = max(part.stop - part.start for part in self._parts())
        return bool(largest * self._plan.spilled_row_bytes <= 2 * self._begun["block_bytes"])

    def _parts(self) -> Sequence[Part]:
        assert self._source is not None
        return self._source.parts(self._begun["block_bytes"], self._plan.spilled_row_bytes)

    def _write_as_read(self, source: PartedSource) -> None:
        """Write chunks from the memory of the tasks that have read their rows."""
        stream = Stream(
            plan=self._plan,
            source=source,
            cluster=self._cluster,
            shared=self._shared,
            # Chunks are written while few parts are in memory.
            part_bytes=self._begun["block_bytes"] // 2,
            entries=self._entries,
            finished=self._finished.files[0],
        )
        self._progress.begin("packing", source.num_rows_guess, done=stream.num_finished)
        self._record(stream.calls(), stream.take_read)
        self._plan.complete(self._workshop.data, self._finished, [stream.num_rows])

    def _dealt(self) -> list[Dealt]:
        """Return all blocks, and deal those that are missing."""
        done = self._dealt_before()
        num_done = sum(block.num_rows for block in done.values())
        self._progress.begin("dealing", self._plan.source.num_rows_guess, done=num_done)
        if not any(entry.get("num_blocks") == len(done) for entry in self._entries):
            if self._source is None:
                calls = self._calls_with_rows(len(done), num_done)
            elif self._source.num_rows is None:
                calls = self._calls_in_turn(self._source, done)
            else:
                calls = self._calls_anywhere(self._source.num_rows, done)
            for number, block in self._cluster.results(calls):
                with reported(self._work.folder):
                    sync([self._work.folder])
                self._workshop.journal.append({"block": number, **block.entry()})
                done[number] = block
                self._progress.advance(block.num_rows)
            self._workshop.journal.append({"num_blocks": len(done)})
        return [done[number] for number in range(len(done))]

    def _dealt_before(self) -> dict[int, Dealt]:
        """Return the blocks in the journal that are on disk."""
        done: dict[int, Dealt] = {}
        for entry in self._entries:
            if "block" in entry:
                block = Dealt.from_entry(entry["block"], entry, self._work)
                done.pop(entry["block"], None)
                if block is not None:
                    done[entry["block"]] = block
        if self._source is not None:
            return done
        # The driver reads on where a block is missing, and its next ones may be of other sizes.
        whole: dict[int, Dealt] = {}
        stop = 0
        while (block := done.get(len(whole))) is not None and block.start == stop:
            whole[len(whole)] = block
            stop += block.num_rows
        return whole

    def _calls_anywhere(self, num_rows: int, done: Container[int]) -> Iterator[tuple[int, Any]]:
        """Yield tasks that read parts whose rows are known."""
        for number, part in enumerate(self._parts()):
            if number not in done:
                arguments = self._shared, number, part, num_rows
                yield number, self._cluster.submit(tasks.deal_part, *arguments)

    def _calls_in_turn(
        self, source: PartedSource, done: Mapping[int, Dealt]
    ) -> Iterator[tuple[int, Any]]:
        """Yield tasks that deal parts which others have read: only they know how many rows."""
        parts = list(self._parts())
        # Rows are dealt once it is known that those of their block of splits are there.
        ready: deque[tuple[int, int, int, Any]] = deque()
        num_rows, size = 0, self._plan.splits.block_rows
        known = {number: block.num_rows for number, block in done.items()}
        reader = PartReader(
            plan=self._plan,
            source=source,
            parts=parts,
            cluster=self._cluster,
            shared=self._shared,
            known=known,
        )
        for number, (count, found) in enumerate(reader.read(tasks.read_part, 2)):
            if found:
                ready.append((number, num_rows, num_rows + count, found[0]))
            num_rows += count
            is_last = number + 1 == len(parts)
            while ready and (is_last or -(-ready[0][2] // size) * size <= num_rows):
                place, start, _, rows = ready.popleft()
                arguments = self._shared, place, rows, start, num_rows
                yield place, self._cluster.submit(tasks.deal_rows, *arguments)

    def _calls_with_rows(self, number: int, start: int) -> Iterator[tuple[int, Any]]:
        """Yield tasks that deal rows which the driver reads, whole blocks of splits at a time."""
        batches = self._plan.source.batches(start)
        for rows in _in_blocks(
            self._plan.fitting.fitted(batches), self._begun["block_bytes"], self._plan.splits
        ):
            count = num_rows_of(rows)
            arguments = self._shared, number, [rows], start, start + count
            yield number, self._cluster.submit(tasks.deal_rows, *arguments)
            number, start = number + 1, start + count

    def _runs(self, blocks: Sequence[Dealt]) -> tuple[list[str], list[list[Run]]]:
        """Return the files of all blocks, and the runs of each split."""
        names = [
            block_name(n, k) for n, block in enumerate(blocks) for k in range(len(block.sizes))
        ]
        tables = [table for block in blocks for table in block.tables]
        splits = range(len(self._plan.splits.names))
        if not self._plan.settings.shuffle:
            return names, [runs_of_files(tables, split) for split in splits]
        totals = np.zeros((self._work.num_cells, 3), np.int64)
        for table in tables:
            totals += table
        num_parts = self._work.num_parts
        cells = [range(split * num_parts, (split + 1) * num_parts) for split in splits]
        return names, [runs_of_cells(totals, some) for some in cells]

    def _edges(self, names: Any, runs: Sequence[Sequence[Run]]) -> list[list[int]]:
        """Return where the chunks of each split begin, and the end of the last."""
        num_samples = self._plan.cut.num_samples
        if num_samples is not None:
            return [even_edges(one[-1].stop, num_samples) for one in runs]
        found = next((entry["edges"] for entry in self._entries if "edges" in entry), None)
        if found is None:
            self._progress.begin("measuring", sum(one[-1].stop for one in runs))
            found = [edges_by_bytes(self._plan.cut, self._sizes(names, one)) for one in runs]
            self._workshop.journal.append({"edges": found})
        return found

    def _sizes(self, names: Any, runs: Sequence[Run]) -> Iterator[NDArray[np.int64]]:
        """Yield the bytes of all rows of a split, in order."""
        waiting: deque[Any] = deque()
        groups = runs_together(runs, self._rows_at_once(runs))
        for group in (*groups, None):
            if group is not None:
                waiting.append(self._cluster.submit(tasks.measure, self._shared, names, group))
            while len(waiting) > (0 if group is None else self._cluster.max_waiting):
                sizes = self._cluster.get(waiting.popleft())
                self._progress.advance(len(sizes))
                yield sizes

    def _write(
        self, names: Any, runs: Sequence[Sequence[Run]], edges: Sequence[Sequence[int]]
    ) -> None:
        """Write the chunks that are missing."""
        missing = []
        for split, places in enumerate(edges):
            finished = self._finished.files[split]
            missing.append([c for c in chunks_between(places) if c.number not in finished])
        num_rows = sum(places[-1] for places in edges)
        num_missing = sum(chunk.stop - chunk.start for some in missing for chunk in some)
        text = "shuffling" if self._plan.settings.shuffle else "packing"
        self._progress.begin(text, num_rows, done=num_rows - num_missing)

        def calls() -> Iterator[tuple[int, Any]]:
            for split, chunks in enumerate(missing):
                for group, needed in grouped(chunks, runs[split], self._rows_at_once(runs[split])):
                    arguments = self._shared, names, split, group, needed
                    yield split, self._cluster.submit(tasks.write_chunks, *arguments)

        self._record(calls())

    def _record(
        self, calls: Iterator[tuple[int, Any]], read: Callable[[], list[Entry]] = list
    ) -> None:
        """Take the chunks that tasks have written; `read` returns what else the journal is told."""
        for split, entries in self._cluster.results(calls):
            with reported(self._folders[split]):
                sync([self._folders[split]])
            self._workshop.journal.append(*read(), *entries)
            for entry in entries:
                self._finished.add(entry)
                self._progress.advance(entry["samples"])

    def _rows_at_once(self, runs: Sequence[Run]) -> int:
        """Return about how many rows a task takes: each has its share, and reads some in vain."""
        most = self._plan.settings.memory_budget // (2 * self._plan.spilled_row_bytes)
        return max(1, min(most, runs[-1].stop // (2 * self._cluster.max_waiting)))


def _in_blocks(rows: Iterable[Rows], num_bytes: int, splits: Splits) -> Iterator[Rows]:
    """Yield rows joined up to a size; all but the last are whole blocks of splits."""
    size = splits.block_rows if len(splits.names) > 1 else 1
    held: list[Rows] = []
    num_held = num_held_bytes = 0
    for some in rows:
        held.append(some)
        num_held += num_rows_of(some)
        num_held_bytes += num_bytes_of(some)
        if num_held_bytes >= num_bytes and num_held >= size:
            joined, whole = concatenate_rows(held), num_held - num_held % size
            yield part_of_rows(joined, 0, whole)
            held, num_held = [part_of_rows(joined, whole, num_held)], num_held - whole
            num_held_bytes = num_bytes_of(held[0])
    if num_held:
        yield concatenate_rows(held)
