"""How far counts are from what chance would give, in standard deviations.

All statistical tests use fixed keys, so each of them passes or fails for good. They compare z with
LIMIT: for a normal variable |z| > 6.5 has a probability of 1e-10, so with the few thousand numbers
that all tests together look at, a correct generator is blamed with a probability below 1e-6.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import ArrayLike, NDArray

__all__ = ["LIMIT", "chi_square_z", "coincidences_z", "correlation_z", "count_z"]

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
