"""Torch samplers, datasets and a loader that never lose their place.

Needs the extra `feedline[torch]`.
"""

try:
    import torch as _torch  # noqa: F401
except ModuleNotFoundError as error:
    if error.name != "torch":
        raise
    raise ModuleNotFoundError(
        "feedline.torch needs torch, which is not installed; install feedline[torch]", name="torch"
    ) from None

from feedline.torch.buckets import BucketBatchSampler, SequentialBucketSampler
from feedline.torch.calculator import BucketCalculator
from feedline.torch.chunk_loader import ChunkLoader, ChunkTensors
from feedline.torch.distributed import DistributedSampler
from feedline.torch.folder_config import FolderConfig
from feedline.torch.lazy_folder import LazyFolderDataset, SequifierDatasetFromFolderLazy
from feedline.torch.loader import DataLoader
from feedline.torch.mixture import MixtureSampler
from feedline.torch.mixture_dataset import MixtureDataset
from feedline.torch.multiresolution import MultiresolutionDataset
from feedline.torch.peers import Peers
from feedline.torch.shield import shield_worker
from feedline.torch.step_scheduler import StepScheduler, StepSchedulerConfig, TorchPeers

__all__ = [
    "BucketBatchSampler",
    "BucketCalculator",
    "ChunkLoader",
    "ChunkTensors",
    "DataLoader",
    "DistributedSampler",
    "FolderConfig",
    "LazyFolderDataset",
    "MixtureDataset",
    "MixtureSampler",
    "MultiresolutionDataset",
    "Peers",
    "SequentialBucketSampler",
    "SequifierDatasetFromFolderLazy",
    "StepScheduler",
    "StepSchedulerConfig",
    "TorchPeers",
    "shield_worker",
]
