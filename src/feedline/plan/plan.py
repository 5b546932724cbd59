"""Plans: what a run consumes, as a pure description.

A plan says what is left at the start of an epoch (`Remaining`). What is left can be dealt to any
number of ranks (`Deal`), and a deal knows what is left after any number of its batches. Folding the
history of an epoch through these two gives every resume and every resize:

    remaining = plan.begin(epoch)
    for past in history:
        remaining = remaining.deal(past.world_size, past.batch_size).after(past.num_batches)

Batches that were skipped are taken out of the deal first; see `skipping.py`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from feedline.errors import CursorFormatError, EmptyEpochError, InvalidValueError
from feedline.plan.cursor import Cursor, PastSegment
from feedline.plan.deals import Remaining
from feedline.plan.frozen import fingerprint_of
from feedline.plan.orders import EpochOrder
from feedline.plan.seeds import Seed
from feedline.plan.segment import Segment
from feedline.words import several

if TYPE_CHECKING:
    from feedline.plan.buckets import Bucket
    from feedline.plan.chunking import Chunking
    from feedline.plan.mixture import Mixture

ORDER_VERSION = 1


class Plan(ABC):
    """A pure description of what a run consumes; asking it never changes it.

    A plan answers questions about itself, so callers need not know its kind. `tail` is its tail
    policy. `chunks` describes its chunks, of which `preload` form a window. `buckets` are its
    buckets. Each is empty if the plan has none.
    """

    tail: str = ""
    chunks: Chunking | None = None
    preload: int = 1
    buckets: Sequence[Bucket] = ()

    def __repr__(self) -> str:
        return f"<{type(self).__name__}>"

    @abstractmethod
    def begin(self, epoch: int) -> Remaining:
        """Return the whole of `epoch`."""

    @abstractmethod
    def describe(self) -> dict[str, Any]:
        """Return everything that decides the order, as JSON values."""

    @property
    @abstractmethod
    def num_indices(self) -> int:
        """Indices are in `[0, num_indices)`."""

    @property
    def is_selection(self) -> bool:
        """Whether it selects samples, so that it may exclude some of the data."""
        return False

    @property
    def changes(self) -> tuple[Mapping[str, Any], ...]:
        """Changes made while running, as JSON values for the cursor."""
        return ()

    def with_changes(self, changes: tuple[Mapping[str, Any], ...]) -> Plan:
        """Return this plan with exactly these changes made while running."""
        if changes:
            raise CursorFormatError(
                f"the cursor has {several(len(changes), 'change')} of weights, but this plan has "
                "no weights; use the plan that saved it"
            )
        return self

    @property
    def weights_now(self) -> tuple[tuple[float, ...], float] | None:
        """The weights and the temperature as last changed; None without a mixture."""
        return None

    def reweighted(
        self, weights: Sequence[float], temperature: float, *, epoch: int, position: int
    ) -> Plan:
        """Return this plan with other weights from `position` of `epoch` on."""
        raise InvalidValueError(
            f"weights={weights!r:.80} cannot be used: this {type(self).__name__} has no weights; "
            "use SamplePlan(order=Mixture(...))"
        )

    def largest_batch(self, batch_size: int) -> int:
        """Return the maximum number of samples in a batch of one rank."""
        return batch_size

    def target_samples(self, world_size: int) -> int:
        """Return the maximum number of samples of a rank in an epoch."""
        return -(-self.num_indices // world_size)

    def bucket_batch_size(self, bucket: int, batch_size: int) -> int:
        """Return the number of samples in a batch of one bucket."""
        return batch_size

    @property
    def has_equal_batches(self) -> bool:
        """Whether all batches have the run's batch size, except for the tail."""
        return True

    @property
    def ignores_batch_size(self) -> bool:
        """Whether a rank's samples do not depend on the batch size."""
        return False

    @property
    def mixture(self) -> Mixture | None:
        """The mixture that the plan draws from."""
        return None

    @property
    def num_listed(self) -> int:
        """The number of entries in the caller's lists that the plan holds, 8 bytes each."""
        return getattr(self.chunks, "num_listed", 0)

    def epoch_order(self, epoch: int, bucket: int = 0) -> EpochOrder | None:
        """Return the order of an epoch, or of one of its buckets; None if there is none."""
        return None

    @property
    def main_seed(self) -> Seed:
        """The seed that the plan was given; 0 if it has none."""
        seed: Seed = getattr(self, "seed", 0)
        return seed

    @property
    def fields(self) -> dict[str, Any]:
        """Everything that decides the order, with the version of the algorithms."""
        return {"order_version": ORDER_VERSION, **self.describe()}

    @property
    def fingerprint(self) -> str:
        """A short string that changes when, and only when, the order may change."""
        return fingerprint_of(self.fields)

    def segment(self, *, world_size: int, batch_size: int, epoch: int = 0) -> Segment:
        """Return a fresh epoch dealt to `world_size` ranks.

        Examples:
            >>> from feedline.plan import SamplePlan, Shuffled
            >>> plan = SamplePlan(order=Shuffled(num_samples=10**12))
            >>> plan.segment(world_size=1000, batch_size=100).num_batches
            10000000
        """
        segment = Segment(plan=self, epoch=epoch, world_size=world_size, batch_size=batch_size)
        if segment.num_batches == 0:
            raise EmptyEpochError(
                f"num_batches=0 must be at least 1: {several(segment.num_left, 'sample')} cannot "
                f"fill a batch of batch_size={batch_size} on each of world_size={world_size} "
                "ranks; use a smaller batch size, fewer ranks, or tail='pad' or 'even'"
            )
        return segment

    def resume(self, cursor: Cursor, *, world_size: int, batch_size: int) -> Segment:
        """Return the segment that resumes from `cursor`, on any number of ranks."""
        if not isinstance(cursor, Cursor):
            raise CursorFormatError(
                f"cursor={cursor!r:.80} must be a Cursor; read it with Cursor.from_json or "
                "Cursor.from_dict"
            )
        cursor.check_fields(self.fields)
        plan = self.with_changes(cursor.changes)
        history = list(cursor.history)
        begun = PastSegment(world_size, batch_size, 0)
        if history and history[-1][:2] == (world_size, batch_size):
            begun = history.pop()
        return Segment(
            plan=plan,
            epoch=cursor.epoch,
            world_size=world_size,
            batch_size=batch_size,
            history=tuple(history),
            num_done=begun.num_batches,
            skipped=begun.skipped,
        )
