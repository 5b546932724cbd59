"""The way of rows from a source to chunks: in their order, or through a shuffle."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from feedline.packing.batch import Batch, Source, SourceFault, check_batches, columns_in
from feedline.packing.chunk_writer import ChunkWriter, Cutter
from feedline.packing.formats import stored_columns
from feedline.packing.settings import Settings
from feedline.packing.shuffle import Shuffle
from feedline.packing.splits import make_splits
from feedline.packing.workshop import Workshop
from feedline.store.manifest import ChunkFile, write_manifest
from feedline.store.progress import Progress
from feedline.store.writing import reported, sync

Labels = NDArray[np.uint8]


class Pipeline:
    """A source with its columns known, and all that follows from them."""

    def __init__(self, settings: Settings, source: Source) -> None:
        self._settings = settings
        self._source = source
        self._columns = _first_columns(source)
        self._stored = stored_columns(settings.format, self._columns)
        row_bytes = sum(column.row_bytes for column in self._stored)
        self._chunk_samples = settings.num_samples_per_chunk(row_bytes)
        self._num_waiting = settings.num_waiting_chunks(self._chunk_samples * row_bytes)
        self._splits = make_splits(settings.shares, settings.seed, row_bytes)
        if source.num_rows is not None:
            self._refuse_empty(self._splits.counts(source.num_rows))

    @property
    def parameters(self) -> dict[str, Any]:
        """All that the result depends on."""
        return self._settings.describe(self._source.identity, self._columns, self._chunk_samples)

    def run(self, workshop: Workshop, progress: Progress) -> int:
        """Write all chunks and their metadata; return how many were there already."""
        folders = [workshop.data / name for name in self._splits.names]
        writer = ChunkWriter(
            folders=folders,
            format_=self._settings.format,
            chunk_samples=self._chunk_samples,
            journal=workshop.journal,
            entries=workshop.entries,
            num_threads=self._settings.threads,
            num_waiting=self._num_waiting,
        )
        try:
            if self._settings.shuffle:
                counts = self._shuffled(workshop, writer, progress)
            else:
                counts = self._in_order(writer, progress)
            self._refuse_empty(counts)
            writer.finish()
        except BaseException:
            writer.abandon()
            raise
        with reported(workshop.data):
            for folder, count, finished in zip(folders, counts, writer.finished, strict=True):
                files = [finished[number] for number in range(len(finished))]
                assert sum(file.num_samples for file in files) == count
                write_manifest(folder, files, self._stored)
            sync([*folders, workshop.data])
        return writer.num_resumed

    def _in_order(self, writer: ChunkWriter, progress: Progress) -> list[int]:
        """Write all chunks that are not finished; return the number of samples of each split."""
        needed = [_num_samples_at_start(chunks) for chunks in writer.finished]
        start = needed[0]
        if len(needed) > 1:
            start = self._splits.last_block_before(needed) * self._splits.block_rows
        positions = self._splits.counts(start)
        cutters = [self._cutter(writer, split, place) for split, place in enumerate(positions)]
        progress.begin("packing", self._source.num_rows_guess, done=start)
        for batch, labels in self._labelled(start, progress):
            if labels is None:
                cutters[0].add(batch.arrays)
                continue
            for split, cutter in enumerate(cutters):
                if (rows := np.flatnonzero(labels == split)).size:
                    cutter.add({name: a.take(rows, axis=0) for name, a in batch.arrays.items()})
        for cutter in cutters:
            cutter.finish()
        return [cutter.position for cutter in cutters]

    def _shuffled(self, workshop: Workshop, writer: ChunkWriter, progress: Progress) -> list[int]:
        budget, num_rows = self._settings.memory_budget, self._source.num_rows_guess
        # A row in a spill has its key beside it, and needs some room to be sorted.
        row_bytes = 24 + sum(column.row_bytes for column in self._columns)
        with ThreadPoolExecutor(self._settings.threads) as pool:
            shuffle = Shuffle(
                workshop.spills,
                seed=self._settings.seed,
                num_bytes=None if num_rows is None else num_rows * row_bytes,
                max_bytes=budget // 4,
                pool=pool,
                num_splits=len(self._splits.names),
                like={c.name: np.empty((0, *c.shape), c.dtype) for c in self._columns},
                journal=workshop.journal,
                entries=workshop.entries,
                sync_bytes=2 * budget,
            )
            if not shuffle.is_done:
                progress.begin("dealing", num_rows, done=shuffle.num_rows)
                for batch, labels in self._labelled(shuffle.num_rows, progress):
                    shuffle.add(batch.arrays, labels)
                shuffle.finish()
            progress.begin("shuffling", shuffle.num_rows)
            counts = []
            for split in range(len(self._splits.names)):
                cutter = self._cutter(writer, split, 0)
                is_finished = partial(self._is_finished, writer.finished[split])
                for count, rows in shuffle.shuffled(split, is_finished):
                    if rows is None:
                        cutter.skip(count)
                    else:
                        cutter.add(rows)
                    progress.advance(count)
                cutter.finish()
                counts.append(cutter.position)
        return counts

    def _cutter(self, writer: ChunkWriter, split: int, position: int) -> Cutter:
        return Cutter(
            columns=self._columns,
            chunk_samples=self._chunk_samples,
            position=position,
            finished=frozenset(writer.finished[split]),
            on_chunk=partial(writer.submit, split),
        )

    def _is_finished(self, finished: dict[int, ChunkFile], start: int, stop: int) -> bool:
        """Whether rows are all in chunks that are finished."""
        size = self._chunk_samples
        return all(number in finished for number in range(start // size, -(-stop // size)))

    def _labelled(self, start: int, progress: Progress) -> Iterator[tuple[Batch, Labels | None]]:
        """Yield all rows from `start` on, and their splits, if there are several."""
        if len(self._splits.names) == 1:
            for batch in check_batches(self._source.batches(start), self._columns):
                yield batch, None
                progress.advance(batch.num_rows)
            return
        block_rows = self._splits.block_rows
        block, skip = divmod(start, block_rows)
        held: list[Batch] = []
        for batch in check_batches(self._source.batches(start - skip), self._columns):
            held.append(batch)
            num_blocks = sum(part.num_rows for part in held) // block_rows
            if num_blocks:
                # The rest of a block is held back: its share depends on whether it is the last.
                rows = Batch.joined(held)
                labels = [self._splits.labels(block + n, block_rows) for n in range(num_blocks)]
                whole = num_blocks * block_rows
                yield rows.part(skip, whole), np.concatenate(labels)[skip:]
                held = [rows.part(whole)] if rows.num_rows > whole else []
                block, skip = block + num_blocks, 0
            progress.advance(batch.num_rows)
        if held:
            rows = Batch.joined(held)
            yield rows.part(skip), self._splits.labels(block, rows.num_rows)[skip:]

    def _refuse_empty(self, counts: list[int]) -> None:
        for name, count in zip(self._splits.names, counts, strict=True):
            if not count:
                raise SourceFault(
                    f"split {name!r} gets 0 of {sum(counts)} rows and must get at least 1; give it "
                    "a larger share, or more rows"
                )


def _first_columns(source: Source) -> list[Any]:
    for batch in source.batches(0):
        if batch.num_rows:
            return columns_in(batch)
    raise SourceFault("source has 0 rows and must have at least 1; check that it is the right one")


def _num_samples_at_start(chunks: dict[int, ChunkFile]) -> int:
    """Return the number of samples before the first chunk that is missing."""
    total, number = 0, 0
    while number in chunks:
        total += chunks[number].num_samples
        number += 1
    return total
