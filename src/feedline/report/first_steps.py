"""The step in which each sample came first."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

_NEVER = np.iinfo(np.int64).max
#: The number of samples that have a place each in any case.
_FEW = 2**16

Numbers = NDArray[np.int64]


class FirstSteps:
    """The first step of each sample, in memory that what came decides.

    Args:
        num_samples: The number of samples that there may be.
        num_logged: How many will be added.

    Examples:
        >>> steps = FirstSteps(10**12, 3)
        >>> steps.add(np.array([5, 7]), 4)
        >>> steps.add(np.array([5]), 2)
        >>> steps.sorted().tolist()
        [2, 4]
    """

    def __init__(self, num_samples: int, num_logged: int) -> None:
        is_dense = num_samples <= _FEW + 2 * num_logged
        self._dense = np.full(num_samples, _NEVER) if is_dense else None
        self._ids: list[Numbers] = []
        self._steps: list[Numbers] = []

    def add(self, ids: Numbers, step: int) -> None:
        """Note samples that came in a step."""
        if self._dense is not None:
            self._dense[ids] = np.minimum(self._dense[ids], step)
        else:
            self._ids.append(ids.copy())
            self._steps.append(np.full(len(ids), step))

    def sorted(self) -> Numbers:
        """Return the first steps of all samples that came, in order."""
        if self._dense is not None:
            return np.sort(self._dense[self._dense < _NEVER])
        if not self._ids:
            return np.empty(0, np.int64)
        ids, steps = np.concatenate(self._ids), np.concatenate(self._steps)
        order = np.lexsort((steps, ids))
        _, first = np.unique(ids[order], return_index=True)
        return np.sort(steps[order][first])
