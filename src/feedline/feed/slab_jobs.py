"""What threads read: slabs of consecutive batches, with the rows that each chunk gives.

Which samples a rank gets is computed in blocks of tens of thousands, and sorted by chunk in the
same thread. What is left for the others is a few large copies, which run side by side.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from feedline.plan import Block, Chunking, Segment

Numbers = NDArray[np.int64]
# Blocks of this many samples cost the least for each sample.
_BLOCK_ROWS = 2**15
# Rows of one chunk that follow each other are read in place; shorter runs are sorted by chunk.
_MEAN_RUN = 16


@dataclass(frozen=True, slots=True)
class SlabJob:
    """The batches of a slab, and where its samples are.

    Args:
        block: The batches.
        chunks: The chunk of each run of rows.
        edges: Where each run begins among `rows`, and where the last one ends.
        rows: The rows of each run in its chunk.
        places: Which of `rows` each sample is; None if they are in the order of the samples.
    """

    block: Block
    chunks: list[int]
    edges: list[int]
    rows: Numbers
    places: Numbers | None

    @property
    def runs(self) -> Iterator[tuple[int, int, int]]:
        """The chunk of each run, where it begins among `rows`, and where it ends."""
        return zip(self.chunks, self.edges, self.edges[1:], strict=False)


def slab_jobs(
    segment: Segment, rank: int, start: int, chunking: Chunking, num_most: int
) -> Iterator[list[SlabJob]]:
    """Yield the jobs of one rank from batch `start` on, those of a block together.

    The first slab is a single batch, so that it comes soon; later ones have up to `num_most`.

    Args:
        segment: What is left of the epoch.
        rank: The rank whose batches these are.
        start: The number of the first batch.
        chunking: How the samples are cut into chunks.
        num_most: The number of batches in a full slab.
    """
    count, num_batches = 1, 1
    while start < segment.num_batches:
        end = min(start + num_batches, segment.num_batches)
        block = segment.block(rank, start, end)
        yield cut(block, chunking, count)
        start = end
        count = min(2 * count, num_most)
        if 4 * len(block.indices) <= _BLOCK_ROWS or num_batches < count:
            num_batches = max(4 * num_batches, count)
        # Whole slabs, so that none is cut short by the end of its block.
        num_batches = num_batches // count * count


def cut(block: Block, chunking: Chunking, num_batches: int) -> list[SlabJob]:
    """Return the jobs of a block, with `num_batches` batches in each.

    Examples:
        >>> from feedline.plan import EqualChunks
        >>> indices = np.array([7, 2, 5, 0, 6, 1])
        >>> block = Block(first=0, indices=indices, bounds=np.array([0, 2, 4, 6]))
        >>> jobs = cut(block, EqualChunks(num_samples=8, chunk_size=4), 2)
        >>> [(job.chunks, job.rows.tolist(), job.places.tolist()) for job in jobs]
        [([0, 1], [2, 0, 3, 1], [2, 0, 3, 1]), ([0, 1], [1, 2], [1, 0])]
    """
    bounds = block.bounds[::num_batches]
    if bounds[-1] != block.bounds[-1]:
        bounds = np.append(bounds, block.bounds[-1])
    edges = bounds.tolist()
    slabs = [
        block.part(block.first + number, min(block.first + number + num_batches, _end_of(block)))
        for number in range(0, len(block), num_batches)
    ]
    chunks, rows = chunking.rows_of(block.indices)
    is_start = chunks[1:] != chunks[:-1]
    if len(rows) >= _MEAN_RUN * np.count_nonzero(is_start):
        return [
            _job(slab, chunks[first:end], rows[first:end], None)
            for slab, (first, end) in zip(slabs, pairwise(edges), strict=True)
        ]
    jobs = []
    # Short integers are sorted several times faster.
    keys = chunks.astype(np.uint16) if chunking.num_chunks <= 2**16 else chunks
    for slab, (first, end) in zip(slabs, pairwise(edges), strict=True):
        order = np.argsort(keys[first:end], kind="stable")
        places = np.empty(end - first, np.int64)
        places[order] = np.arange(end - first)
        jobs.append(_job(slab, chunks[first:end][order], rows[first:end][order], places))
    return jobs


def _end_of(block: Block) -> int:
    return block.first + len(block)


def _job(slab: Block, chunks: Numbers, rows: Numbers, places: Numbers | None) -> SlabJob:
    starts = np.flatnonzero(chunks[1:] != chunks[:-1]) + 1
    edges = [0, *starts.tolist(), len(rows)]
    found = [*chunks[:1].tolist(), *chunks[starts].tolist()]
    return SlabJob(slab, found, edges, rows, places)
