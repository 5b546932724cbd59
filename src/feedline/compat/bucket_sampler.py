"""The multi-resolution bucket sampler, under the names, states and orders of its document."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from feedline.compat.distributed_sampler import DocumentedState
from feedline.compat.torch_order import TorchBucketPlan
from feedline.errors import InvalidValueError, check_choice, check_flag, check_integer
from feedline.feed import Peers
from feedline.plan import BatchRule, Bucket, BucketPlan, Cursor, FixedBatch, Segment
from feedline.plan.seeds import check_seed
from feedline.torch.buckets import BucketSampler
from feedline.torch.sampler import describe_dataset
from feedline.words import one_line

logger = logging.getLogger(__name__)

# A calculator is a function; its answers for these batch sizes stand for it in the fingerprint.
_PROBED_BATCH_SIZES = (1, 8, 32, 256)


class SequentialBucketSampler(DocumentedState, BucketSampler):
    """Batches of one resolution each; every rank is in the same bucket at the same step.

    Each bucket is padded to a multiple of the ranks by repeating its first samples, and cut into
    batches.

    Args:
        dataset: Has `bucket_groups`, a mapping from key to `indices`, `resolution` and
            `aspect_name`; `sorted_bucket_keys`; and `calculator`, whose
            `get_dynamic_batch_size(resolution, base_batch_size, base_resolution)` returns a batch
            size. See `MultiresolutionDataset`.
        base_batch_size: The batch size, or that of `base_resolution` if it is dynamic.
        base_resolution: The resolution (width, height) that `base_batch_size` refers to.
        drop_last: Drop the last batch of a bucket if it is short; it is equally short on all ranks.
        shuffle_buckets: Shuffle the buckets in every epoch.
        shuffle_within_bucket: Shuffle the samples of each bucket in every epoch.
        dynamic_batch_size: Use smaller batches for larger images.
        seed: Any integer or string.
        num_replicas: The number of ranks; by default that of the process group, else 1.
        rank: The rank of this process; by default that in the process group, else 0.
        order: `"feedline"`, or `"torch"` for the order of the system that this replaces.
        process_group: The group of ranks that get different data, if not all.
        peers: The ranks, where no other argument says who they are.
        desync_guard: Compare the ranks before each pass, where they come from a process group.
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
        peers: Peers | str = "auto",
        desync_guard: bool = True,
        desync_timeout: float = 60.0,
    ) -> None:
        for name in ("bucket_groups", "sorted_bucket_keys", "calculator"):
            if not hasattr(dataset, name):
                raise InvalidValueError(
                    f"dataset={dataset!r:.80} must have {name}; see MultiresolutionDataset"
                )
        check_choice("order", order, ("feedline", "torch"))
        self.dataset = dataset
        self.seed = check_seed(seed)
        self.base_batch_size = check_integer("base_batch_size", base_batch_size, 1)
        self.base_resolution = base_resolution
        self.drop_last = check_flag("drop_last", drop_last)
        self.shuffle_buckets = check_flag("shuffle_buckets", shuffle_buckets)
        self.shuffle_within_bucket = check_flag("shuffle_within_bucket", shuffle_within_bucket)
        self.dynamic_batch_size = check_flag("dynamic_batch_size", dynamic_batch_size)
        self.bucket_groups: Mapping[Any, Mapping[str, Any]] = dataset.bucket_groups
        self.bucket_keys: list[Any] = list(dataset.sorted_bucket_keys)
        self.calculator = dataset.calculator
        groups = self.bucket_groups
        _check_keys(self.bucket_keys, groups)
        self._used_keys = [key for key in self.bucket_keys if len(groups[key]["indices"])]
        rule: BatchRule = FixedBatch()
        if dynamic_batch_size:
            resolutions = tuple(tuple(groups[key]["resolution"]) for key in self._used_keys)
            rule = _CalculatorBatch(self.calculator, base_resolution, resolutions)
        plan = (TorchBucketPlan if order == "torch" else BucketPlan)(
            buckets=[Bucket(key, groups[key]["indices"]) for key in self._used_keys],
            rule=rule,
            shuffle_buckets=shuffle_buckets,
            shuffle_within=shuffle_within_bucket,
            tail="pad_ranks_drop" if drop_last else "pad_ranks",
            seed=seed,
        )
        super().__init__(
            plan,
            batch_size=self.base_batch_size,
            num_replicas=num_replicas,
            rank=rank,
            describe=partial(describe_dataset, dataset),
            process_group=process_group,
            peers=peers,
            desync_guard=desync_guard,
            desync_timeout=desync_timeout,
        )
        logger.debug("%d buckets of %d samples", len(self._used_keys), plan.num_indices)

    def state_dict(self) -> dict[str, Any]:
        """Return the state; save it on any rank, load it on any number of ranks."""
        return {**super().state_dict(), "batches_yielded": self._batches_yielded}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Resume from a saved state. An error leaves the sampler unchanged."""
        super().load_state_dict(state_dict)

    def _cursor_of_documented(self, state: Mapping[str, Any]) -> Cursor:
        epoch = check_integer("epoch", state["epoch"], 0)
        num_batches = check_integer("batches_yielded", state.get("batches_yielded", 0), 0)
        return self.position.cursor_at(epoch, num_batches)

    def get_batch_info(self, batch_idx: int) -> dict[str, Any]:
        """Return the bucket, resolution, size and aspect of batch `batch_idx` of this epoch."""
        bucket, size = self._batch_at(batch_idx)
        key = self._used_keys[bucket]
        group = self.bucket_groups[key]
        return {
            "bucket_key": key,
            "resolution": group["resolution"],
            "batch_size": size,
            "aspect_name": group["aspect_name"],
        }

    def _get_batch_size(self, resolution: tuple[int, int]) -> int:
        """Return the batch size for a resolution."""
        if not self.dynamic_batch_size:
            return self.base_batch_size
        rule = _CalculatorBatch(self.calculator, self.base_resolution, (resolution,))
        return rule.batch_size(0, self.base_batch_size)

    def _calculate_total_batches(self) -> int:
        """Return the number of batches in this epoch, equal on every rank."""
        return len(self)

    @property
    def _total_batches(self) -> int:
        return len(self)

    @property
    def _batches_yielded(self) -> int:
        running = self.position.current
        if running is None:
            return self._batches_to_skip
        return _num_behind(running.segment, running.entries_before(running.num_delivered))

    @property
    def _batches_to_skip(self) -> int:
        if not self.position.is_loaded:
            return 0
        segment = self.position.next_segment()
        return _num_behind(segment, segment.num_done)


def _num_behind(segment: Segment, num_batches: int) -> int:
    """Return how many batches the epoch has had before; those that were skipped count."""
    return sum(past.num_behind for past in segment.history_after(num_batches))


@one_line
@dataclass(frozen=True)
class _CalculatorBatch:
    """Batch sizes from a calculator."""

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


def _check_keys(keys: list[Any], groups: Mapping[Any, Any]) -> None:
    for number, key in enumerate(keys):
        if key not in groups:
            raise InvalidValueError(
                f"sorted_bucket_keys[{number}]={key!r:.80} must be a key of bucket_groups; remove "
                "it, or add its bucket"
            )
    if len(set(keys)) < len(keys):
        twice = next(key for key in keys if keys.count(key) > 1)
        raise InvalidValueError(
            f"sorted_bucket_keys lists {twice!r:.80} twice, so its samples would come twice; list "
            "each bucket once"
        )
