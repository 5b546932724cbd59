"""What threads read: slabs of consecutive batches, with the rows that each chunk gives.

Which samples a rank gets is computed in blocks of tens of thousands, by a thread of its own. What
is left for the others is a few large copies, which run side by side.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

import numpy as np
from numpy.typing import NDArray

from feedline.plan import Block, Chunking, Segment

Numbers = NDArray[np.int64]
# Blocks of this many samples cost the least for each sample.
BLOCK_ROWS = 2**15


@dataclass(frozen=True, slots=True)
class SlabJob:
    """The batches of a slab, and where its samples are.

    Args:
        block: The batches.
        chunks: The chunk of each sample.
        rows: The row of each sample in its chunk.
        needed: The distinct chunks, in ascending order.
        num_chunks: The number of all chunks.
    """

    block: Block
    chunks: Numbers
    rows: Numbers
    needed: tuple[int, ...]
    num_chunks: int


def slab_jobs(
    segment: Segment, rank: int, start: int, chunking: Chunking, num_most: int
) -> Iterator[Callable[[], list[SlabJob]]]:
    """Yield functions that make the jobs of one rank from batch `start` on, a block at a time.

    The first slab is a single batch, so that it comes soon; later ones have up to `num_most`.

    Args:
        segment: What is left of the epoch.
        rank: The rank whose batches these are.
        start: The number of the first batch.
        chunking: How the samples are cut into chunks.
        num_most: The number of batches in a full slab.
    """
    for first, end, count in growing_blocks(segment, start, num_most):
        yield partial(_jobs_of, segment, rank, first, end, chunking, count)


def growing_blocks(segment: Segment, start: int, num_most: int) -> Iterator[tuple[int, int, int]]:
    """Yield the first batch of each block, the batch after its last one, and those in a slab.

    Examples:
        >>> from feedline.plan import SamplePlan, Sequential
        >>> plan = SamplePlan(order=Sequential(num_samples=100))
        >>> list(growing_blocks(plan.segment(world_size=1, batch_size=2), 0, 4))
        [(0, 2, 1), (2, 10, 2), (10, 42, 4), (42, 50, 4)]
    """
    largest = max(1, segment.plan.largest_batch(segment.batch_size))
    most = max(num_most, BLOCK_ROWS // largest // num_most * num_most)
    # Two slabs, so that threads have one to read while the loop has the first.
    count, num_batches = 1, 2
    while start < segment.num_batches:
        end = min(start + num_batches, segment.num_batches)
        yield start, end, count
        start = end
        count = min(2 * count, num_most)
        # Whole slabs, so that none is cut short by the end of its block.
        num_batches = min(max(4 * num_batches, count) // count * count, most)


def _jobs_of(
    segment: Segment, rank: int, start: int, end: int, chunking: Chunking, count: int
) -> list[SlabJob]:
    return cut(segment.block(rank, start, end), chunking, count)


def cut(block: Block, chunking: Chunking, num_batches: int) -> list[SlabJob]:
    """Return the jobs of a block, with `num_batches` batches in each.

    Examples:
        >>> from feedline.plan import EqualChunks
        >>> indices = np.array([7, 2, 5, 0, 6, 1])
        >>> block = Block(first=0, indices=indices, bounds=np.array([0, 2, 4, 6]))
        >>> jobs = cut(block, EqualChunks(num_samples=8, chunk_size=4), 2)
        >>> [(job.chunks.tolist(), job.rows.tolist(), job.needed) for job in jobs]
        [([1, 0, 1, 0], [3, 2, 1, 0], (0, 1)), ([1, 0], [2, 1], (0, 1))]
    """
    chunks, rows = chunking.rows_of(block.indices)
    end = block.first + len(block)
    jobs = []
    first_row = 0
    for first in range(block.first, end, num_batches):
        slab = block.part(first, min(first + num_batches, end))
        part = slice(first_row, first_row + len(slab.indices))
        needed = distinct(chunks[part], chunking.num_chunks)
        jobs.append(SlabJob(slab, chunks[part], rows[part], needed, chunking.num_chunks))
        first_row = part.stop
    return jobs


def distinct(chunks: Numbers, num_chunks: int) -> tuple[int, ...]:
    """Return the distinct chunks, in ascending order.

    Examples:
        >>> distinct(np.array([3, 1, 3, 0, 1]), 5)
        (0, 1, 3)
    """
    if num_chunks > len(chunks):
        return tuple(np.unique(chunks).tolist())
    is_used = np.zeros(num_chunks, np.bool_)
    is_used[chunks] = True
    return tuple(np.flatnonzero(is_used).tolist())
