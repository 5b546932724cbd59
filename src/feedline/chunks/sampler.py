"""The chunk sampler: it turns a number of rows into load requests."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import Any, TypedDict, cast

import numpy as np
from numpy.typing import NDArray

from feedline.errors import InvalidValueError, check_integer
from feedline.feed import Peers
from feedline.feed.load_requests import KEYS, WholeRequests
from feedline.plan import Block
from feedline.words import several


class LoadRequest(TypedDict, total=False):
    """Rows to read together, and the batches in them.

    `requests` is a list of slices, or an array of rows; `chunks` is the same, under the name that
    it had in annbatch until 0.1.6. `splits` has an array for each batch, with places in the rows as
    they come when the requests are read one after another.

    `Sampler.sample` yields all three. A subclass may yield one of the first two, and no splits.
    """

    requests: list[slice] | NDArray[np.int64]
    chunks: list[slice] | NDArray[np.int64]
    splits: list[NDArray[np.int64]]


class Sampler(ABC):
    """A sampler of load requests over the rows in `mask`.

    A subclass has `_sample`, `validate`, `batch_size`, `shuffle`, and `n_batches` or `n_iters`:
    the one that it lacks is made of the other.
    """

    #: Whether it has a position, so that a loader over it can be saved and resumed.
    has_position: bool = False
    #: The ranks that share its rows; None where each of them would get all.
    peers: Peers | None = None

    _mask: slice = slice(0, None)
    _rng: np.random.Generator | None = None
    _num_passes = 0

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        # Of each class its own pair: so `super()` finds the method that it names.
        for name, other in (("n_batches", "n_iters"), ("n_iters", "n_batches")):
            if name in vars(cls) and other not in vars(cls):
                setattr(cls, other, _under_another_name(vars(cls)[name], other))

    def __repr__(self) -> str:
        try:
            return f"<{type(self).__name__}: {self._shown()}>"
        except Exception:
            # Those of a subclass that is not set up yet may fail.
            return f"<{type(self).__name__}>"

    def _shown(self) -> str:
        """Return what this sampler does, in words."""
        rows = "all rows"
        if self.mask != slice(0, None):
            start, stop = mask_bounds(self.mask)
            rows = f"rows [{start:,}, {'end' if stop is None else f'{stop:,}'})"
        kind = "shuffled" if self.shuffle else "in order"
        return f"{rows} {kind}, batches of {several(self.batch_size, 'row')}"

    @property
    @abstractmethod
    def batch_size(self) -> int:
        """The number of rows in a batch."""

    @property
    @abstractmethod
    def shuffle(self) -> bool:
        """Whether rows are shuffled."""

    @property
    def mask(self) -> slice:
        """The rows that this sampler draws from."""
        return self._mask

    @mask.setter
    def mask(self, mask: slice) -> None:
        start, stop = mask_bounds(mask)
        self._check_mask(start, stop)
        self._mask = slice(start, stop)

    def _check_mask(self, start: int, stop: int | None) -> None:  # noqa: B027
        """Raise unless this sampler can draw from rows `[start, stop)`, as far as it knows."""

    @property
    def rng(self) -> np.random.Generator | None:
        """The generator that the seed came from, if there was one."""
        return self._rng

    @rng.setter
    def rng(self, rng: np.random.Generator | None) -> None:
        self._rng = rng

    @abstractmethod
    def n_batches(self, n_obs: int) -> int:
        """Return the number of batches that `sample` yields for `n_obs` rows."""

    def n_iters(self, n_obs: int) -> int:
        """Return `n_batches`, under its other name."""
        return self.n_batches(n_obs)

    @abstractmethod
    def validate(self, n_obs: int) -> None:
        """Raise unless this sampler can draw from `n_obs` rows."""

    def sample(self, n_obs: int) -> Iterator[LoadRequest]:
        """Yield load requests for a pass over `n_obs` rows, each with all keys."""
        self.validate(n_obs)
        whole = WholeRequests(self, self._num_passes)
        self._num_passes += 1
        requests = self._sample(n_obs)
        try:
            for request in requests:
                yield request if request.keys() >= KEYS else cast(LoadRequest, whole(request))
        finally:
            # At once, and not when memory is collected: what `_sample` holds is restored then.
            close = getattr(requests, "close", None)
            if close is not None:
                close()

    @abstractmethod
    def _sample(self, n_obs: int) -> Iterator[LoadRequest]:
        """Yield load requests; `n_obs` has been checked."""


def _under_another_name(count: Callable[[Any, int], int], name: str) -> Any:
    def counted(self: Any, n_obs: int) -> int:
        return count(self, n_obs)

    counted.__name__, counted.__doc__ = name, f"Return `{count.__name__}`, under its other name."
    return counted


def mask_bounds(mask: Any, n_obs: int | None = None) -> tuple[int, int | None]:
    """Return the first row of a mask and the row after its last one, or raise.

    Examples:
        >>> mask_bounds(slice(10, None), n_obs=50)
        (10, 50)
    """
    if not isinstance(mask, slice) or mask.step not in (None, 1):
        raise InvalidValueError(
            f"mask={mask!r} must be a slice without a step, such as slice(0, 1000)"
        )
    start = check_integer("mask.start", 0 if mask.start is None else mask.start, 0)
    stop = n_obs if mask.stop is None else check_integer("mask.stop", mask.stop, 0)
    if stop is None:
        return start, None
    if n_obs is not None and stop > n_obs:
        raise InvalidValueError(
            f"mask.stop={stop} must be at most n_obs={n_obs}; pass a mask for these rows"
        )
    if start >= stop:
        raise InvalidValueError(
            f"mask={mask!r} must hold at least one of n_obs={n_obs} rows; its start must be below "
            "its stop"
        )
    return start, stop


def seed_of(rng: Any) -> tuple[int | str, np.random.Generator]:
    """Return a seed, and a generator: the one that was given, or one that is made of the seed.

    A generator yields one seed, when it is given; None means 0.

    Examples:
        >>> seed_of(7)[0], seed_of(None)[0]
        (7, 0)
    """
    if isinstance(rng, np.random.Generator):
        return int(rng.integers(0, 2**63 - 1)), rng
    if isinstance(rng, str):
        return rng, np.random.default_rng(list(rng.encode()))
    seed = 0
    if rng is not None:
        seed = check_integer("rng", rng, None, remedy="pass a seed or a numpy Generator")
    return seed, np.random.default_rng([abs(seed), int(seed < 0)])


def request_of(
    block: Block,
    offset: int,
    chunk_size: int,
    first_chunk: int,
    run_starts: NDArray[np.int64] | None = None,
) -> LoadRequest:
    """Return what to read for the batches of a block, in slices of up to `chunk_size` rows.

    `offset` is added to the block's indices. Slices do not cross chunks, which are counted from row
    `first_chunk` on. With `run_starts`, a slice begins where rows begin, or where the one before it
    is full, and does not cross a start of a run. Rows that are needed twice are read once. All
    arrays are new: nothing is shared with other requests.
    """
    rows, places = np.unique(block.indices, return_inverse=True)
    is_cut = np.diff(rows) != 1
    in_chunks = rows + (offset - first_chunk)
    if run_starts is not None:
        runs = np.searchsorted(run_starts, rows + offset, side="right")
        is_cut |= np.diff(runs) != 0
        firsts = np.append(0, np.flatnonzero(is_cut) + 1)
        in_chunks = rows - np.repeat(rows[firsts], np.diff(np.append(firsts, len(rows))))
    is_cut |= np.diff(in_chunks // chunk_size) != 0
    edges = [0, *(np.flatnonzero(is_cut) + 1).tolist(), len(rows)]
    requests = [
        slice(int(rows[first]) + offset, int(rows[end - 1]) + 1 + offset)
        for first, end in pairwise(edges)
        if first < end
    ]
    splits = [places[first:end].copy() for first, end in pairwise(block.bounds.tolist())]
    return {"requests": requests, "chunks": requests, "splits": splits}
