"""Rows from a source to chunks: in order, or through a shuffle."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from itertools import count, takewhile
from typing import Any

import numpy as np
from numpy.typing import NDArray

from feedline.packing.chunk_writer import ChunkWriter
from feedline.packing.fitting import Fitting, Widened, nothing_of
from feedline.packing.formats import stored_columns
from feedline.packing.rows import (
    Rows,
    Source,
    SourceFault,
    concatenate_rows,
    part_of_rows,
    take_rows,
)
from feedline.packing.settings import Settings
from feedline.packing.shuffle import Shuffle
from feedline.packing.splits import make_splits
from feedline.packing.workshop import Workshop
from feedline.store.columns import Column
from feedline.store.manifest import ChunkFile, write_manifest
from feedline.store.progress import Progress
from feedline.store.writing import reported, sync
from feedline.words import several

Labels = NDArray[np.uint8]


class Pipeline:
    """A source with known columns, and everything derived from them."""

    def __init__(self, settings: Settings, source: Source, widened: Widened) -> None:
        self._settings = settings
        self._source = source
        self._fitting = Fitting(source, widened)
        self._columns = self._fitting.columns
        self._stored = stored_columns(settings.format, self._columns)
        self._cut = settings.cut(self._stored)
        row_bytes = sum(column.sample_bytes for column in self._stored)
        self._splits = make_splits(settings.shares, settings.seed, row_bytes)
        if source.num_rows is not None:
            self._refuse_empty(self._splits.counts(source.num_rows))

    @property
    def parameters(self) -> dict[str, Any]:
        """Everything that decides the result."""
        return {
            **self._settings.describe(self._source.identity, self._columns, self._cut),
            "widened": self._fitting.widened.describe(),
        }

    def run(self, workshop: Workshop, progress: Progress) -> int:
        """Write all chunks and their metadata; return how many were already finished."""
        folders = [workshop.data / name for name in self._splits.names]
        writer = ChunkWriter(
            folders=folders,
            format_=self._settings.format,
            columns=self._columns,
            cut=self._cut,
            journal=workshop.journal,
            entries=workshop.entries,
            num_threads=self._settings.threads,
            num_waiting=self._settings.num_waiting_chunks(self._cut),
        )
        try:
            if self._settings.shuffle:
                self._write_shuffled(workshop, writer, progress)
            else:
                self._write_in_order(writer, progress)
            self._refuse_empty(writer.positions)
            writer.finish()
        except BaseException:
            writer.abandon()
            raise
        with reported(workshop.data):
            for split, (folder, chunks) in enumerate(zip(folders, writer.finished, strict=True)):
                files = [chunks[number] for number in range(len(chunks))]
                assert sum(file.num_samples for file in files) == writer.positions[split]
                columns = [self._with_mean(column, split, writer) for column in self._stored]
                write_manifest(folder, files, columns)
            sync([*folders, workshop.data])
        return writer.num_resumed

    def _with_mean(self, column: Column, split: int, writer: ChunkWriter) -> Column:
        """Return a column of lists with the mean number of bytes that were written."""
        if not column.has_lists:
            return column
        num_bytes = sum(found[column.name] for found in writer.list_bytes[split].values())
        return replace(column, mean_bytes=-(-num_bytes // writer.positions[split]))

    def _write_in_order(self, writer: ChunkWriter, progress: Progress) -> None:
        needed = [_num_samples_at_start(chunks) for chunks in writer.finished]
        start = needed[0]
        if len(needed) > 1:
            start = self._splits.last_block_before(needed) * self._splits.block_rows
        writer.go_to(self._splits.counts(start))
        progress.begin("packing", self._source.num_rows_guess, done=start)
        for rows, labels in self._labelled(start, progress):
            if labels is None:
                writer.add(0, rows)
                continue
            for split in range(len(needed)):
                if (places := np.flatnonzero(labels == split)).size:
                    writer.add(split, take_rows(rows, places))
        for split in range(len(needed)):
            writer.end(split)

    def _write_shuffled(self, workshop: Workshop, writer: ChunkWriter, progress: Progress) -> None:
        budget, num_rows = self._settings.memory_budget, self._source.num_rows_guess
        # A row in a spill has its key beside it, and needs some room to be sorted.
        row_bytes = 24 + sum(column.sample_bytes for column in self._columns)
        num_splits = len(self._splits.names)
        with ThreadPoolExecutor(self._settings.threads) as pool:
            shuffle = Shuffle(
                workshop.spills,
                seed=self._settings.seed,
                num_bytes=None if num_rows is None else num_rows * row_bytes,
                max_bytes=budget // 4,
                pool=pool,
                num_splits=num_splits,
                like={column.name: nothing_of(column, 0) for column in self._columns},
                journal=workshop.journal,
                entries=workshop.entries,
                sync_bytes=2 * budget,
            )
            if not shuffle.is_done:
                progress.begin("dealing", num_rows, done=shuffle.num_rows)
                for rows, labels in self._labelled(shuffle.num_rows, progress):
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

    def _labelled(self, start: int, progress: Progress) -> Iterator[tuple[Rows, Labels | None]]:
        """Yield all rows from `start`, and their splits, if there are several."""
        has_splits, block_rows = len(self._splits.names) > 1, self._splits.block_rows
        block, skip = divmod(start, block_rows) if has_splits else (0, 0)
        held: list[Rows] = []
        num_held = 0
        for fitted in self._fitting.fitted(self._source.batches(start - skip)):
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
                labels = [self._splits.labels(block + n, block_rows) for n in range(num_blocks)]
                yield part_of_rows(rows, skip, whole), np.concatenate(labels)[skip:]
                held, num_held = [part_of_rows(rows, whole, num_held)], num_held - whole
                block, skip = block + num_blocks, 0
            progress.advance(num_rows)
        if num_held:
            labels_left = self._splits.labels(block, num_held)[skip:]
            yield part_of_rows(concatenate_rows(held), skip, num_held), labels_left

    def _refuse_empty(self, counts: list[int]) -> None:
        for name, num_rows in zip(self._splits.names, counts, strict=True):
            if not num_rows:
                raise SourceFault(
                    f"split {name!r} gets 0 of {several(sum(counts), 'row')} and must get at least "
                    "1; use a larger share, or more rows"
                )


def _num_samples_at_start(chunks: dict[int, ChunkFile]) -> int:
    """Return the number of samples before the first chunk that is missing."""
    return sum(chunks[number].num_samples for number in takewhile(chunks.__contains__, count()))
