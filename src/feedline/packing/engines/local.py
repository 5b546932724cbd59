"""The engine of one machine: one thread plans, others and processes decode, sort and write."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import count, takewhile

import numpy as np
from numpy.typing import NDArray

from feedline.packing.chunk_writer import ChunkWriter
from feedline.packing.engines.local_reading import Readers
from feedline.packing.engines.resuming import entries_since
from feedline.packing.fitting import nothing_of
from feedline.packing.plan import Plan
from feedline.packing.rows import Rows, concatenate_rows, part_of_rows, take_rows
from feedline.packing.shuffle import Shuffle
from feedline.packing.workshop import Workshop
from feedline.store.manifest import ChunkFile
from feedline.store.progress import Progress

Labels = NDArray[np.uint8]


def run(plan: Plan, workshop: Workshop, progress: Progress) -> int:
    """Write all chunks and their metadata; return how many were already finished."""
    writer = ChunkWriter(
        folders=plan.folders(workshop.data),
        format_=plan.settings.format,
        columns=plan.columns,
        cut=plan.cut,
        journal=workshop.journal,
        entries=workshop.entries,
        num_threads=plan.settings.threads,
        num_waiting=plan.settings.num_waiting_chunks(plan.cut),
    )
    try:
        with Readers(plan) as readers:
            if plan.settings.shuffle:
                _write_shuffled(plan, readers, workshop, writer, progress)
            else:
                _write_in_order(plan, readers, writer, progress)
        writer.finish()
    except BaseException:
        writer.abandon()
        raise
    plan.complete(workshop.data, writer.finished, writer.positions)
    return writer.num_resumed


def _write_in_order(plan: Plan, readers: Readers, writer: ChunkWriter, progress: Progress) -> None:
    needed = [_num_samples_at_start(chunks) for chunks in writer.finished.files]
    start = needed[0]
    if len(needed) > 1:
        start = plan.splits.last_block_before(needed) * plan.splits.block_rows
    writer.go_to(plan.splits.counts(start))
    progress.begin("packing", plan.source.num_rows_guess, done=start)
    for rows, labels in _labelled(plan, readers, start, progress):
        if labels is None:
            writer.add(0, rows)
            continue
        for split in range(len(needed)):
            if (places := np.flatnonzero(labels == split)).size:
                writer.add(split, take_rows(rows, places))
    for split in range(len(needed)):
        writer.end(split)


def _write_shuffled(
    plan: Plan, readers: Readers, workshop: Workshop, writer: ChunkWriter, progress: Progress
) -> None:
    budget, num_rows = plan.settings.memory_budget, plan.source.num_rows_guess
    num_splits = len(plan.splits.names)
    with ThreadPoolExecutor(plan.settings.threads) as pool:
        shuffle = Shuffle(
            workshop.spills,
            seed=plan.settings.seed,
            num_bytes=None if num_rows is None else num_rows * plan.spilled_row_bytes,
            max_bytes=budget // 4,
            pool=pool,
            num_splits=num_splits,
            like={column.name: nothing_of(column, 0) for column in plan.columns},
            journal=workshop.journal,
            entries=entries_since(workshop.entries, "cluster") or workshop.entries,
            sync_bytes=2 * budget,
        )
        if not shuffle.is_done:
            progress.begin("dealing", num_rows, done=shuffle.num_rows)
            for rows, labels in _labelled(plan, readers, shuffle.num_rows, progress):
                shuffle.add(rows, labels)
            shuffle.finish()
        progress.begin("shuffling", shuffle.num_rows)
        for split in range(num_splits):
            for num_found, found in shuffle.shuffled(split, partial(writer.is_finished, split)):
                if found is None:
                    writer.skip(split, num_found)
                else:
                    writer.add(split, found)
                progress.advance(num_found)
            writer.end(split)


def _labelled(
    plan: Plan, readers: Readers, start: int, progress: Progress
) -> Iterator[tuple[Rows, Labels | None]]:
    """Yield all rows from `start`, and their splits, if there are several."""
    has_splits, block_rows = len(plan.splits.names) > 1, plan.splits.block_rows
    block, skip = divmod(start, block_rows) if has_splits else (0, 0)
    held: list[Rows] = []
    num_held = 0
    for fitted in readers.rows(start - skip):
        num_rows = len(next(iter(fitted.values())))
        if not has_splits:
            yield fitted, None
            progress.advance(num_rows)
            continue
        held.append(fitted)
        num_held += num_rows
        if num_blocks := num_held // block_rows:
            # The rest of a block is held back: its share depends on whether it is the last.
            rows, whole = concatenate_rows(held), num_blocks * block_rows
            labels = [plan.splits.labels(block + n, block_rows) for n in range(num_blocks)]
            yield part_of_rows(rows, skip, whole), np.concatenate(labels)[skip:]
            held, num_held = [part_of_rows(rows, whole, num_held)], num_held - whole
            block, skip = block + num_blocks, 0
        progress.advance(num_rows)
    if num_held:
        labels_left = plan.splits.labels(block, num_held)[skip:]
        yield part_of_rows(concatenate_rows(held), skip, num_held), labels_left


def _num_samples_at_start(chunks: dict[int, ChunkFile]) -> int:
    """Return the number of samples before the first chunk that is missing."""
    return sum(chunks[number].num_samples for number in takewhile(chunks.__contains__, count()))
