"""A plan together with the data that it was made for, so that a cursor fits only that data."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

from feedline.errors import InvalidValueError, PlanMismatchError
from feedline.plan import Cursor, EpochOrder, Mixture, Plan, Remaining, Segment
from feedline.plan.frozen import store
from feedline.store import PartedStore, Store
from feedline.store.matrix import MatrixStore


@dataclass(frozen=True, kw_only=True)
class DataPlan(Plan):
    """What `plan` says, for the samples of `store`, or the rows of a matrix, alone.

    The fingerprint of the data is part of the description, so a cursor that was saved for other
    data is refused. It is looked up when a cursor is made or loaded, not before.

    With `takes_any`, a cursor that names no data is left to `plan`: a chunk sampler alone, which
    does not know what is read, saved it.
    """

    plan: Plan
    store: Store | MatrixStore
    takes_any: bool = False

    def __post_init__(self) -> None:
        if not isinstance(self.plan, Plan):
            raise InvalidValueError(f"plan={self.plan!r:.80} must be a Plan, such as WindowPlan")
        num_samples = _num_samples(self.store)
        if self.plan.num_indices > num_samples:
            raise InvalidValueError(
                f"plan.num_indices={self.plan.num_indices} must be at most the store's number of "
                f"samples, {num_samples}; make the plan for this store"
            )
        inner = self.plan
        answers = {"tail": inner.tail, "chunks": inner.chunks, "buckets": inner.buckets}
        store(self, **answers, preload=inner.preload)

    @property
    def num_indices(self) -> int:
        return self.plan.num_indices

    def begin(self, epoch: int) -> Remaining:
        return self.plan.begin(epoch)

    def largest_batch(self, batch_size: int) -> int:
        return self.plan.largest_batch(batch_size)

    def bucket_batch_size(self, bucket: int, batch_size: int) -> int:
        return self.plan.bucket_batch_size(bucket, batch_size)

    @property
    def has_equal_batches(self) -> bool:
        return self.plan.has_equal_batches

    @property
    def ignores_batch_size(self) -> bool:
        return self.plan.ignores_batch_size

    @property
    def mixture(self) -> Mixture | None:
        return self.plan.mixture

    @property
    def num_listed(self) -> int:
        return self.plan.num_listed

    def epoch_order(self, epoch: int, bucket: int = 0) -> EpochOrder | None:
        return self.plan.epoch_order(epoch, bucket)

    def describe(self) -> dict[str, Any]:
        return {"kind": "data", "data": self._describe_data(), "plan": self.plan.describe()}

    @property
    def changes(self) -> tuple[Mapping[str, Any], ...]:
        return self.plan.changes

    @property
    def weights_now(self) -> tuple[tuple[float, ...], float] | None:
        return self.plan.weights_now

    def reweighted(
        self, weights: Sequence[float], temperature: float, *, epoch: int, position: int
    ) -> Plan:
        changed = self.plan.reweighted(weights, temperature, epoch=epoch, position=position)
        return replace(self, plan=changed)

    def with_changes(self, changes: tuple[Mapping[str, Any], ...]) -> Plan:
        changed = self.plan.with_changes(changes)
        return self if changed is self.plan else replace(self, plan=changed)

    def resume(self, cursor: Cursor, *, world_size: int, batch_size: int) -> Segment:
        saved = cursor.fields.get("data") if isinstance(cursor, Cursor) else None
        if isinstance(saved, Mapping):
            current = self._describe_data()
            if saved != current:
                raise PlanMismatchError(
                    f"{self._changed(saved)} changed since the cursor was saved; restore it, or "
                    "start a new run without the cursor",
                    {"data": (saved, current)},
                )
        elif self.takes_any:
            segment = self.plan.resume(cursor, world_size=world_size, batch_size=batch_size)
            return replace(segment, plan=replace(self, plan=segment.plan))
        return super().resume(cursor, world_size=world_size, batch_size=batch_size)

    def _describe_data(self) -> dict[str, Any]:
        described: dict[str, Any] = {"fingerprint": self.store.fingerprint}
        if self._parted is not None:
            described["parts"] = list(self._parted.part_digests)
        return described

    @property
    def _parted(self) -> PartedStore | None:
        has_parts = hasattr(type(self.store), "part_digests")
        return cast(PartedStore, self.store) if has_parts else None

    def _changed(self, saved: Mapping[str, Any]) -> str:
        before = saved.get("parts")
        if self._parted is None or not isinstance(before, list):
            return "the data has"
        now = self._parted.part_digests
        if len(before) != len(now):
            return "the number of files has"
        changed = [number for number, digest in enumerate(now) if digest != before[number]]
        listed = ", ".join(self._parted.describe_part(number) for number in changed[:8])
        more = f" and {len(changed) - 8} more" if len(changed) > 8 else ""
        return f"{listed or 'the data'}{more} has"


def _num_samples(store: Any) -> int:
    """Return how many samples a store or rows a matrix has, or raise if it is neither."""
    # Not isinstance: asking for a protocol looks at properties, and these open files.
    if callable(getattr(type(store), "read", None)):
        return int(store.num_samples)
    if callable(getattr(type(store), "fetch", None)):
        return int(store.shape[0])
    raise InvalidValueError(f"store={store!r:.80} must be a Store or a MatrixStore")
