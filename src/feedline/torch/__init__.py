"""Torch samplers, datasets and a loader, all resumable at any batch.

Needs the extra `feedline[torch]`.
"""

from typing import TYPE_CHECKING

try:
    import torch as _torch  # noqa: F401
except ModuleNotFoundError as error:
    if error.name != "torch":
        raise
    raise ModuleNotFoundError(
        "feedline.torch needs torch, which is not installed; install feedline[torch]", name="torch"
    ) from None

from feedline.feed import FoundPeers as Peers
from feedline.lazy import moved
from feedline.steps import StepScheduler, StepSchedulerConfig
from feedline.torch.buckets import BucketBatchSampler
from feedline.torch.calculator import BucketCalculator
from feedline.torch.chunk_loader import ChunkLoader, ChunkTensors
from feedline.torch.device.on_device import OnDevice, to_device
from feedline.torch.feed_dataset import FeedDataset
from feedline.torch.iterable_loader import IterableLoader
from feedline.torch.loader import DataLoader
from feedline.torch.mixture_dataset import MixtureDataset
from feedline.torch.multiresolution import MultiresolutionDataset
from feedline.torch.peers import TorchPeers
from feedline.torch.sampler import BatchPlanSampler, PlanSampler, SampleSampler
from feedline.torch.shield import shield_worker

if TYPE_CHECKING:
    from feedline.compat.bucket_sampler import SequentialBucketSampler
    from feedline.compat.distributed_sampler import DistributedSampler
    from feedline.compat.lazy_folder import (
        FolderConfig,
        LazyFolderDataset,
        SequifierDatasetFromFolderLazy,
    )
    from feedline.compat.mixture_sampler import MixtureSampler

# The names of other systems, which stand on top of this room.
_MOVED = {
    "DistributedSampler": "feedline.compat.distributed_sampler",
    "FolderConfig": "feedline.compat.lazy_folder",
    "LazyFolderDataset": "feedline.compat.lazy_folder",
    "MixtureSampler": "feedline.compat.mixture_sampler",
    "SequentialBucketSampler": "feedline.compat.bucket_sampler",
    "SequifierDatasetFromFolderLazy": "feedline.compat.lazy_folder",
}
__getattr__ = moved(__name__, _MOVED)

__all__ = [
    "BatchPlanSampler",
    "BucketBatchSampler",
    "BucketCalculator",
    "ChunkLoader",
    "ChunkTensors",
    "DataLoader",
    "DistributedSampler",
    "FeedDataset",
    "FolderConfig",
    "IterableLoader",
    "LazyFolderDataset",
    "MixtureDataset",
    "MixtureSampler",
    "MultiresolutionDataset",
    "OnDevice",
    "Peers",
    "PlanSampler",
    "SampleSampler",
    "SequentialBucketSampler",
    "SequifierDatasetFromFolderLazy",
    "StepScheduler",
    "StepSchedulerConfig",
    "TorchPeers",
    "shield_worker",
    "to_device",
]
