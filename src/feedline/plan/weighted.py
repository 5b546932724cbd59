"""Samples drawn by weight, with or without replacement.

With replacement, weights become whole numbers with a sum near `2**61`. The draw at a position is
the sample whose part of that sum holds a keyed hash of the position, so any position can be
computed. Only every 16th partial sum is held; those between are added up again when needed.

Without replacement, every sample has a time drawn from the exponential distribution whose rate is
its weight, and samples come in the order of their times (Efraimidis and Spirakis). So each draw
takes one of the samples that are left, in proportion to their weights.

Integer arithmetic and single IEEE operations (+, *, / and powers of two) decide the order. The
logarithm is a series, because those of C libraries differ in their last bits.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from feedline.errors import InvalidValueError, as_float, check_flag, check_integer
from feedline.lazy import lazy
from feedline.plan.draws import Draws
from feedline.plan.frozen import described, digest_array, store
from feedline.plan.orders import EpochOrder, Indices, SeededOrder
from feedline.plan.permutation import Permutation
from feedline.plan.seeds import Seed, check_seed, derive_key
from feedline.words import shown

Floats = NDArray[np.float64]

_HASH_BITS = 62
_HASH_SIZE = 2**_HASH_BITS
# Weights that share one partial sum: memory goes down with it, and the time of a draw up.
_RUN = 16
# Positions or samples that are worked on together, which bounds the memory in between.
_AT_ONCE = 2**14
_LOG_2 = 0.6931471805599453
# With |z| <= 0.172, the terms of atanh(z) beyond z**23 are below 2**-57 of the first one.
_ATANH_TERMS = tuple(1.0 / power for power in range(23, 0, -2))


@dataclass(frozen=True, eq=False, repr=False)
class Weighted(SeededOrder):
    """Samples drawn in proportion to `weights`, as by torch's `WeightedRandomSampler`.

    The sample at a position depends on (seed, epoch, position) alone, so runs on any number of
    ranks, and resumed ones, see the same draws. A sample with weight 0 is never drawn.

    Memory: the weights as one array, 8 bytes an entry. It is copied once, unless it is a read-only
    array of float64. Half a byte an entry is added with replacement. Without replacement, an epoch
    needs one more array while it is in use, 8 bytes a position, and is sorted when its first
    position is asked for.

    Args:
        weights: One finite number of at least 0 for each sample; they need not add up to one.
        num_samples: The number of positions in an epoch. By default there is one for each weight,
            or, without replacement, one for each weight above 0.
        replacement: Whether a sample may be drawn again. If not, each draw takes one of the
            remaining samples, in proportion to their weights.
        seed: Any integer or string.

    Examples:
        >>> order = Weighted([1, 0, 3], num_samples=4000)
        >>> counts = np.bincount(order.indices(0, range(4000)))
        >>> bool(counts[1] == 0 and 2900 < counts[2] < 3100)
        True
        >>> order = Weighted([1, 0, 3], replacement=False)
        >>> sorted(order.indices(0, range(2)).tolist())
        [0, 2]
    """

    weights: ArrayLike
    num_samples: int | None = None  # type: ignore[assignment]  # None is replaced by the default
    replacement: bool = True
    seed: Seed = 0

    def __post_init__(self) -> None:
        weights = _check_weights(self.weights)
        replacement = check_flag("replacement", self.replacement)
        default, most, remedy = len(weights), _HASH_SIZE, ""
        if not replacement:
            default = most = int(np.count_nonzero(weights))
            remedy = f"{most} of the weights are above 0; draw fewer, or use replacement=True"
        asked = default if self.num_samples is None else self.num_samples
        store(
            self,
            weights=weights,
            num_samples=check_integer("num_samples", asked, 1, most, remedy=remedy),
            replacement=replacement,
            seed=check_seed(self.seed),
        )

    @property
    def num_indices(self) -> int:
        return len(self._weights)

    @property
    def seeds_used(self) -> frozenset[Any]:
        return frozenset([(type(self), self.replacement, self.seed)])

    def at(self, epoch: int) -> EpochOrder:
        assert self.num_samples is not None
        if self.replacement:
            key = derive_key(self.seed, "weighted draw", epoch)
            return _RepeatingEpoch(self._sums, self.num_samples, key)
        key = derive_key(self.seed, "weighted time", epoch)
        return _SortedEpoch(self._weights, self.num_samples, key)

    def describe(self) -> dict[str, Any]:
        return described(self, kind="weighted", weights=self._digest)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Weighted) and self.describe() == other.describe()

    def __hash__(self) -> int:
        return hash((self._digest["digest"], self.num_samples, self.replacement, self.seed))

    def __repr__(self) -> str:
        return (
            f"Weighted({len(self._weights)} weights, num_samples={self.num_samples}, "
            f"replacement={self.replacement}, seed={shown(self.seed)})"
        )

    @property
    def _weights(self) -> Floats:
        assert isinstance(self.weights, np.ndarray)
        return self.weights

    @lazy
    def _digest(self) -> dict[str, Any]:
        return digest_array(self._weights.view(np.int64))

    @lazy
    def _sums(self) -> _PartialSums:
        return _PartialSums(self._weights)


def _check_weights(weights: Any) -> Floats:
    """Return weights as a read-only array, or raise."""
    try:
        array = np.asarray(weights)
        if array.dtype == object and array.ndim == 1:
            array = np.array([as_float(weight) for weight in array], dtype=np.float64)
    except (TypeError, ValueError, RuntimeError) as error:
        raise InvalidValueError(f"weights must be a list of numbers ({error})") from None
    if array.ndim != 1:
        raise InvalidValueError(
            f"weights={weights!r:.80} has {array.ndim} axes but must have 1; pass one number for "
            "each sample"
        )
    if not array.size:
        raise InvalidValueError("weights is empty but must contain one number for each sample")
    if array.dtype.kind not in "biuf":
        raise InvalidValueError(f"weights holds {array.dtype} but must contain numbers")
    given = array
    with np.errstate(over="ignore"):  # what is too large becomes infinite, and is refused below
        array = array.astype(np.float64, copy=False)
    is_bad = ~(np.isfinite(array) & (array >= 0))
    if is_bad.any():
        first = int(is_bad.argmax())
        raise InvalidValueError(
            f"weights[{first}]={array[first]} must be finite and at least 0; use 0 for a sample "
            "that is never drawn"
        )
    if not array.any():
        raise InvalidValueError(
            f"the {len(array)} weights are all zero, but at least one must be above 0"
        )
    # The copy is read-only. Adding zero makes -0.0, which is the same weight, 0.0.
    if (array is given and array.flags.writeable) or np.signbit(array).any():
        array = array + 0.0
    array.flags.writeable = False
    return array


class _PartialSums:
    """The weights as whole numbers, of which every 16th partial sum is held."""

    def __init__(self, weights: Floats) -> None:
        self._weights = weights
        # First with room for all weights to be as large as the largest, then as closely as the
        # sum allows. The total stays below 2**62: below 2**61, and half a unit for each rounding.
        _, exponent = math.frexp(weights.max())
        shift = 61 - len(weights).bit_length() - exponent
        rough = sum(int(np.ldexp(part, shift).astype(np.int64).sum()) for part in self._parts())
        self._shift = shift + 61 - (rough + len(weights)).bit_length()
        sums = [
            np.add.reduceat(self._whole(part), np.arange(0, len(part), _RUN))
            for part in self._parts()
        ]
        self._starts = np.concatenate([np.zeros(1, dtype=np.int64), *sums])
        np.cumsum(self._starts, out=self._starts)
        self._total = int(self._starts[-1])

    def _parts(self) -> Iterator[Floats]:
        for first in range(0, len(self._weights), _RUN * _AT_ONCE):
            yield self._weights[first : first + _RUN * _AT_ONCE]

    def _whole(self, weights: Floats) -> Indices:
        """Return weights as multiples of the unit, rounded."""
        return np.rint(np.ldexp(weights, self._shift)).astype(np.int64)

    def draw(self, hashes: Indices) -> Indices:
        """Return the sample at each hash, where `[0, 2**62)` is cut in proportion to weights."""
        targets = _scale(hashes, self._total)
        # Places in ascending order are much faster to look up.
        ascending = np.argsort(targets)
        targets = targets[ascending]
        runs = np.searchsorted(self._starts, targets, side="right") - 1
        targets -= self._starts[runs]
        first = runs * _RUN
        # The last run may be short. Entries that stand for the missing ones change nothing, because
        # the first sum beyond the target comes before them.
        members = np.minimum(first[:, None] + np.arange(_RUN), len(self._weights) - 1)
        ends = np.cumsum(self._whole(self._weights[members]), axis=1)
        drawn = np.empty_like(targets)
        drawn[ascending] = first + np.argmax(ends > targets[:, None], axis=1)
        return drawn


def _scale(hashes: Indices, total: int) -> Indices:
    """Return `hashes * total >> 62`, for hashes and a total below `2**62`, in halves of 31 bits."""
    half = _HASH_BITS // 2
    mask = 2**half - 1
    high, low = hashes >> half, hashes & mask
    total_high, total_low = total >> half, total & mask
    middle = high * total_low + low * total_high + (low * total_low >> half)
    scaled: Indices = high * total_high + (middle >> half)
    return scaled


class _RepeatingEpoch:
    """One epoch with replacement."""

    def __init__(self, sums: _PartialSums, num_positions: int, key: int) -> None:
        self.num_positions = num_positions
        self._sums = sums
        self._hash = Permutation(_HASH_SIZE, key)

    def indices(self, positions: Indices) -> Indices:
        drawn = np.empty(len(positions), dtype=np.int64)
        for first in range(0, len(positions), _AT_ONCE):
            part = slice(first, first + _AT_ONCE)
            drawn[part] = self._sums.draw(self._hash.forward(positions[part]))
        return drawn

    def find(self, index: int) -> Indices:
        """Return every position at which `index` comes; this computes the whole epoch."""
        found = [
            first + np.flatnonzero(self.indices(_span(first, self.num_positions)) == index)
            for first in range(0, self.num_positions, _AT_ONCE)
        ]
        return np.concatenate(found)


class _SortedEpoch:
    """One epoch without replacement, sorted at its first use."""

    def __init__(self, weights: Floats, num_positions: int, key: int) -> None:
        self.num_positions = num_positions
        self._weights = weights
        self._hash = Permutation(_HASH_SIZE, key)

    @lazy
    def _sorted(self) -> Indices:
        times = np.empty(len(self._weights), dtype=np.int64)
        for first in range(0, len(times), _AT_ONCE):
            samples = _span(first, len(times))
            waits = _exponentials(self._hash.forward(samples))
            times[samples] = _divided(waits, self._weights[samples])
        if self.num_positions == len(times):
            return np.argsort(times, kind="stable")
        last = np.partition(times, self.num_positions - 1)[self.num_positions - 1]
        early = np.flatnonzero(times <= last)
        # Equal times come in the order of samples, and more than one may be equal to the last.
        return early[np.argsort(times[early], kind="stable")[: self.num_positions]]

    def indices(self, positions: Indices) -> Indices:
        chosen: Indices = self._sorted[positions]
        return chosen

    def draws(self, positions: Indices) -> Draws:
        return Draws.once(len(positions))

    def find(self, index: int) -> Indices:
        return np.flatnonzero(self._sorted == index)


def _span(first: int, end: int) -> Indices:
    return np.arange(first, min(first + _AT_ONCE, end), dtype=np.int64)


def _exponentials(hashes: Indices) -> Floats:
    """Return `-log(u)` for `u = (hash + 1/2) / 2**62`, to a few units in the last place.

    With `u = m * 2**e` and `m` in `[sqrt(1/2), sqrt(2))`, `log(u) = e * log(2) + log(m)`, where
    `log(m) = 2 * atanh((m - 1) / (m + 1))`.
    """
    mantissas, exponents = np.frexp(hashes + 0.5)
    is_low = mantissas < math.sqrt(0.5)
    mantissas = np.where(is_low, 2 * mantissas, mantissas)
    exponents = exponents - is_low - _HASH_BITS
    # Close to 1, u is not exact as a float, but 1 - u is.
    near_one = (hashes - _HASH_SIZE + 0.5) * 2.0**-_HASH_BITS
    beyond_one = np.where(exponents == 0, near_one, mantissas - 1.0)
    z = beyond_one / (beyond_one + 2.0)
    square = z * z
    series = np.zeros_like(z)
    for term in _ATANH_TERMS:
        series = series * square + term
    logarithms: Floats = exponents * _LOG_2 + 2.0 * (z * series)
    return -logarithms


def _divided(waits: Floats, weights: Floats) -> Indices:
    """Return integers in the order of `waits / weights`, which itself may be out of range.

    The upper 12 bits are the exponent of the quotient and the lower 52 its mantissa. A weight of
    zero comes last.
    """
    is_drawn = weights > 0
    mantissas, exponents = np.frexp(weights)
    quotients, shifts = np.frexp(waits / np.where(is_drawn, mantissas, 1.0))
    # Waits lie in [2**-63, 44) and weights in [2**-1074, 2**1024), so 12 bits are enough.
    upper = shifts.astype(np.int64) - exponents
    lower = np.ldexp(quotients, 53).astype(np.int64) - 2**52
    return np.where(is_drawn, upper * 2**52 + lower, np.iinfo(np.int64).max)
