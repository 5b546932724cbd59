"""Where a rank is, in the words of a `repr`: nothing is opened or looked up to say it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from feedline.errors import FeedlineError
from feedline.words import several, shown

if TYPE_CHECKING:
    from feedline.feed.passes import Batching, Pass
    from feedline.feed.position import Position

_UNKNOWN = "ranks are found at first use"
# For all but the brackets.
_MOST_SIGNS = 194


def ranks_shown(peers: Any) -> str:
    """Return which rank this is, if that is known without a look at a process group.

    Examples:
        >>> from feedline.feed.peers import Alone, FoundPeers
        >>> ranks_shown(Alone()), ranks_shown(FoundPeers())
        ('rank 0 of 1', 'ranks are found at first use')
    """
    if peers is None or not getattr(peers, "is_known", True):
        return _UNKNOWN
    try:
        return f"rank {peers.rank} of {peers.world_size}"
    except Exception:
        # The process group has ended, or is not there yet.
        return _UNKNOWN


def pass_shown(running: Pass, unit: str = "batch") -> str:
    """Return which rank walks through which epoch, and how far it is."""
    segment = running.segment
    return (
        f"rank {running.rank} of {segment.world_size}, epoch {segment.epoch}, "
        f"{unit} {running.num_delivered:,} of {running.num_batches:,}"
    )


def position_shown(position: Position, batching: Batching, unit: str = "batch") -> str:
    """Return the rank, the epoch and the batch, or another unit, that a position is at."""
    if position.current is not None:
        return pass_shown(position.current, unit)
    where = f"{ranks_shown(position.peers)}, epoch {position.epoch}"
    if position.is_loaded:
        return f"{where}, resumes from a state"
    if ranks_shown(position.peers) == _UNKNOWN:
        return where
    try:
        num_batches = position.num_batches(batching)
    except (FeedlineError, AssertionError):
        # A plan that is not known yet, or one that has no batch for so many ranks.
        return where
    return f"{where}, {unit} 0 of {num_batches:,}"


def loader_shown(loader: Any, position: Position | None, batching: Batching, data: str = "") -> str:
    """Return the `repr` of what yields batches: its data, plan, batch size and place."""
    name = type(loader).__name__ + (f" of {data}" if data else "")
    if position is None:
        return f"<{name}>"
    size = position.batch_size * batching.num_entries
    plan = position.known_plan
    is_equal = plan is None or plan.has_equal_batches
    batches = f"batches of {several(size, 'sample')}" if is_equal else f"batch size {size:,}"
    return _in_brackets(name, plan, f"{batches}; {position_shown(position, batching)}")


def samples_shown(sampler: Any, position: Position, batching: Batching) -> str:
    """Return the `repr` of what yields one sample at a time."""
    place = position_shown(position, batching, "sample")
    return _in_brackets(type(sampler).__name__, position.known_plan, place)


def _in_brackets(name: str, plan: Any, end: str) -> str:
    if plan is None:
        return f"<{name}: {end}>"
    room = max(30, _MOST_SIGNS - len(name) - len(end))
    return f"<{name}: {shown(getattr(plan, 'plan', plan), room)}, {end}>"
