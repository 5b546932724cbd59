"""How far counts are from what chance would give, in standard deviations.

All statistical tests use fixed keys, so each of them passes or fails for good. They compare z with
LIMIT: for a normal variable |z| > 6.5 has a probability of 1e-10, so with the few thousand numbers
that all tests together look at, a correct generator is blamed with a probability below 1e-6.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

__all__ = [
    "LIMIT",
    "all_pairs_z",
    "chi_square_z",
    "coincidences_z",
    "correlation_z",
    "count_z",
    "shared_rows_z",
]

LIMIT = 6.5


def chi_square_z(observed: ArrayLike, expected: ArrayLike) -> float:
    """Return Pearson's statistic as a z-score, by the cube root of Wilson and Hilferty.

    Only large values speak against chance, but very small ones are as unlikely: use `abs`.
    """
    counts = np.asarray(observed, dtype=np.float64).ravel()
    means = np.broadcast_to(np.asarray(expected, dtype=np.float64).ravel(), counts.shape)
    degrees = counts.size - 1
    statistic = float(((counts - means) ** 2 / means).sum())
    spread = 2 / (9 * degrees)
    return ((statistic / degrees) ** (1 / 3) - (1 - spread)) / math.sqrt(spread)


def count_z(count: float, num_trials: float, probability: float) -> float:
    """Return how far a count of independent successes is from its mean."""
    mean = num_trials * probability
    return (count - mean) / math.sqrt(mean * (1 - probability))


def coincidences_z(count: int, num_pairs: int) -> float:
    """Return how far the number of coincidences is from that of pairs of random permutations.

    Two independent permutations agree in one place on average, with a variance of one.
    """
    return (count - num_pairs) / math.sqrt(num_pairs)


def correlation_z(first: NDArray[np.int64], second: NDArray[np.int64]) -> float:
    """Return the rank correlation of two permutations, times the square root of n - 1."""
    n = len(first)
    centred = (first - (n - 1) / 2) @ (second - (n - 1) / 2)
    return float(centred / (n * (n * n - 1) / 12)) * math.sqrt(n - 1)


def shared_rows_z(
    first: NDArray[np.int64], second: NDArray[np.int64], ahead: int = 0
) -> tuple[float, int]:
    """Return how alike two permutations shuffle the rows that they share, and how many those are.

    Row i of the first is row `i + ahead` of the second. The score is the correlation of their
    places, times the square root of the number of rows less one.
    """
    low, high = max(0, -ahead), min(len(first), len(second) - ahead)
    if high - low < 2:
        return 0.0, max(0, high - low)
    one, other = np.argsort(first)[low:high], np.argsort(second)[low + ahead : high + ahead]
    return float(np.corrcoef(one, other)[0, 1]) * math.sqrt(high - low - 1), high - low


def all_pairs_z(orders: Sequence[NDArray[np.int64]]) -> NDArray[np.float64]:
    """Return how alike each two of some permutations shuffle the rows that all of them have."""
    num_rows = min(map(len, orders))
    places = np.array([np.argsort(order)[:num_rows] for order in orders])
    scores: NDArray[np.float64] = np.corrcoef(places)[np.triu_indices(len(orders), 1)]
    return scores * math.sqrt(num_rows - 1)
