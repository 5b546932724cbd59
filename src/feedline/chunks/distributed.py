"""A sampler that divides another one's rows over the ranks of a run."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

from feedline.chunks.dist_info import DistInfo, peers_of
from feedline.chunks.planned import PlannedSampler, WindowSampler
from feedline.chunks.plans import ShardsPlan, shard_bounds
from feedline.chunks.sampler import LoadRequest, Sampler
from feedline.errors import InvalidValueError, check_choice, check_flag
from feedline.feed import Peers
from feedline.feed.delegation import asked_of
from feedline.plan import Plan

_SHARDS = ("contiguous", "windows")


class DistributedSampler(PlannedSampler):
    """The rows of another sampler, divided over the ranks of a run.

    The wrapped sampler is copied, so it does not change.

    Args:
        sampler: The sampler to divide; its mask selects the rows.
        dist_info: `"torch"`, `"jax"`, or a function that returns `(rank, world_size)`. It is called
            once, at construction.
        enforce_equal_batches: With contiguous shards, cut every shard to a multiple of the batch
            size, so that all batches are full.
        shards: `"contiguous"` gives each rank one part of the rows, the same in every epoch; rows
            that do not divide evenly are dropped. `"windows"` deals windows of chunks to the ranks
            in rounds: every row is seen by some rank in every epoch, ranks get other rows each
            time, and a state resumes on any number of ranks.

    Examples:
        >>> from feedline.chunks import RandomSampler
        >>> inner = RandomSampler(chunk_size=10, preload_nchunks=2, batch_size=5)
        >>> sampler = DistributedSampler(inner, dist_info=lambda: (0, 2), shards="windows")
        >>> sampler.n_batches(100)
        10
    """

    def __init__(
        self,
        sampler: Sampler,
        *,
        dist_info: DistInfo,
        enforce_equal_batches: bool = True,
        shards: str = "contiguous",
    ) -> None:
        self._shards = check_choice("shards", shards, _SHARDS)
        if isinstance(sampler, DistributedSampler):
            raise InvalidValueError(
                "sampler=DistributedSampler already divides the rows over the ranks, and a second "
                "one would leave most of them out; pass the sampler inside it"
            )
        if not hasattr(sampler, "sample") or not hasattr(sampler, "batch_size"):
            raise InvalidValueError(
                f"sampler={sampler!r:.80} must be a chunk sampler, such as "
                "feedline.chunks.RandomSampler"
            )
        if shards == "windows" and not isinstance(sampler, WindowSampler):
            raise InvalidValueError(
                f"shards='windows' needs one of Feedline's samplers, not {type(sampler).__name__}; "
                "use shards='contiguous'"
            )
        self._dist_info = dist_info
        self.peers: Peers = peers_of(dist_info)
        super().__init__(sampler.batch_size, self.peers)
        self._enforce_equal_batches = check_flag("enforce_equal_batches", enforce_equal_batches)
        self._sampler = copy.deepcopy(sampler)
        self.has_position = isinstance(sampler, WindowSampler)
        self.run_starts = getattr(sampler, "run_starts", None)
        if not self.has_position and sampler.rng is not None:
            # Each rank has its own stream; the caller's generator is not used.
            self._sampler.rng = copy.deepcopy(sampler.rng).spawn(self.rank + 1)[-1]

    def _shown(self) -> str:
        inner = type(self._sampler).__name__
        return f"{inner} in {self._shards} shards; {super()._shown()}"

    @property
    def dist_info(self) -> DistInfo:
        """The source of rank and world size."""
        return self._dist_info

    rank: int = asked_of("peers", "rank")
    """The rank."""
    world_size: int = asked_of("peers", "world_size")
    """The number of ranks."""
    batch_size, shuffle = asked_of("_sampler", "batch_size"), asked_of("_sampler", "shuffle")
    chunk_size, seed = asked_of("_ours", "chunk_size"), asked_of("_ours", "seed")
    preload_nchunks = asked_of("_ours", "preload_nchunks")
    mask = asked_of("_sampler", "mask", "The rows that are divided.", can_set=True)
    rng = asked_of("_sampler", "rng", "Of the seed; setting it draws another.", can_set=True)

    @property
    def _ours(self) -> WindowSampler:
        if not isinstance(self._sampler, WindowSampler):
            raise InvalidValueError(
                f"{type(self._sampler).__name__} cannot be saved or resumed; wrap one of "
                "Feedline's samplers"
            )
        return self._sampler

    def validate(self, n_obs: int) -> None:
        self._sampler.validate(n_obs)
        self._shard(n_obs)
        if self._shards == "contiguous" and isinstance(self._sampler, WindowSampler):
            # Of all ranks, so that none waits for one that fails.
            start, stop = self._bounds(n_obs)
            size = shard_bounds(stop - start, self.world_size, 0, self._multiple)[1]
            self._sampler.check_shards(start, size, self.world_size)

    def n_batches(self, n_obs: int) -> int:
        if self.has_position:
            return super().n_batches(n_obs)
        own: Any = self._on_shard(n_obs)
        # Samplers of other libraries have one name or the other.
        count = own.n_batches if hasattr(own, "n_batches") else own.n_iters
        return int(count(n_obs))

    def _sample(self, n_obs: int) -> Iterator[LoadRequest]:
        if self.has_position:
            return super()._sample(n_obs)
        return self._on_shard(n_obs).sample(n_obs)

    def plan(self, n_obs: int) -> Plan:
        inner = self._ours
        if self._shards == "windows":
            return inner.plan(n_obs)
        start, stop = self._bounds(n_obs)
        return ShardsPlan(
            num_rows=stop - start,
            order_on=lambda first, end, seed: inner.order_on(start + first, start + end, seed),
            seed=inner.seed,
            tail=inner.tail,
            multiple_of=self._multiple,
        )

    @property
    def _multiple(self) -> int:
        return self.batch_size if self._enforce_equal_batches else 1

    def _shard(self, n_obs: int) -> tuple[int, int]:
        """Return the start and end of this rank's rows."""
        start, stop = self._bounds(n_obs)
        if self._shards == "windows":
            return start, stop
        first, end = shard_bounds(stop - start, self.world_size, self.rank, self._multiple)
        return start + first, start + end

    def _on_shard(self, n_obs: int) -> Sampler:
        """Return a copy of a sampler that is not ours, which draws from this rank's rows."""
        sampler = copy.copy(self._sampler)
        sampler.mask = slice(*self._shard(n_obs))
        return sampler

    def _first_chunk(self, n_obs: int) -> int:
        return self._shard(n_obs)[0]
