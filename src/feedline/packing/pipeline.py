"""The way of rows from a source to chunks: in their order, or through a shuffle."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import numpy as np
from numpy.typing import NDArray

from feedline.packing.batch import Batch, Source, check_batches, concatenate
from feedline.packing.chunk_writer import ChunkWriter
from feedline.packing.cutter import Cutter
from feedline.packing.settings import Settings
from feedline.packing.shuffle import Dealer, num_parts_for, rows_in, sorted_rows
from feedline.packing.spills import Spills
from feedline.packing.splits import Splits
from feedline.packing.workshop import Workshop
from feedline.store.columns import Column
from feedline.store.manifest import ChunkFile
from feedline.store.progress import Progress

__all__ = ["Pipeline"]

Labels = NDArray[np.uint8]


class Pipeline:
    """Everything that takes part in packing one source."""

    def __init__(
        self,
        *,
        settings: Settings,
        source: Source,
        columns: list[Column],
        splits: Splits,
        chunk_samples: int,
        workshop: Workshop,
        writer: ChunkWriter,
        progress: Progress,
    ) -> None:
        self._settings = settings
        self._source = source
        self._columns = columns
        self._splits = splits
        self._chunk_samples = chunk_samples
        self._workshop = workshop
        self._writer = writer
        self._progress = progress

    def run(self) -> list[int]:
        """Write all chunks that are not finished; return the number of samples of each split."""
        return self._shuffled() if self._settings.shuffle else self._in_order()

    def _in_order(self) -> list[int]:
        needed = [_num_samples_at_start(chunks) for chunks in self._writer.finished]
        start = needed[0]
        if len(needed) > 1:
            start = self._splits.last_block_before(needed) * self._splits.block_rows
        positions = self._splits.counts(start)
        cutters = [self._cutter(split, position) for split, position in enumerate(positions)]
        self._progress.begin("packing", self._source.num_rows_guess, done=start)
        for batch, labels in self._labelled(start):
            if labels is None:
                cutters[0].add(batch.arrays)
                continue
            for split, cutter in enumerate(cutters):
                if (rows := np.flatnonzero(labels == split)).size:
                    cutter.add({name: a.take(rows, axis=0) for name, a in batch.arrays.items()})
        for cutter in cutters:
            cutter.finish()
        return [cutter.position for cutter in cutters]

    def _shuffled(self) -> list[int]:
        budget = self._settings.memory_budget
        spills = Spills(self._workshop.spills, self._columns)
        max_rows = rows_in(budget // 4, spills.dtype.itemsize)
        with ThreadPoolExecutor(self._settings.num_threads) as pool:
            dealer = Dealer(
                spills=spills,
                journal=self._workshop.journal,
                entries=self._workshop.entries,
                num_splits=len(self._splits.names),
                num_parts=num_parts_for(self._source.num_rows_guess, max_rows),
                max_rows=max(1, max_rows // 2),
                sync_rows=2 * budget // spills.dtype.itemsize,
                pool=pool,
            )
            if not dealer.is_done:
                total = self._source.num_rows_guess
                self._progress.begin("dealing", total, done=dealer.num_rows)
                for batch, labels in self._labelled(dealer.num_rows):
                    dealer.add(self._settings.seed, batch, labels)
                dealer.finish()
        self._progress.begin("shuffling", dealer.num_rows)
        counts = []
        for split, dealt in enumerate(dealer.dealt()):
            cutter = self._cutter(split, 0)
            for count, columns in sorted_rows(
                spills,
                dealt,
                max_rows,
                journal=self._workshop.journal,
                entries=self._workshop.entries,
                is_finished=partial(self._is_finished, split),
            ):
                if columns is None:
                    cutter.skip(count)
                else:
                    cutter.add(columns)
                self._progress.advance(count)
            cutter.finish()
            counts.append(cutter.position)
        return counts

    def _cutter(self, split: int, position: int) -> Cutter:
        return Cutter(
            columns=self._columns,
            chunk_samples=self._chunk_samples,
            position=position,
            finished=frozenset(self._writer.finished[split]),
            on_chunk=partial(self._writer.submit, split),
        )

    def _is_finished(self, split: int, start: int, stop: int) -> bool:
        """Whether rows are all in chunks that are finished."""
        size, finished = self._chunk_samples, self._writer.finished[split]
        return all(number in finished for number in range(start // size, -(-stop // size)))

    def _labelled(self, start: int) -> Iterator[tuple[Batch, Labels | None]]:
        """Yield all rows from `start` on, and their splits, if there are several."""
        if len(self._splits.names) == 1:
            for batch in check_batches(self._source.batches(start), self._columns):
                yield batch, None
                self._progress.advance(batch.num_rows)
            return
        block_rows = self._splits.block_rows
        block, skip = divmod(start, block_rows)
        held: list[Batch] = []
        for batch in check_batches(self._source.batches(start - skip), self._columns):
            held.append(batch)
            num_blocks = sum(part.num_rows for part in held) // block_rows
            if num_blocks:
                # The rest of a block is held back: its share depends on whether it is the last.
                rows = concatenate(held)
                labels = [self._splits.labels(block + n, block_rows) for n in range(num_blocks)]
                whole = num_blocks * block_rows
                yield rows.part(skip, whole), np.concatenate(labels)[skip:]
                held = [rows.part(whole)] if rows.num_rows > whole else []
                block, skip = block + num_blocks, 0
            self._progress.advance(batch.num_rows)
        if held:
            rows = concatenate(held)
            yield rows.part(skip), self._splits.labels(block, rows.num_rows)[skip:]


def _num_samples_at_start(chunks: dict[int, ChunkFile]) -> int:
    """Return the number of samples before the first chunk that is missing."""
    total, number = 0, 0
    while number in chunks:
        total += chunks[number].num_samples
        number += 1
    return total
