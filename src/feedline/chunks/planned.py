"""Samplers whose requests are computed from a plan, so that they can resume anywhere."""

from __future__ import annotations

import copy
from abc import abstractmethod
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from feedline.chunks.plans import RowsPlan
from feedline.chunks.sampler import LoadRequest, Sampler, mask_bounds, request_of, seed_of
from feedline.errors import InvalidValueError, check_flag, check_integer
from feedline.feed import Alone, DataPlan, Pass, Peers, Position
from feedline.feed.adapters import torch_worker
from feedline.feed.delegation import asked_of
from feedline.feed.passes import SINGLE
from feedline.feed.shown import position_shown
from feedline.plan import Order, Plan, RoundsPlan
from feedline.plan.seeds import Seed
from feedline.store.matrix import MatrixStore
from feedline.words import several, shown


class PlannedSampler(Sampler):
    """A sampler with a position: an epoch, and the progress in it.

    When a pass has ended, the next one is the next epoch; an interrupted pass restarts.
    The state counts batches: those that a loader of Feedline has delivered, or else those in the
    requests that were delivered.

    Inside a worker of torch's DataLoader, worker w of n gets requests w, w + n, ….
    """

    has_position = True
    #: Where rows of another kind begin, if chunks begin anywhere; None if they lie side by side.
    run_starts: NDArray[np.int64] | None = None

    def __init__(self, batch_size: int, peers: Peers | None = None) -> None:
        # The loader compares the ranks: a sampler alone may run in any thread or worker.
        self._position = Position(
            None, batch_size=batch_size, peers=peers or Alone(), desync_guard=False
        )
        self._planned_for: tuple[Any, ...] | None = None

    def _shown(self) -> str:
        return f"{super()._shown()}; {position_shown(self._position, SINGLE)}"

    @abstractmethod
    def plan(self, n_obs: int) -> Plan:
        """Return the plan for `n_obs` rows; its indices count from the mask's first row."""

    @property
    @abstractmethod
    def chunk_size(self) -> int:
        """The number of rows in a chunk."""

    @property
    @abstractmethod
    def preload_nchunks(self) -> int:
        """The number of chunks in a request."""

    @property
    @abstractmethod
    def seed(self) -> Seed:
        """The seed of all orders."""

    def position_for(self, n_obs: int, data: MatrixStore | None = None) -> Position:
        """Return the position in the plan for `n_obs` rows, of `data` if that is known."""
        start, stop = self._bounds(n_obs)
        wanted = (n_obs, start, stop, self.seed, id(data))
        if self._planned_for != wanted:
            self.validate(n_obs)
            plan: Plan = RowsPlan(plan=self.plan(n_obs), start=start, stop=stop)
            if data is not None:
                plan = DataPlan(plan=plan, store=data, takes_any=True)
            self._position.plan = plan
            self._planned_for = wanted
        return self._position

    epoch: int = asked_of("_position", "epoch")
    """The current epoch."""

    def set_epoch(self, epoch: int) -> None:
        """Move to the start of `epoch`; the current epoch is not restarted."""
        self._position.set_epoch(epoch)

    def n_batches(self, n_obs: int) -> int:
        self.validate(n_obs)
        position = self._position
        sizes = {"world_size": position.peers.world_size, "batch_size": position.batch_size}
        return self.plan(n_obs).segment(epoch=position.epoch, **sizes).num_batches

    def n_batches_left(self, n_obs: int) -> int:
        """Return the number of batches in the next pass."""
        return self.position_for(n_obs).num_batches_left()

    def requests(self, running: Pass, n_obs: int) -> Iterator[LoadRequest]:
        """Yield what to read for a pass, or this worker's part of it."""
        num_together = max(1, self.chunk_size * self.preload_nchunks // self.batch_size)
        edges = range(-(-(running.start + 1) // num_together) * num_together, 2**63, num_together)
        worker, num_workers = torch_worker()
        offset, first_chunk = self._bounds(n_obs)[0], self._first_chunk(n_obs)
        first, number = running.start, 0
        while first < running.segment.num_batches:
            end = min(edges[number], running.segment.num_batches)
            if number % (num_workers or 1) == worker:
                block = running.segment.block(running.rank, first, end)
                yield request_of(block, offset, self.chunk_size, first_chunk, self.run_starts)
            first, number = end, number + 1

    def _sample(self, n_obs: int) -> Iterator[LoadRequest]:
        running = self.position_for(n_obs).begin()
        for request in self.requests(running, n_obs):
            running.deliver(len(request["splits"]))
            yield request
        # Those that other workers have.
        running.deliver(running.num_batches - running.num_delivered)

    def _bounds(self, n_obs: int) -> tuple[int, int]:
        """Return the first row of the mask, and the row after its last one."""
        start, stop = mask_bounds(self.mask, check_integer("n_obs", n_obs, 1))
        assert stop is not None
        return start, stop

    def _first_chunk(self, n_obs: int) -> int:
        """Return the row from which chunks are counted."""
        return self._bounds(n_obs)[0]

    def state_dict(self, num_batches: int | None = None) -> dict[str, Any]:
        """Return the state; the cursor is None until the number of rows is known.

        Args:
            num_batches: The number of batches of this pass that were delivered, from a loader that
                reads ahead; without it, all batches of the requests so far count.
        """
        running = self._position.current
        if running is None:
            if num_batches not in (None, 0):
                raise InvalidValueError(
                    f"num_batches={num_batches} must be 0, because no pass has begun"
                )
            if not self._position.is_loaded:
                return {"epoch": self.epoch, "cursor": None}
        if running is None or num_batches is None:
            return self._position.state_dict()
        num_batches = check_integer("num_batches", num_batches, 0, running.num_batches)
        cursor = running.segment.cursor(running.entries_before(num_batches))
        return {"epoch": cursor.epoch, "cursor": cursor.to_json()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Let the next pass resume from a saved state; it is compared with the plan then."""
        # Which rows the state is for is known when the pass begins.
        self._position.plan = self._planned_for = None
        self._position.load_state_dict(state)

    def __getstate__(self) -> dict[str, Any]:
        # A copy has its own position; its plan, which may hold the data, is made again.
        position = copy.copy(self._position)
        position.plan = None
        return {**self.__dict__, "_position": position, "_planned_for": None}


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
        self._chunk_size = check_integer("chunk_size", chunk_size, 1)
        self._preload_nchunks = check_integer("preload_nchunks", preload_nchunks, 1)
        self._batch_size = check_integer("batch_size", batch_size, 1)
        in_memory = chunk_size * preload_nchunks
        if in_memory < batch_size or in_memory % batch_size:
            raise InvalidValueError(
                f"chunk_size * preload_nchunks = {chunk_size} * {preload_nchunks} = {in_memory} "
                f"must be a multiple of batch_size={batch_size}; change one of them"
            )
        super().__init__(self._batch_size)
        self._drop_last = check_flag("drop_last", drop_last)
        if mask is not None:
            self.mask = mask
        self._seed: Seed
        self._seed, self._rng = seed_of(rng)

    def _shown(self) -> str:
        chunks = several(self._preload_nchunks, "chunk")
        windows = f"windows of {chunks} of {several(self._chunk_size, 'row')}"
        seed = f", seed {shown(self._seed, 30)}" if self.shuffle else ""
        return f"{windows}{seed}; {super()._shown()}"

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
        """Whether an incomplete last batch is dropped."""
        return self._drop_last

    @property
    def seed(self) -> Seed:
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

    def check_shards(self, start: int, size: int, num_shards: int) -> None:
        """Raise unless rows can be drawn from each of some shards, which begin at row `start`."""

    @property
    def tail(self) -> str:
        """The tail policy."""
        return "drop" if self._drop_last else "even"

    def plan(self, n_obs: int) -> Plan:
        return RoundsPlan(order=self.order_on(*self._bounds(n_obs), self._seed), tail=self.tail)

    def validate(self, n_obs: int) -> None:
        self.plan(n_obs)
