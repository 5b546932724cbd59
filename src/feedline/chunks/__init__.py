"""Chunk samplers: which rows to read together, and how to cut them into batches.

A sampler turns a number of rows into load requests; any loader that understands these can use it.
"""

from feedline.chunks.chunk_samplers import ClassSampler, RandomSampler, SequentialSampler
from feedline.chunks.distributed import DistributedSampler
from feedline.chunks.sampler import LoadRequest, Sampler

__all__ = [
    "ClassSampler",
    "DistributedSampler",
    "LoadRequest",
    "RandomSampler",
    "Sampler",
    "SequentialSampler",
]
