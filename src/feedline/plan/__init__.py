"""The order algebra: which sample every rank sees at every step, as a pure function.

A plan describes an epoch. `plan.segment(...)` deals it to ranks, `segment.batch(rank, number)`
computes any batch, `segment.cursor(num_batches)` is a checkpoint, and `plan.resume(cursor, ...)`
resumes from it on any number of ranks.
"""

from feedline.plan.batches import Batch, Block, Place
from feedline.plan.bucket_deal import BatchRule, CostBatch, FixedBatch, TokenBatch
from feedline.plan.buckets import Bucket, BucketPlan
from feedline.plan.chunking import Chunking, EqualChunks, UnequalChunks
from feedline.plan.concatenated import Concatenated
from feedline.plan.cursor import Cursor, PastSegment
from feedline.plan.deals import Deal, Remaining
from feedline.plan.drawn import DrawnOrder
from feedline.plan.draws import Draws
from feedline.plan.file_shares import FILE_STRATEGIES, FileSharesPlan
from feedline.plan.mixture import Mixture
from feedline.plan.mixture_epoch import Phase
from feedline.plan.orders import EpochOrder, Order, Sequential, Shuffled, Subset
from feedline.plan.permutation import Permutation
from feedline.plan.plan import Plan
from feedline.plan.replay import Consumed, Replay, skipped_samples
from feedline.plan.samples import SamplePlan
from feedline.plan.seeds import derive_key
from feedline.plan.segment import Segment
from feedline.plan.shares import Share
from feedline.plan.weighted import Weighted
from feedline.plan.windows import RoundsPlan, WindowOrder, WindowPlan

__all__ = [
    "FILE_STRATEGIES",
    "Batch",
    "BatchRule",
    "Block",
    "Bucket",
    "BucketPlan",
    "Chunking",
    "Concatenated",
    "Consumed",
    "CostBatch",
    "Cursor",
    "Deal",
    "DrawnOrder",
    "Draws",
    "EpochOrder",
    "EqualChunks",
    "FileSharesPlan",
    "FixedBatch",
    "Mixture",
    "Order",
    "PastSegment",
    "Permutation",
    "Phase",
    "Place",
    "Plan",
    "Remaining",
    "Replay",
    "RoundsPlan",
    "SamplePlan",
    "Segment",
    "Sequential",
    "Share",
    "Shuffled",
    "Subset",
    "TokenBatch",
    "UnequalChunks",
    "Weighted",
    "WindowOrder",
    "WindowPlan",
    "derive_key",
    "skipped_samples",
]
