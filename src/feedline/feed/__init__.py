"""The corridor between a plan and a store: batches as arrays, read ahead, in the plan's order."""

from feedline.feed.blocks import BlocksAhead, picked_batches
from feedline.feed.chunk_loader import ChunkBatch, ChunkLoader
from feedline.feed.data_plan import DataPlan
from feedline.feed.feed import FedBatch, Feed, FeedPass
from feedline.feed.gathering import chunking_of, gather_samples
from feedline.feed.id_trail import IdTrail, PlannedMarks, planned_ids
from feedline.feed.reading import Reading, Slab, read_slabs

__all__ = [
    "BlocksAhead",
    "ChunkBatch",
    "ChunkLoader",
    "DataPlan",
    "FedBatch",
    "Feed",
    "FeedPass",
    "IdTrail",
    "PlannedMarks",
    "Reading",
    "Slab",
    "chunking_of",
    "gather_samples",
    "picked_batches",
    "planned_ids",
    "read_slabs",
]
