"""Samplers of whole chunks: in order, shuffled, or drawn with replacement."""

from __future__ import annotations

from typing import Any

from feedline.chunks.planned import WindowSampler
from feedline.errors import InvalidValueError, check_integer
from feedline.plan import EqualChunks, Order, WindowOrder
from feedline.plan.drawn import DrawnOrder
from feedline.plan.seeds import Seed


class SequentialSampler(WindowSampler):
    """Rows in order, a few chunks at a time.

    Args:
        chunk_size: The number of rows that are read together.
        preload_nchunks: The number of chunks in a request.
        batch_size: The number of rows of a batch.
        drop_last: Leave out an incomplete last batch.
        mask: The rows to draw from; by default all.

    Examples:
        >>> sampler = SequentialSampler(chunk_size=4, preload_nchunks=2, batch_size=4)
        >>> [request["requests"] for request in sampler.sample(10)]
        [[slice(0, 4, None), slice(4, 8, None)], [slice(8, 10, None)]]
    """

    def __init__(
        self,
        chunk_size: int,
        preload_nchunks: int,
        batch_size: int,
        *,
        drop_last: bool = False,
        mask: slice | None = None,
    ) -> None:
        super().__init__(
            chunk_size, preload_nchunks, batch_size, drop_last=drop_last, mask=mask, rng=None
        )

    @property
    def shuffle(self) -> bool:
        return False

    def order_on(self, start: int, stop: int, seed: Seed) -> Order:
        chunks = EqualChunks(num_samples=stop - start, chunk_size=self._chunk_size)
        return WindowOrder(chunks=chunks, preload=self._preload_nchunks, shuffle=False)


class RandomSampler(WindowSampler):
    """Chunks in random order, and the rows of those that are read together shuffled.

    Without replacement every row comes once in an epoch, and the chunk that is short comes last.
    With replacement, runs of `chunk_size` rows begin anywhere, `num_samples` rows in all.

    Args:
        chunk_size: The number of rows that are read together.
        preload_nchunks: The number of chunks in a request, which are shuffled as one.
        batch_size: The number of rows of a batch.
        replacement: Whether a row may come more than once.
        num_samples: How many rows an epoch has; by default as many as there are.
        drop_last: Leave out an incomplete last batch.
        mask: The rows to draw from; by default all.
        rng: A seed, or a generator that yields one.

    Examples:
        >>> sampler = RandomSampler(chunk_size=4, preload_nchunks=2, batch_size=4, rng=7)
        >>> sampler.n_batches(10)
        3
        >>> rows = [s for r in sampler.sample(10) for s in r["requests"]]
        >>> sum(s.stop - s.start for s in rows)
        10
    """

    def __init__(
        self,
        chunk_size: int,
        preload_nchunks: int,
        batch_size: int,
        *,
        replacement: bool = False,
        num_samples: int | None = None,
        drop_last: bool = False,
        mask: slice | None = None,
        rng: Any = None,
    ) -> None:
        super().__init__(
            chunk_size, preload_nchunks, batch_size, drop_last=drop_last, mask=mask, rng=rng
        )
        self._replacement = bool(replacement)
        self._num_samples = (
            None if num_samples is None else check_integer("num_samples", num_samples, 1)
        )

    @property
    def shuffle(self) -> bool:
        return True

    @property
    def replacement(self) -> bool:
        """Whether a row may come more than once."""
        return self._replacement

    @property
    def num_samples(self) -> int | None:
        """How many rows an epoch has, if not as many as there are."""
        return self._num_samples

    def order_on(self, start: int, stop: int, seed: Seed) -> Order:
        num_rows = stop - start
        if self._replacement:
            return DrawnOrder(
                num_samples=num_rows,
                num_drawn=self._num_samples or num_rows,
                chunk_size=self._chunk_size,
                preload=self._preload_nchunks,
                seed=seed,
            )
        if self._num_samples is not None and self._num_samples > num_rows:
            raise InvalidValueError(
                f"num_samples={self._num_samples} must be at most {num_rows}, the number of rows "
                "to draw from; use replacement=True to draw more"
            )
        return WindowOrder(
            chunks=EqualChunks(num_samples=num_rows, chunk_size=self._chunk_size),
            preload=self._preload_nchunks,
            seed=seed,
            keep_last=True,
            limit=self._num_samples,
        )
