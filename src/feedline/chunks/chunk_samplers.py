"""Samplers of whole chunks: in order, shuffled, drawn with replacement, or of one class each."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from feedline.chunks.planned import WindowSampler
from feedline.errors import InvalidValueError, as_float, check_flag, check_integer
from feedline.plan import EqualChunks, Order, WindowOrder
from feedline.plan.drawn import ClassDraws, DrawnOrder
from feedline.plan.seeds import Seed
from feedline.words import several


class SequentialSampler(WindowSampler):
    """Rows in order, a few chunks at a time.

    Args:
        chunk_size: The number of rows that are read together.
        preload_nchunks: The number of chunks in a request.
        batch_size: The number of rows in a batch.
        drop_last: Drop an incomplete last batch.
        mask: The rows to draw from; by default all rows.

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
    """Chunks in random order; rows of chunks that are read together are shuffled.

    Without replacement every row comes once in an epoch, and the chunk that is short comes last.
    With replacement, runs of `chunk_size` rows begin anywhere, `num_samples` rows in all.

    Args:
        chunk_size: The number of rows that are read together.
        preload_nchunks: The number of chunks in a request, which are shuffled as one.
        batch_size: The number of rows in a batch.
        replacement: Whether a row may come more than once.
        num_samples: The number of rows in an epoch; by default all.
        drop_last: Drop an incomplete last batch.
        mask: The rows to draw from; by default all rows.
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
        self._replacement = check_flag("replacement", replacement)
        self.run_starts = np.zeros(0, np.int64) if self._replacement else None
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
        """The number of rows in an epoch, if not all."""
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


class ClassSampler(WindowSampler):
    """Every batch comes from one class, drawn by weight, with replacement.

    A class is drawn for every `lcm(chunk_size, batch_size)` rows, then runs of `chunk_size` rows
    that lie in that class. So each read is one class, and so is each batch.

    Args:
        chunk_size: The number of rows that are read together. Every run of equal labels must be at
            least this long, unless the weight of its class is 0.
        preload_nchunks: The number of chunks in a request.
        batch_size: The number of rows in a batch.
        classes: The label of each row: integers or text, or a pandas Categorical. No label may be
            missing.
        num_samples: The number of rows in an epoch.
        class_weights: A weight for each class, in the order of the categories, or of the sorted
            labels. Zero or less excludes a class. By default all weights are equal.
        drop_last: Drop an incomplete last batch.
        mask: The rows to draw from; by default all rows.
        rng: A seed, or a generator that yields one.

    Examples:
        >>> labels = ["a"] * 40 + ["b"] * 60
        >>> sampler = ClassSampler(10, 2, 5, classes=labels, num_samples=100)
        >>> sampler.n_batches(100)
        20
    """

    def __init__(
        self,
        chunk_size: int,
        preload_nchunks: int,
        batch_size: int,
        *,
        classes: Any,
        num_samples: int,
        class_weights: Sequence[float] | None = None,
        drop_last: bool = False,
        mask: slice | None = None,
        rng: Any = None,
    ) -> None:
        super().__init__(
            chunk_size, preload_nchunks, batch_size, drop_last=drop_last, mask=None, rng=rng
        )
        self._num_samples = check_integer("num_samples", num_samples, 1)
        codes, self._names = _codes_of(classes)
        self._num_rows = len(codes)
        self._weights = _weights_of(class_weights, self._names)
        # The first row, the length and the class of each run of equal labels.
        self._starts = np.append(0, np.flatnonzero(np.diff(codes)) + 1).astype(np.int64)
        self.run_starts = self._starts
        self._lengths = np.diff(np.append(self._starts, len(codes)))
        self._run_codes = codes[self._starts]
        self.mask = slice(0, None) if mask is None else mask

    def _check_mask(self, start: int, stop: int | None) -> None:
        """Raise unless every run of equal labels in the mask holds a chunk."""
        if stop is not None and stop > self._num_rows:
            raise InvalidValueError(
                f"mask.stop={stop} must be at most {self._num_rows}, the length of classes"
            )
        _, lengths = self._runs_in(start, self._num_rows if stop is None else stop)
        is_drawn = (lengths > 0) & (self._weights[self._run_codes] > 0)
        short = is_drawn & (lengths < self._chunk_size)
        if short.any():
            numbers = sorted(set(self._run_codes[short].tolist()))
            listed = ", ".join(repr(self._names[number]) for number in numbers[:8])
            place = "" if (start, stop) == (0, None) else f" in mask=slice({start}, {stop})"
            raise InvalidValueError(
                f"chunk_size={self._chunk_size} must be at most {int(lengths[short].min())}, "
                f"the shortest run of equal labels{place}, here of {listed}; sort the rows by "
                "class, use smaller chunks, or set the weight of these classes to 0"
            )
        if not is_drawn.any():
            raise InvalidValueError(
                f"mask=slice({start}, {stop}) must hold rows of a class with a weight above 0; "
                "widen it, or change class_weights"
            )

    def _runs_in(self, start: int, stop: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return the first row and the length of what lies in `[start, stop)` of each run."""
        first = np.maximum(self._starts, start)
        return first, np.minimum(self._starts + self._lengths, stop) - first

    @property
    def shuffle(self) -> bool:
        return True

    @property
    def num_samples(self) -> int:
        """The number of rows in an epoch."""
        return self._num_samples

    def validate(self, n_obs: int) -> None:
        if n_obs != self._num_rows:
            raise InvalidValueError(
                f"n_obs={n_obs} must be {self._num_rows}, the length of classes; pass one class "
                "for each row"
            )
        super().validate(n_obs)

    def order_on(self, start: int, stop: int, seed: Seed) -> Order:
        # Of a run that the edge of a shard cuts, what is left may be too short.
        first, lengths = self._runs_in(start, stop)
        fits = (lengths >= self._chunk_size) & (self._weights[self._run_codes] > 0)
        if not fits.any():
            raise InvalidValueError(
                f"mask=slice({start}, {stop}) must hold a run of chunk_size={self._chunk_size} "
                "rows of a class with a weight above 0; widen it or use smaller chunks"
            )
        # No batch reaches over the edge of a group, on any number of ranks.
        group = math.lcm(self._chunk_size, self._batch_size)
        return ClassDraws(
            num_samples=stop - start,
            run_starts=first[fits] - start,
            run_lengths=lengths[fits],
            run_classes=self._run_codes[fits],
            weights=self._weights,
            num_drawn=self._num_samples,
            chunk_size=self._chunk_size,
            group_size=group,
            window_size=self._chunk_size * self._preload_nchunks,
            seed=seed,
        )

    def check_shards(self, start: int, size: int, num_shards: int) -> None:
        chunk = self._chunk_size
        drawn = self._weights[self._run_codes] > 0
        low = np.maximum(self._starts[drawn] - start, 0)
        high = np.minimum((self._starts + self._lengths)[drawn] - start, num_shards * size)
        low, high = low[high - low >= chunk], high[high - low >= chunk]
        # The shards in which a chunk of a run fits; the first and the last may hold too little.
        first = low // size
        first += np.minimum((first + 1) * size, high) - low < chunk
        last = (high - 1) // size
        last -= high - np.maximum(last * size, low) < chunk
        first, last = first[first <= last], last[first <= last]
        changes = np.bincount(first, minlength=num_shards + 1)
        changes = changes - np.bincount(last + 1, minlength=num_shards + 1)
        is_empty = np.cumsum(changes)[:num_shards] == 0
        if size < chunk:
            is_empty[:] = True
        if is_empty.any():
            ranks = np.flatnonzero(is_empty).tolist()
            edges = (start + ranks[0] * size, start + (ranks[0] + 1) * size)
            raise InvalidValueError(
                f"{several(len(ranks), 'rank')} of {num_shards} would have nothing to draw: rank "
                f"{ranks[0]} has rows [{edges[0]}, {edges[1]}), which must hold a run of "
                f"chunk_size={chunk} rows of a class with a weight above 0; use fewer ranks, "
                "smaller chunks or shards='windows'"
            )


def _codes_of(classes: Any) -> tuple[NDArray[np.int64], list[Any]]:
    """Return each row's class as a number, and the classes."""
    if hasattr(classes, "codes") and hasattr(classes, "categories"):
        codes = np.asarray(classes.codes).astype(np.int64)
        names = list(classes.categories)
    else:
        labels = np.asarray(classes)
        if labels.ndim != 1:
            raise InvalidValueError("classes must be a flat list with one label for each row")
        if labels.dtype == object and any(value is None for value in labels):
            raise InvalidValueError("classes has missing labels; label every row")
        if labels.dtype.kind == "f" and np.isnan(labels).any():
            raise InvalidValueError("classes has missing labels (NaN); label every row")
        distinct, codes = np.unique(labels, return_inverse=True)
        names = distinct.tolist()
    if codes.ndim != 1 or not len(codes):
        raise InvalidValueError("classes must be a flat list with one label for each row")
    if codes.min() < 0:
        raise InvalidValueError(
            f"classes has {several(int((codes < 0).sum()), 'missing label')}; label every row"
        )
    return codes, names


def _weights_of(given: Sequence[float] | None, names: list[Any]) -> NDArray[np.float64]:
    if given is None:
        return np.ones(len(names))
    weights = np.array([as_float(weight) for weight in given])
    if len(weights) != len(names):
        raise InvalidValueError(
            f"class_weights has {several(len(weights), 'weight')} but must have {len(names)}, one "
            "for each class"
        )
    if not np.isfinite(weights).all() or not (weights > 0).any():
        raise InvalidValueError(
            f"class_weights={list(given)!r:.80} must be finite, and one of them above 0"
        )
    weights[weights < 0] = 0.0
    return weights
