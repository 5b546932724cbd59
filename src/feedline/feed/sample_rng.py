"""A random generator for each sample: the same on any number of ranks and workers, at any time."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.random.bit_generator import ISpawnableSeedSequence

from feedline.errors import check_integer
from feedline.plan.seeds import Seed, derive_key

_MOST = 2**63 - 1


class SampleKeys:
    """The generators of one epoch.

    They are counters: each block of numbers is a hash of a key and a count. The key is that of the
    seed and the epoch. Source, sample and draw are the upper words of the count, so that no two
    samples share a block.

    Args:
        seed: The seed of the loader or of its plan.
        epoch: The number of the epoch.
    """

    def __init__(self, seed: Seed, epoch: int) -> None:
        key = derive_key(seed, "sample transform", epoch)
        self._key = np.array([key & 2**64 - 1, key >> 64], np.uint64)

    def generator(self, source: int, index: int, draw: int) -> np.random.Generator:
        """Return a new generator for one draw of a sample."""
        counter = np.array([0, index, source, draw], np.uint64)
        # numpy takes any seed sequence, but says that it takes its own.
        key: Any = _Key(self._key, counter)
        return np.random.Generator(np.random.Philox(key, counter=counter))


class _Key(ISpawnableSeedSequence):
    """A key that is known. numpy would ask the system for a random one first, which is slow."""

    def __init__(self, key: Any, counter: Any) -> None:
        self._key = key
        self._counter = counter
        self._spawning: np.random.SeedSequence | None = None

    def generate_state(self, n_words: int, dtype: Any = np.uint32) -> Any:
        """Return the words of the key."""
        return self._key

    def spawn(self, n_children: int) -> list[Any]:
        """Return seeds for further generators, which depend on this one's key and counter."""
        if self._spawning is None:
            words = [*self._key.tolist(), *self._counter.tolist()]
            self._spawning = np.random.SeedSequence(words)
        return self._spawning.spawn(n_children)


def sample_rng(
    seed: Seed, *, epoch: int, index: int, source: int = 0, draw: int = 0
) -> np.random.Generator:
    """Return the generator that `sample_transform` gets for one draw of a sample.

    Args:
        seed: The loader's `seed`, or else that of its plan.
        epoch: The number of the epoch.
        index: The number of the sample in the store.
        source: The number of its source in a mixture.
        draw: Which draw of the sample in this epoch it is: `Segment.draws` says it. It is 0 where
            each sample comes once.

    Examples:
        >>> rng = sample_rng(7, epoch=0, index=12)
        >>> bool(rng.random() == sample_rng(7, epoch=0, index=12).random())
        True
        >>> bool(rng.random() == sample_rng(7, epoch=1, index=12).random())
        False
    """
    names = {"source": source, "index": index, "draw": draw}
    numbers = {name: check_integer(name, value, 0, _MOST) for name, value in names.items()}
    return SampleKeys(seed, epoch).generator(**numbers)
