"""A flag is True or False: a text such as "no", from a config, would count as true."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import feedline
from bucket_data import BucketData
from feedline import chunks
from feedline.errors import InvalidValueError
from feedline.plan import FileSharesPlan, WindowOrder
from feedline.steps import Alone, StepScheduler
from feedline.torch import (
    BucketBatchSampler,
    DistributedSampler,
    FolderConfig,
    LazyFolderDataset,
    MixtureSampler,
    SequentialBucketSampler,
)
from lazy_data import write_folder

EQUAL = feedline.EqualChunks(num_samples=8, chunk_size=2)
BUCKETS = [feedline.Bucket("a", range(8))]


def chunk_ranks(**flags: Any) -> chunks.DistributedSampler:
    inner = chunks.RandomSampler(2, 2, 2)
    return chunks.DistributedSampler(inner, dist_info=lambda: (0, 2), **flags)


def clock(**flags: Any) -> StepScheduler:
    loader = [[1, 2]] * 4
    given: dict[str, Any] = {"num_epochs": 1, "preemption_signal": None, "peers": Alone()}
    return StepScheduler(2, 2, 1, loader, **given, **flags)


TAKERS: list[tuple[Callable[..., Any], list[str]]] = [
    (lambda **flags: DistributedSampler(range(8), 1, 0, **flags), ["shuffle", "drop_last"]),
    (lambda **flags: MixtureSampler([0, 4, 8], [1, 1], 1, 0, **flags), ["shuffle", "drop_last"]),
    (
        lambda **flags: SequentialBucketSampler(
            BucketData([8]), 2, num_replicas=1, rank=0, **flags
        ),
        ["drop_last", "shuffle_buckets", "shuffle_within_bucket", "dynamic_batch_size"],
    ),
    (
        lambda **flags: BucketBatchSampler([1, 2], batch_size=1, num_buckets=1, **flags),
        ["shuffle"],
    ),
    (lambda **flags: chunks.SequentialSampler(2, 2, 2, **flags), ["drop_last"]),
    (lambda **flags: chunks.RandomSampler(2, 2, 2, **flags), ["drop_last", "replacement"]),
    (chunk_ranks, ["enforce_equal_batches"]),
    (clock, ["save_checkpoint_every_epoch", "validate_on_checkpoint"]),
    (lambda **flags: feedline.Mixture(sizes=[8], weights=[1], **flags), ["shuffle"]),
    (lambda **flags: feedline.WindowPlan(chunks=EQUAL, **flags), ["shuffle"]),
    (lambda **flags: WindowOrder(chunks=EQUAL, **flags), ["shuffle"]),
    (lambda **flags: FileSharesPlan(sizes=[8], strategy="exact", **flags), ["shuffle"]),
    (
        lambda **flags: feedline.BucketPlan(buckets=BUCKETS, **flags),
        ["shuffle_buckets", "shuffle_within"],
    ),
    (lambda **flags: feedline.Weighted([1, 1], **flags), ["replacement"]),
]
CASES = [(take, name) for take, names in TAKERS for name in names]


@pytest.mark.parametrize(("take", "name"), CASES)
def test_a_text_is_not_a_flag(take: Callable[..., Any], name: str) -> None:
    for flag in (True, False, np.True_):
        take(**{name: flag})
    with pytest.raises(InvalidValueError, match=rf"^{name}='no' must be True or False$"):
        take(**{name: "no"})


def test_a_text_is_not_a_flag_of_a_folder(tmp_path: Path) -> None:
    write_folder(tmp_path / "data", [5], "npy")
    shuffle: Any = "no"
    with pytest.raises(InvalidValueError, match=r"^shuffle='no' must be True or False$"):
        LazyFolderDataset(tmp_path / "data", FolderConfig(batch_size=2), shuffle)
