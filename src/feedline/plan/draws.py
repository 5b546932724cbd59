"""Which source a sample comes from, and how often an epoch has drawn it before."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from feedline.words import one_line

Numbers = NDArray[np.int64]


@one_line
class Draws(NamedTuple):
    """What tells the draws of one sample in one epoch apart.

    It depends on the position in the order alone, so it is the same on any number of ranks. Padding
    has that of the sample that it repeats.

    Args:
        sources: The source of each sample; 0 where the plan has no sources.
        numbers: Which draw of the sample it is: in a mixture, the pass over its source; where
            samples are drawn by weight, the position; 0 where each sample comes once.
    """

    sources: Numbers
    numbers: Numbers

    @classmethod
    def once(cls, count: int) -> Draws:
        """Return the draws of samples that come once."""
        zeros = np.zeros(count, dtype=np.int64)
        return cls(zeros, zeros)


def draws_at(order: Any, positions: Numbers) -> Draws:
    """Return the draws at some positions of an epoch's order.

    An order that does not say may draw a sample again, at another position.

    Examples:
        >>> from feedline.plan import Mixture
        >>> order = Mixture(sizes=(1, 3), weights=(1, 1), epoch_size=6).at(0)
        >>> draws = draws_at(order, np.arange(6))
        >>> sorted(zip(draws.sources.tolist(), draws.numbers.tolist()))
        [(0, 0), (0, 1), (0, 2), (1, 0), (1, 0), (1, 0)]
    """
    if hasattr(order, "draws"):
        found: Draws = order.draws(positions)
        return found
    return Draws(np.zeros(len(positions), dtype=np.int64), positions)
