"""Torch samplers, datasets and a loader that never lose their place.

Needs the extra `feedline[torch]`.
"""

from feedline.torch.buckets import BucketBatchSampler, SequentialBucketSampler
from feedline.torch.calculator import BucketCalculator
from feedline.torch.distributed import DistributedSampler
from feedline.torch.loader import DataLoader
from feedline.torch.mixture import MixtureSampler
from feedline.torch.mixture_dataset import MixtureDataset
from feedline.torch.multiresolution import MultiresolutionDataset
from feedline.torch.peers import Peers

__all__ = [
    "BucketBatchSampler",
    "BucketCalculator",
    "DataLoader",
    "DistributedSampler",
    "MixtureDataset",
    "MixtureSampler",
    "MultiresolutionDataset",
    "Peers",
    "SequentialBucketSampler",
]
