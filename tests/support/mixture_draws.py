"""What a mixture draws, by source."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from feedline.plan import Mixture

Integers = NDArray[np.int64]


def drawn(mixture: Mixture, epoch: int = 0) -> tuple[Integers, Integers]:
    """The source at each position of an epoch, and the index inside of it."""
    places = np.arange(mixture.num_positions(epoch))
    return mixture.sources_of(mixture.indices(epoch, places))


def num_drawn(mixture: Mixture, start: int = 0, stop: int | None = None, epoch: int = 0) -> list:
    """How often each source comes in positions `[start, stop)`."""
    sources = drawn(mixture, epoch)[0][start:stop]
    return np.bincount(sources, minlength=len(mixture.sizes)).tolist()
