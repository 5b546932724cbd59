"""Between a plan and a store: the position of a run, its processes and its batches.

`Position` is the place of one rank in a plan, `Loader` the protocol of everything that yields
batches, and `Peers` the processes of the run. `Feed` reads a store in the order of a plan,
`ChunkLoader` a matrix.
"""

from feedline.feed.blocks import BlocksAhead, picked_batches
from feedline.feed.chunk_loader import ChunkBatch, ChunkLoader
from feedline.feed.data_loader import DataLoader
from feedline.feed.data_plan import DataPlan
from feedline.feed.feed import FedBatch, Feed, FeedPass
from feedline.feed.foreign import ForeignLoader, as_loader
from feedline.feed.gathering import chunking_of, gather_samples
from feedline.feed.guard import GroupOptions, Guard, RankOptions
from feedline.feed.iterable_arrays import IterableArrays
from feedline.feed.iterable_loader import IterableLoader
from feedline.feed.loader import Delivered, Loader, PlannedBatch, PlannedLoader
from feedline.feed.logged import LoggedBatches, Recorder
from feedline.feed.passes import Batching, Pass
from feedline.feed.peers import Alone, FoundPeers, Peers, as_peers, register_finder
from feedline.feed.position import Position
from feedline.feed.reading import Reading, Slab, read_slabs
from feedline.feed.sample_rng import sample_rng
from feedline.feed.waits import Wait, WaitCounter
from feedline.feed.wrapper import LoaderWrapper

__all__ = [
    "Alone",
    "Batching",
    "BlocksAhead",
    "ChunkBatch",
    "ChunkLoader",
    "DataLoader",
    "DataPlan",
    "Delivered",
    "FedBatch",
    "Feed",
    "FeedPass",
    "ForeignLoader",
    "FoundPeers",
    "GroupOptions",
    "Guard",
    "IterableArrays",
    "IterableLoader",
    "Loader",
    "LoaderWrapper",
    "LoggedBatches",
    "Pass",
    "Peers",
    "PlannedBatch",
    "PlannedLoader",
    "Position",
    "RankOptions",
    "Reading",
    "Recorder",
    "Slab",
    "Wait",
    "WaitCounter",
    "as_loader",
    "as_peers",
    "chunking_of",
    "gather_samples",
    "picked_batches",
    "read_slabs",
    "register_finder",
    "sample_rng",
]
