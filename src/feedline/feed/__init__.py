"""The corridor between a plan and a store: batches as arrays, read ahead, in the plan's order."""

from feedline.feed.audit import audit_logs
from feedline.feed.audit_result import AuditResult, EpochAudit, RunAudit, SourceAudit
from feedline.feed.blocks import BlocksAhead, picked_batches
from feedline.feed.chunk_loader import ChunkBatch, ChunkLoader
from feedline.feed.consumption_log import (
    ConsumptionLog,
    LogFile,
    LogHeader,
    iter_log,
    read_log,
    read_log_header,
)
from feedline.feed.data_plan import DataPlan
from feedline.feed.feed import FedBatch, Feed, FeedPass
from feedline.feed.gathering import chunking_of, gather_samples
from feedline.feed.id_trail import IdTrail, PlannedMarks, planned_ids
from feedline.feed.log_entries import LoggedBatch, LoggedEvent
from feedline.feed.logged import LoggedLoader
from feedline.feed.reading import Reading, Slab, read_slabs

__all__ = [
    "AuditResult",
    "BlocksAhead",
    "ChunkBatch",
    "ChunkLoader",
    "ConsumptionLog",
    "DataPlan",
    "EpochAudit",
    "FedBatch",
    "Feed",
    "FeedPass",
    "IdTrail",
    "LogFile",
    "LogHeader",
    "LoggedBatch",
    "LoggedEvent",
    "LoggedLoader",
    "PlannedMarks",
    "Reading",
    "RunAudit",
    "Slab",
    "SourceAudit",
    "audit_logs",
    "chunking_of",
    "gather_samples",
    "iter_log",
    "picked_batches",
    "planned_ids",
    "read_log",
    "read_log_header",
    "read_slabs",
]
