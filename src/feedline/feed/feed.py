"""A feed: a plan and a store, joined to batches that never lose their place."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from feedline.errors import CursorFormatError, InvalidValueError, check_integer
from feedline.feed.data_plan import DataPlan
from feedline.feed.gathering import chunking_of
from feedline.feed.id_trail import IdTrail, planned_ids
from feedline.feed.reading import DEFAULT_BUDGET, DEFAULT_THREADS, Reading, Slab, Slabs, read_slabs
from feedline.plan import Cursor, Plan, Segment
from feedline.store import Store
from feedline.store.columns import Arrays

__all__ = ["FedBatch", "Feed", "FeedPass"]


class FedBatch(NamedTuple):
    """What one rank gets for one forward pass, as arrays.

    `indices` are the samples' numbers in the store. `is_real` is False where a sample is padding.
    """

    arrays: Arrays
    indices: NDArray[np.int64]
    is_real: NDArray[np.bool_]
    number: int
    bucket: int | None = None


class Feed:
    """The batches of one rank, read from a store in the order of a plan.

    The state counts the batches that were handed out, however far threads have read ahead, and
    loads on any number of ranks and with any batch size. When a pass has ended, the next one is the
    next epoch; a pass that was broken off is begun again.

    The arrays of a batch may share memory with those of batches near it. Copy what is kept for
    long: a batch that is held keeps its neighbours' memory.

    Args:
        store: Where the samples are.
        plan: Which sample comes when; a `WindowPlan` reads few chunks at a time.
        batch_size: The number of samples of a batch.
        world_size: The number of ranks.
        rank: The rank that these batches are for.
        num_threads: How many threads read ahead; 0 reads in the consumer's own thread.
        memory_budget: How many bytes the batches that are read ahead or in use may take.

    Examples:
        >>> import tempfile
        >>> from feedline.plan import SamplePlan, Shuffled
        >>> from feedline.store import FolderStore, pack
        >>> folder = tempfile.TemporaryDirectory()
        >>> _ = pack({"x": np.arange(100)}, f"{folder.name}/data")
        >>> store = FolderStore(f"{folder.name}/data")
        >>> plan = SamplePlan(order=Shuffled(num_samples=store.num_samples))
        >>> with Feed(store, plan, batch_size=10) as feed:
        ...     seen = [int(x) for batch in feed for x in batch.arrays["x"]]
        >>> sorted(seen) == list(range(100))
        True
        >>> folder.cleanup()
    """

    def __init__(
        self,
        store: Store,
        plan: Plan,
        *,
        batch_size: int,
        world_size: int = 1,
        rank: int = 0,
        num_threads: int = DEFAULT_THREADS,
        memory_budget: int = DEFAULT_BUDGET,
    ) -> None:
        self.store = store
        self.plan = DataPlan(plan=plan, store=store)
        self.batch_size = check_integer("batch_size", batch_size, 1)
        self.world_size = check_integer("world_size", world_size, 1)
        self.rank = check_integer("rank", rank, 0, self.world_size - 1)
        self._reading = Reading(num_threads=num_threads, memory_budget=memory_budget)
        self._chunking = chunking_of(store)
        self._epoch = 0
        self._loaded: Cursor | None = None
        self._delivered: _Delivered | None = None
        #: Whether batches are compared with the plan as they are handed out.
        self.tracks_ids = False

    @property
    def epoch(self) -> int:
        """The epoch that this feed is in; it stays there until the next pass begins."""
        return self._epoch

    def set_epoch(self, epoch: int) -> None:
        """Go to the beginning of `epoch`; the epoch that the feed is in is not restarted."""
        epoch = check_integer("epoch", epoch, 0)
        if epoch != self._epoch:
            self._epoch = epoch
            self._loaded = self._delivered = None

    def __len__(self) -> int:
        """The number of batches of the whole epoch, on every rank alike."""
        segment = self._current_segment()
        return sum(past.num_batches for past in segment.history) + segment.num_batches

    def num_batches_left(self) -> int:
        """Return how many batches the next pass has."""
        segment = self._segment()
        return segment.num_batches - segment.num_done or len(self)

    def agrees_with_plan(self) -> bool:
        """Return whether the batches of this pass were those of the plan; see `tracks_ids`."""
        delivered = self._delivered
        return delivered is None or delivered.trail is None or delivered.trail.agrees

    def latest_ids(self) -> NDArray[np.int64]:
        """Return the samples of the batch that was handed out last."""
        return self._latest().indices

    def latest_is_real(self) -> NDArray[np.bool_] | None:
        """Return which samples of that batch are no padding; `None` means all."""
        return self._latest().is_real

    def _latest(self) -> _Latest:
        if self._delivered is None or self._delivered.latest is None:
            raise InvalidValueError(
                "this pass has handed out 0 batches and must have handed out one; ask after it"
            )
        return self._delivered.latest

    def __iter__(self) -> FeedPass:
        delivered = self._delivered
        if delivered is not None and delivered.has_ended:
            self.set_epoch(self._epoch + 1)
        segment = self._segment()
        if self._loaded is not None and segment.num_done == segment.num_batches:
            self.set_epoch(self._epoch + 1)
            segment = self._segment()
        self._loaded = None
        self._delivered = _Delivered(segment)
        if self.tracks_ids:
            self._delivered.trail = IdTrail(planned_ids(segment, self.rank, segment.num_done, 1))
        slabs = read_slabs(
            self.store, self._chunking, segment, self.rank, segment.num_done, self._reading
        )
        return FeedPass(slabs, self._delivered, self.store)

    def state_dict(self) -> dict[str, Any]:
        """Return where the consumer is; save it on any rank, load it on any number of them."""
        return self.state_before(0)

    def state_before(self, num_batches: int) -> dict[str, Any]:
        """Return where the consumer was before the latest batches that were handed out."""
        if self._delivered is not None:
            segment, reached = self._delivered.segment, self._delivered.num_batches
            most = reached - segment.num_done
            cursor = segment.cursor(reached - check_integer("num_batches", num_batches, 0, most))
        elif self._loaded is not None:
            cursor = self._loaded
        else:
            cursor = Cursor(fields=self.plan.fields, epoch=self._epoch, changes=self.plan.changes)
        return {"epoch": cursor.epoch, "cursor": cursor.to_dict()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on where a state was saved. An error leaves the feed as it was."""
        if not isinstance(state, Mapping) or "cursor" not in state:
            raise CursorFormatError(
                f"state={state!r:.80} must be a mapping with the key 'cursor'; pass what "
                "state_dict() returned"
            )
        cursor = Cursor.from_dict(state["cursor"])
        self.plan.resume(cursor, world_size=self.world_size, batch_size=self.batch_size)
        self._epoch = cursor.epoch
        self._loaded = cursor
        self._delivered = None

    def close(self) -> None:
        """Let go of the store's open files."""
        self.store.close()

    def __enter__(self) -> Feed:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _segment(self) -> Segment:
        sizes = {"world_size": self.world_size, "batch_size": self.batch_size}
        if self._loaded is not None:
            return self.plan.resume(self._loaded, **sizes)
        return self.plan.segment(epoch=self._epoch, **sizes)

    def _current_segment(self) -> Segment:
        return self._segment() if self._delivered is None else self._delivered.segment


class _Latest(NamedTuple):
    """Of a batch, what is small enough to keep."""

    indices: NDArray[np.int64]
    is_real: NDArray[np.bool_]


class _Delivered:
    """How far a pass has come. The feed holds this and not the pass: dropping that must end it."""

    def __init__(self, segment: Segment) -> None:
        self.segment = segment
        self.num_batches = segment.num_done
        self.trail: IdTrail | None = None
        self.latest: _Latest | None = None

    @property
    def has_ended(self) -> bool:
        return self.num_batches == self.segment.num_batches


class FeedPass(Iterator[FedBatch]):
    """One walk through the batches. Dropping it, or `close`, ends its threads."""

    def __init__(self, slabs: Slabs, delivered: _Delivered, store: Store) -> None:
        self._slabs = slabs
        self._delivered = delivered
        self._store = store
        self._num_slabs = 0
        self._batches: Iterator[FedBatch] = iter(())

    def __next__(self) -> FedBatch:
        batch = next(self._batches, None)
        if batch is None:
            if self._num_slabs == 1:
                # Known from now on, so that a state can be saved even when a file is lost.
                _ = self._store.fingerprint
            self._batches = _batches_of(next(self._slabs))
            self._num_slabs += 1
            batch = next(self._batches)
        self._delivered.num_batches = batch.number + 1
        self._delivered.latest = _Latest(batch.indices, batch.is_real)
        if self._delivered.trail is not None:
            self._delivered.trail.deliver(batch.indices)
        return batch

    def close(self) -> None:
        """End the threads that read ahead."""
        self._batches = iter(())
        self._slabs.close()


def _batches_of(slab: Slab) -> Iterator[FedBatch]:
    edges = pairwise(slab.block.bounds.tolist())
    for batch, (first, end) in zip(slab.block, edges, strict=True):
        arrays = {name: array[first:end] for name, array in slab.arrays.items()}
        yield FedBatch(arrays, batch.indices, batch.is_real, batch.number, batch.bucket)
