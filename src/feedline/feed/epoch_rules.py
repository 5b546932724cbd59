"""When an epoch has batches, when it is finished, and which of them may be skipped."""

from __future__ import annotations

from dataclasses import replace

from feedline.errors import EmptyEpochError, InvalidValueError, check_integer
from feedline.feed.passes import Batching
from feedline.plan import Cursor, Segment
from feedline.words import several


def num_batches_of(segment: Segment, batching: Batching) -> int:
    """Return the number of batches in a whole epoch, or raise if it is 0.

    Args:
        segment: The epoch.
        batching: How entries make batches.
    """
    num_batches = batching.num_batches(segment.num_batches)
    if num_batches == 0:
        raise EmptyEpochError(
            f"num_batches=0 must be at least 1: {several(segment.num_batches, 'sample')} per rank, "
            f"with world_size={segment.world_size}, cannot fill a batch of {batching.num_entries}, "
            "and drop_last=True drops the rest; use a smaller batch size or drop_last=False"
        )
    return num_batches


def is_finished(segment: Segment, cursor: Cursor) -> bool:
    """Return whether a cursor was saved after the last batch of its epoch.

    Args:
        segment: What the cursor resumes.
        cursor: The cursor.
    """
    if not cursor.history:
        return False
    *before, last = cursor.history
    then = Segment(
        plan=segment.plan,
        epoch=cursor.epoch,
        history=tuple(before),
        world_size=last.world_size,
        batch_size=last.batch_size,
        skipped=last.skipped,
    )
    return then.num_batches == last.num_batches


def cursor_without(
    segment: Segment, num_done: int, num_batches: int, after: int, batching: Batching
) -> Cursor:
    """Return the cursor of a run that skips batches, or raise if its epoch has too few.

    Args:
        segment: What the run consumes now.
        num_done: How many entries of it are behind the run.
        num_batches: How many batches each rank skips.
        after: How many batches come before these.
        batching: How entries make batches.
    """
    num_batches = check_integer("num_batches", num_batches, 1)
    after = check_integer("after", after, 0)
    left = batching.num_batches(segment.num_batches - num_done)
    if after + num_batches > left:
        raise InvalidValueError(_explain(num_batches, after, left, segment.epoch))
    first, end = (
        min(num_done + count * batching.num_entries, segment.num_batches)
        for count in (after, after + num_batches)
    )
    cursor = segment.skipping(num_done, first, end).cursor(num_done)
    return replace(cursor, has_ended=num_batches == left)


def _explain(num_batches: int, after: int, left: int, epoch: int) -> str:
    behind = f" after {several(after, 'batch', 'batches')}" if after else ""
    fitting = max(left - after, 0)
    parts = f"skip {fitting} here, and the others" if fitting else "skip them"
    return (
        f"num_batches={num_batches}{behind} must be at most {fitting}, because epoch {epoch} has "
        f"{several(left, 'batch', 'batches')} left; {parts} when epoch {epoch + 1} has begun"
    )
