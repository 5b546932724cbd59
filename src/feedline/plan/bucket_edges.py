"""Samples sorted into buckets by length."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from feedline.errors import InvalidValueError, check_integer, check_sequence
from feedline.plan.permutation import MAX_SIZE


def members_by_length(
    lengths: ArrayLike, edges: Sequence[int] | None, num_buckets: int | None
) -> dict[int, NDArray[np.int64]]:
    """Return, for each edge that has any, the indices of the samples up to that length.

    The lists are views of one array, so together they cost 8 bytes a sample.
    """
    values = _check_lengths(lengths)
    if (edges is None) == (num_buckets is None):
        raise InvalidValueError(
            f"edges={edges!r} and num_buckets={num_buckets!r}: give exactly one of them"
        )
    if edges is None:
        bounds = quantile_edges(values, check_integer("num_buckets", num_buckets, 1))
    else:
        bounds = _check_edges(edges)
    longest = int(values.argmax())
    if values[longest] > bounds[-1]:
        raise InvalidValueError(
            f"lengths[{longest}]={values[longest]} must be at most the last edge {bounds[-1]}; "
            "add an edge or leave out longer samples"
        )
    which = np.searchsorted(bounds, values, side="left").astype(np.int32)
    by_bucket = np.argsort(which, kind="stable").astype(np.int64, copy=False)
    starts = np.concatenate([[0], np.cumsum(np.bincount(which, minlength=len(bounds)))]).tolist()
    parts = zip(bounds.tolist(), starts, starts[1:], strict=False)
    return {edge: by_bucket[start:stop] for edge, start, stop in parts if stop > start}


def quantile_edges(lengths: NDArray[Any], num_buckets: int) -> NDArray[np.int64]:
    """Return the distinct lengths at the quantiles 1/num_buckets, 2/num_buckets, …, 1.

    Examples:
        >>> quantile_edges(np.array([5, 1, 4, 2, 3, 6]), 3).tolist()
        [2, 4, 6]
    """
    ranks = [-(-len(lengths) * i // num_buckets) - 1 for i in range(1, num_buckets + 1)]
    ranks = sorted({max(rank, 0) for rank in ranks})
    return np.unique(np.partition(lengths, ranks)[ranks]).astype(np.int64)


def _check_lengths(lengths: ArrayLike) -> NDArray[Any]:
    values = np.asarray(lengths)
    if values.ndim != 1 or values.size == 0:
        raise InvalidValueError(f"lengths has shape {values.shape} but must be a list, not empty")
    if values.dtype.kind not in "iu":
        raise InvalidValueError(f"lengths holds {values.dtype} but must hold integers")
    if values.min() < 1:
        place = int(values.argmin())
        raise InvalidValueError(f"lengths[{place}]={values[place]} must be at least 1")
    if values.max() > MAX_SIZE:
        place = int(values.argmax())
        raise InvalidValueError(f"lengths[{place}]={values[place]} must be at most {MAX_SIZE}")
    return values


def _check_edges(edges: Sequence[int]) -> NDArray[np.int64]:
    given = check_sequence("edges", edges)
    values = [check_integer(f"edges[{i}]", edge, 1, MAX_SIZE) for i, edge in enumerate(given)]
    if not values or any(low >= high for low, high in pairwise(values)):
        raise InvalidValueError(f"edges={list(edges)} must be a list that grows, not empty")
    return np.array(values, dtype=np.int64)
