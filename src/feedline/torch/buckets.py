"""Batch samplers over buckets: by resolution, by length, by token budget."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from numpy.typing import ArrayLike

from feedline.errors import InvalidValueError, check_choice, check_integer
from feedline.plan import (
    BatchRule,
    Block,
    BucketPlan,
    Cursor,
    FixedBatch,
    Plan,
    Replay,
)
from feedline.plan.buckets import Bucket
from feedline.torch.peers import Peers
from feedline.torch.plan_sampler import Pass, PlanSampler
from feedline.torch.torch_buckets import TorchBucketPlan

__all__ = ["BucketBatchSampler", "SequentialBucketSampler"]

logger = logging.getLogger(__name__)

# A calculator is a function; its answers for these batch sizes stand for it in the fingerprint.
_PROBED_BATCH_SIZES = (1, 8, 32, 256)


class BucketSampler(PlanSampler[list[int]]):
    """A sampler that yields batches of one bucket each."""

    _plan: BucketPlan | TorchBucketPlan

    @property
    def plan(self) -> Plan:
        return self._plan

    def _entries_of(self, block: Block) -> list[list[int]]:
        edges = block.bounds.tolist()
        indices = block.indices.tolist()
        return [indices[edges[i] : edges[i + 1]] for i in range(len(block))]

    def _record(self, running: Pass) -> dict[str, Any]:
        rule, numbers = self._plan.rule, range(len(self._plan.buckets))
        sizes = [rule.batch_size(number, self._entry_size) for number in numbers]
        return {**super()._record(running), "batch_sizes": sizes}

    def _num_before(self, cursor: Cursor) -> int:
        return sum(past.num_batches for past in cursor.history)

    def _as_state(self, cursor: Cursor) -> dict[str, Any]:
        return {**super()._as_state(cursor), "batches_yielded": self._num_before(cursor)}

    def _cursor_of_documented(self, state: Mapping[str, Any]) -> Cursor:
        epoch = check_integer("epoch", state["epoch"], 0)
        num_batches = check_integer("batches_yielded", state.get("batches_yielded", 0), 0)
        return self._fresh_cursor(epoch, num_batches)

    def _batch_at(self, batch_idx: int) -> tuple[int, int]:
        """Return the bucket and the size of batch `batch_idx` of the epoch it is in."""
        segment = self._current_segment()
        replay = Replay(
            plan=segment.plan,
            epoch=segment.epoch,
            world_size=segment.world_size,
            batch_size=segment.batch_size,
            history=segment.history,
        )
        number = check_integer("batch_idx", batch_idx, 0, replay.num_batches - 1)
        # A batch of the past may have been dealt to fewer ranks than there are now.
        rank = min(self.rank, replay.world_size_at(number) - 1)
        batch = replay.batch(rank=rank, number=number)
        assert batch.bucket is not None
        return batch.bucket, len(batch.indices)


class SequentialBucketSampler(BucketSampler):
    """Batches of one resolution each; every rank is in the same bucket at the same step.

    Each bucket is padded to a multiple of the ranks by repeating its first samples, and cut into
    batches.

    Args:
        dataset: Has `bucket_groups`, a mapping from key to `indices`, `resolution` and
            `aspect_name`; `sorted_bucket_keys`; and `calculator`, whose
            `get_dynamic_batch_size(resolution, base_batch_size, base_resolution)` says how many
            samples fit. See `MultiresolutionDataset`.
        base_batch_size: The batch size, or that of `base_resolution` if it is dynamic.
        base_resolution: The resolution (width, height) that `base_batch_size` speaks of.
        drop_last: Leave out the last batch of a bucket if it is short; it is short on all ranks
            alike.
        shuffle_buckets: Whether buckets come in a new order in every epoch.
        shuffle_within_bucket: Whether samples of a bucket come in a new order in every epoch.
        dynamic_batch_size: Whether larger images make smaller batches.
        seed: Any integer or string.
        num_replicas: The number of ranks; by default that of the process group, else 1.
        rank: The rank of this process; by default that in the process group, else 0.
        order: `"feedline"`, or `"torch"` for the order of the system that this replaces.
        process_group: The group of ranks that get different data, if not all.
        desync_guard: Compare the ranks before each epoch, where they come from a process group.
        desync_timeout: How many seconds the guard waits for the other ranks.
    """

    def __init__(
        self,
        dataset: Any,
        base_batch_size: int = 32,
        base_resolution: tuple[int, int] = (512, 512),
        drop_last: bool = True,
        shuffle_buckets: bool = True,
        shuffle_within_bucket: bool = True,
        dynamic_batch_size: bool = False,
        seed: int = 42,
        num_replicas: int | None = None,
        rank: int | None = None,
        *,
        order: str = "feedline",
        process_group: Any | None = None,
        desync_guard: bool = True,
        desync_timeout: float = 60.0,
    ) -> None:
        for name in ("bucket_groups", "sorted_bucket_keys", "calculator"):
            if not hasattr(dataset, name):
                raise InvalidValueError(
                    f"dataset={dataset!r:.80} must have {name}; see MultiresolutionDataset"
                )
        check_choice("order", order, ("feedline", "torch"))
        super().__init__(
            peers=Peers(num_replicas, rank, process_group),
            entry_size=check_integer("base_batch_size", base_batch_size, 1),
            seed=seed,
            desync_guard=desync_guard,
            desync_timeout=desync_timeout,
        )
        self.dataset = dataset
        self.base_batch_size = base_batch_size
        self.base_resolution = base_resolution
        self.drop_last = drop_last
        self.shuffle_buckets = shuffle_buckets
        self.shuffle_within_bucket = shuffle_within_bucket
        self.dynamic_batch_size = dynamic_batch_size
        self.bucket_groups: Mapping[Any, Mapping[str, Any]] = dataset.bucket_groups
        self.bucket_keys: list[Any] = list(dataset.sorted_bucket_keys)
        self.calculator = dataset.calculator
        self._used_keys = [key for key in self.bucket_keys if len(self._group(key)["indices"])]
        rule: BatchRule = FixedBatch()
        if dynamic_batch_size:
            resolutions = tuple(tuple(self._group(key)["resolution"]) for key in self._used_keys)
            rule = _CalculatorBatch(self.calculator, base_resolution, resolutions)
        make = TorchBucketPlan if order == "torch" else BucketPlan
        self._plan = make(
            buckets=[Bucket(key, self._group(key)["indices"]) for key in self._used_keys],
            rule=rule,
            shuffle_buckets=shuffle_buckets,
            shuffle_within=shuffle_within_bucket,
            tail="pad_ranks_drop" if drop_last else "pad_ranks",
            seed=seed,
        )
        logger.debug("%d buckets of %d samples", len(self._used_keys), self._plan.num_indices)

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Go on where a state was saved. An error leaves the sampler as it was."""
        super().load_state_dict(state_dict)

    def get_batch_info(self, batch_idx: int) -> dict[str, Any]:
        """Return what batch `batch_idx` of this epoch is: bucket, resolution, size and aspect."""
        bucket, size = self._batch_at(batch_idx)
        key = self._used_keys[bucket]
        group = self._group(key)
        return {
            "bucket_key": key,
            "resolution": group["resolution"],
            "batch_size": size,
            "aspect_name": group["aspect_name"],
        }

    def _group(self, key: Any) -> Mapping[str, Any]:
        return self.bucket_groups[key]

    def _get_batch_size(self, resolution: tuple[int, int]) -> int:
        """Return the batch size for a resolution."""
        if not self.dynamic_batch_size:
            return self.base_batch_size
        return int(
            self.calculator.get_dynamic_batch_size(
                resolution, self.base_batch_size, self.base_resolution
            )
        )

    def _calculate_total_batches(self) -> int:
        """Return the number of batches of this epoch, equal on every rank."""
        return len(self)

    @property
    def _total_batches(self) -> int:
        return len(self)

    @property
    def _batches_yielded(self) -> int:
        return self._num_before(self._current_cursor())

    @property
    def _batches_to_skip(self) -> int:
        return 0 if self._loaded is None else self._num_before(self._loaded)


class BucketBatchSampler(BucketSampler):
    """Batches of samples of similar length, by count or by token budget.

    Args:
        lengths: The length of each sample.
        batch_size: The number of samples in a batch; give this or `token_budget`.
        token_budget: The number of tokens in a batch when all are padded to their bucket's edge.
        edges: The greatest length of each bucket; give this or `num_buckets`.
        num_buckets: The number of buckets, with quantiles of the lengths as edges.
        mode: `interleaved` shuffles buckets among each other; `sequential` finishes one first.
        shuffle: Whether samples and buckets come in a new order in every epoch.
        tail: What happens to the tail of each bucket; see `feedline.plan.Share`.
        seed: Any integer or string.
        num_replicas: The number of ranks; by default that of the process group, else 1.
        rank: The rank of this process; by default that in the process group, else 0.
        process_group: The group of ranks that get different data, if not all.
        desync_guard: Compare the ranks before each epoch, where they come from a process group.
        desync_timeout: How many seconds the guard waits for the other ranks.

    Examples:
        >>> sampler = BucketBatchSampler([3, 9, 4, 8, 2, 9], token_budget=18, edges=[4, 9])
        >>> sorted(len(batch) for batch in sampler)
        [1, 2, 3]
    """

    def __init__(
        self,
        lengths: ArrayLike,
        *,
        batch_size: int | None = None,
        token_budget: int | None = None,
        edges: Sequence[int] | None = None,
        num_buckets: int | None = None,
        mode: str = "interleaved",
        shuffle: bool = True,
        tail: str = "even",
        seed: int = 0,
        num_replicas: int | None = None,
        rank: int | None = None,
        process_group: Any | None = None,
        desync_guard: bool = True,
        desync_timeout: float = 60.0,
    ) -> None:
        if (batch_size is None) == (token_budget is None):
            raise InvalidValueError(
                f"batch_size={batch_size} and token_budget={token_budget}: give exactly one of them"
            )
        entry_size = batch_size if token_budget is None else token_budget
        name = "batch_size" if token_budget is None else "token_budget"
        super().__init__(
            peers=Peers(num_replicas, rank, process_group),
            entry_size=check_integer(name, entry_size, 1),
            seed=seed,
            desync_guard=desync_guard,
            desync_timeout=desync_timeout,
        )
        self._plan = BucketPlan.from_lengths(
            lengths,
            edges=edges,
            num_buckets=num_buckets,
            batch_by="samples" if token_budget is None else "tokens",
            mode=mode,
            shuffle_buckets=shuffle,
            shuffle_within=shuffle,
            tail=tail,
            seed=seed,
        )

    def get_batch_info(self, batch_idx: int) -> dict[str, Any]:
        """Return what batch `batch_idx` of this epoch is: its bucket's edge, and its size."""
        bucket, size = self._batch_at(batch_idx)
        return {"bucket_key": self._plan.buckets[bucket].key, "batch_size": size}


@dataclass(frozen=True)
class _CalculatorBatch:
    """Batch sizes as a calculator gives them."""

    calculator: Any
    base_resolution: tuple[int, int]
    resolutions: tuple[tuple[int, ...], ...]

    def batch_size(self, bucket: int, batch_size: int) -> int:
        answer = self._answer(bucket, batch_size)
        return check_integer(f"the batch size of {self.resolutions[bucket]}", answer, 1)

    def _answer(self, bucket: int, batch_size: int) -> int:
        return int(
            self.calculator.get_dynamic_batch_size(
                self.resolutions[bucket], batch_size, self.base_resolution
            )
        )

    def describe(self) -> dict[str, Any]:
        return {
            "kind": "calculator",
            "base_resolution": list(self.base_resolution),
            "batch_sizes": [
                [self._answer(bucket, base) for base in _PROBED_BATCH_SIZES]
                for bucket in range(len(self.resolutions))
            ],
        }
