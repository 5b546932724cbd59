"""Samplers whose requests are computed from a plan, so that they begin anywhere."""

from __future__ import annotations

import sys
from abc import abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from feedline.chunks.requests import LoadRequest, request_of
from feedline.chunks.sampler import Sampler, mask_bounds, seed_of
from feedline.errors import CursorFormatError, InvalidValueError, check_integer
from feedline.plan import Cursor, Order, Plan, Segment
from feedline.plan.seeds import Seed

__all__ = ["PlannedSampler", "WindowSampler"]


@dataclass
class _Pass:
    """A walk through a segment, and how many of its batches were in the requests handed out."""

    segment: Segment
    num_batches: int


class PlannedSampler(Sampler):
    """A sampler with a place: an epoch, and how far it has come in it.

    When a pass has ended, the next one is the next epoch. The state counts batches: those in the
    requests that were handed out, or as many as the loader says it has delivered.

    Inside a worker of torch's DataLoader, worker w of n gets requests w, w + n, ….
    """

    _world_size = 1
    _rank = 0

    def __init__(self) -> None:
        self._epoch = 0
        self._loaded: Cursor | None = None
        self._pass: _Pass | None = None

    @abstractmethod
    def plan(self, n_obs: int) -> Plan:
        """Return the plan for so many rows; its indices count from the mask's first row."""

    @property
    @abstractmethod
    def chunk_size(self) -> int:
        """The number of rows of a chunk."""

    @property
    @abstractmethod
    def preload_nchunks(self) -> int:
        """The number of chunks of a request."""

    @property
    def epoch(self) -> int:
        """The epoch that this sampler is in."""
        return self._epoch

    def set_epoch(self, epoch: int) -> None:
        """Go to the beginning of `epoch`; the epoch that the sampler is in is not restarted."""
        epoch = check_integer("epoch", epoch, 0)
        if epoch != self._epoch:
            self._epoch = epoch
            self._loaded = self._pass = None

    def n_batches(self, n_obs: int) -> int:
        self.validate(n_obs)
        return self._fresh(n_obs).num_batches

    def n_batches_left(self, n_obs: int) -> int:
        """Return how many batches the next pass has."""
        segment = self._resumed(n_obs)
        left = 0 if segment is None else segment.num_batches - segment.num_done
        return left or self.n_batches(n_obs)

    def planned_rows(self, n_obs: int) -> Iterator[NDArray[np.int64]]:
        """Yield the rows of each batch of the pass that has begun, without reading anything."""
        assert self._pass is not None
        offset = self._offset(n_obs)
        for batch in self._pass.segment.batches(self._rank):
            yield batch.indices + offset

    def begin(self, n_obs: int) -> Segment:
        """Begin a pass, at the loaded state, or at the start of this or the next epoch."""
        ended = self._pass
        if ended is not None and ended.num_batches == ended.segment.num_batches:
            self.set_epoch(self._epoch + 1)
        segment = self._resumed(n_obs)
        if segment is not None and segment.num_done == segment.num_batches:
            self.set_epoch(self._epoch + 1)
            segment = None
        segment = segment or self._fresh(n_obs)
        self._loaded = None
        self._pass = _Pass(segment, segment.num_done)
        return segment

    def _sample(self, n_obs: int) -> Iterator[LoadRequest]:
        segment = self.begin(n_obs)
        running = self._pass
        offset = self._offset(n_obs)
        worker, num_workers = _torch_worker()
        for number, (first, end) in enumerate(self.request_spans(segment)):
            if running is not None:
                running.num_batches = end
            if number % num_workers == worker:
                block = segment.block(self._rank, first, end)
                yield request_of(block, offset, self.chunk_size, self._first_chunk(n_obs))

    def request_spans(self, segment: Segment) -> Iterator[tuple[int, int]]:
        """Yield the first batch, and the one after the last, of each request of a segment."""
        num_together = max(1, self.chunk_size * self.preload_nchunks // self.batch_size)
        first = segment.num_done
        while first < segment.num_batches:
            end = min((first // num_together + 1) * num_together, segment.num_batches)
            yield first, end
            first = end

    def _offset(self, n_obs: int) -> int:
        return mask_bounds(self._mask, n_obs)[0]

    def _first_chunk(self, n_obs: int) -> int:
        """Return the row at which chunks begin to be counted."""
        return self._offset(n_obs)

    def _sizes(self) -> dict[str, int]:
        return {"world_size": self._world_size, "batch_size": self.batch_size}

    def _fresh(self, n_obs: int) -> Segment:
        return self.plan(n_obs).segment(epoch=self._epoch, **self._sizes())

    def _resumed(self, n_obs: int) -> Segment | None:
        if self._loaded is None:
            return None
        return self.plan(n_obs).resume(self._loaded, **self._sizes())

    def state_dict(self, num_batches: int | None = None) -> dict[str, Any]:
        """Return where this sampler is.

        Args:
            num_batches: How many batches of this pass were delivered. A loader that reads ahead
                knows; without it, all batches of the requests handed out count.
        """
        if self._pass is None:
            if num_batches not in (None, 0):
                raise InvalidValueError(
                    f"num_batches={num_batches} must be 0, because no pass has begun"
                )
            cursor = self._loaded
            return {"epoch": self._epoch, "cursor": None if cursor is None else cursor.to_dict()}
        segment, reached = self._pass.segment, self._pass.num_batches
        if num_batches is not None:
            high = segment.num_batches - segment.num_done
            reached = segment.num_done + check_integer("num_batches", num_batches, 0, high)
        return {"epoch": self._epoch, "cursor": segment.cursor(reached).to_dict()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Let the next pass go on where a state was saved; it is compared with the plan then."""
        if not isinstance(state, Mapping) or not {"epoch", "cursor"} <= state.keys():
            raise CursorFormatError(
                f"state={state!r:.80} must be a mapping with the keys 'epoch' and 'cursor'; pass "
                "what state_dict() returned"
            )
        cursor = None if state["cursor"] is None else Cursor.from_dict(state["cursor"])
        epoch = check_integer("epoch", state["epoch"], 0)
        if cursor is not None and cursor.epoch != epoch:
            raise CursorFormatError(
                f"epoch={epoch} must be that of the cursor, {cursor.epoch}; the state is damaged, "
                "use an earlier checkpoint"
            )
        self._epoch, self._loaded, self._pass = epoch, cursor, None


class WindowSampler(PlannedSampler):
    """A sampler whose requests are windows of chunks."""

    def __init__(
        self,
        chunk_size: int,
        preload_nchunks: int,
        batch_size: int,
        *,
        drop_last: bool,
        mask: slice | None,
        rng: Any,
    ) -> None:
        super().__init__()
        self._chunk_size = check_integer("chunk_size", chunk_size, 1)
        self._preload_nchunks = check_integer("preload_nchunks", preload_nchunks, 1)
        self._batch_size = check_integer("batch_size", batch_size, 1)
        _check_sizes(chunk_size, preload_nchunks, batch_size)
        self._drop_last = bool(drop_last)
        if mask is not None:
            self.mask = mask
        self._seed: Seed
        self._seed, self._rng = seed_of(rng)

    @property
    def batch_size(self) -> int:
        return self._batch_size

    @property
    def chunk_size(self) -> int:
        return self._chunk_size

    @property
    def preload_nchunks(self) -> int:
        return self._preload_nchunks

    @property
    def drop_last(self) -> bool:
        """Whether an incomplete last batch is left out."""
        return self._drop_last

    @property
    def seed(self) -> Seed:
        """The seed of all orders."""
        return self._seed

    @property
    def rng(self) -> np.random.Generator | None:
        """The generator that the seed came from, if there was one; setting it draws another."""
        return self._rng

    @rng.setter
    def rng(self, rng: np.random.Generator | int | None) -> None:
        self._seed, self._rng = seed_of(rng)

    @abstractmethod
    def order_on(self, start: int, stop: int, seed: Seed) -> Order:
        """Return an order made of windows over rows `[start, stop)`, counted from `start`."""

    @property
    def tail(self) -> str:
        """What happens to the last batch."""
        return "drop" if self._drop_last else "even"


def _check_sizes(chunk_size: int, preload_nchunks: int, batch_size: int) -> None:
    in_memory = chunk_size * preload_nchunks
    if in_memory < batch_size or in_memory % batch_size:
        raise InvalidValueError(
            f"chunk_size * preload_nchunks = {chunk_size} * {preload_nchunks} = {in_memory} must "
            f"be a multiple of batch_size={batch_size}; change one of them"
        )


def _torch_worker() -> tuple[int, int]:
    """Return the number of this worker of torch's DataLoader and how many there are.

    A worker has imported torch, so nothing is imported here.
    """
    module = sys.modules.get("torch.utils.data")
    info = None if module is None else module.get_worker_info()
    return (0, 1) if info is None else (info.id, info.num_workers)
