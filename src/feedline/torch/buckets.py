"""Batch samplers over buckets: by length, by token budget."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from numpy.typing import ArrayLike

from feedline.errors import InvalidValueError, check_flag, check_integer
from feedline.feed import Peers
from feedline.plan import BucketPlan, Replay
from feedline.torch.sampler import BatchPlanSampler


class BucketSampler(BatchPlanSampler):
    """A sampler that yields batches of one bucket each."""

    def _batch_at(self, batch_idx: int) -> tuple[int, int]:
        """Return the bucket and the size of batch `batch_idx` of the current epoch."""
        running = self.position.current
        segment = self.position.next_segment() if running is None else running.segment
        replay = Replay(
            plan=segment.plan,
            epoch=segment.epoch,
            world_size=segment.world_size,
            batch_size=segment.batch_size,
            history=segment.history,
            skipped=segment.skipped,
        )
        number = check_integer("batch_idx", batch_idx, 0, replay.num_batches - 1)
        # A batch of the past may have been dealt to fewer ranks than there are now.
        rank = min(self.rank, replay.world_size_at(number) - 1)
        batch = replay.batch(rank=rank, number=number)
        assert batch.bucket is not None
        return batch.bucket, len(batch.indices)


class BucketBatchSampler(BucketSampler):
    """Batches of samples of similar length, by count or by token budget.

    Args:
        lengths: The length of each sample.
        batch_size: The number of samples in a batch; use this or `token_budget`.
        token_budget: The number of tokens in a batch, with padding to the bucket's edge.
        edges: The largest length in each bucket; use this or `num_buckets`.
        num_buckets: The number of buckets, with quantiles of the lengths as edges.
        mode: `interleaved` mixes batches of all buckets; `sequential` finishes one bucket first.
        shuffle: Shuffle samples and buckets, in a new order in every epoch.
        tail: The tail policy of each bucket; see `feedline.plan.Share`.
        seed: Any integer or string.
        num_replicas: The number of ranks; by default that of the process group, else 1.
        rank: The rank of this process; by default that in the process group, else 0.
        process_group: The group of ranks that get different data, if not all.
        peers: The ranks, where no other argument says who they are.
        desync_guard: Compare the ranks before each pass, where they come from a process group.
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
        peers: Peers | str = "auto",
        desync_guard: bool = True,
        desync_timeout: float = 60.0,
    ) -> None:
        if (batch_size is None) == (token_budget is None):
            raise InvalidValueError(
                f"batch_size={batch_size} and token_budget={token_budget}: pass exactly one of them"
            )
        entry_size = batch_size if token_budget is None else token_budget
        name = "batch_size" if token_budget is None else "token_budget"
        plan = BucketPlan.from_lengths(
            lengths,
            edges=edges,
            num_buckets=num_buckets,
            batch_by="samples" if token_budget is None else "tokens",
            mode=mode,
            shuffle_buckets=check_flag("shuffle", shuffle),
            shuffle_within=shuffle,
            tail=tail,
            seed=seed,
        )
        super().__init__(
            plan,
            batch_size=check_integer(name, entry_size, 1),
            num_replicas=num_replicas,
            rank=rank,
            process_group=process_group,
            peers=peers,
            desync_guard=desync_guard,
            desync_timeout=desync_timeout,
        )
        self._keys = [bucket.key for bucket in plan.buckets]

    def get_batch_info(self, batch_idx: int) -> dict[str, Any]:
        """Return the bucket edge and the size of batch `batch_idx` of this epoch."""
        bucket, size = self._batch_at(batch_idx)
        return {"bucket_key": self._keys[bucket], "batch_size": size}
