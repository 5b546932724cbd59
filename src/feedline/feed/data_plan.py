"""A plan together with its data, so that a cursor fits only that data."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

from feedline.errors import InvalidValueError, PlanMismatchError
from feedline.feed.delegation import asked_of
from feedline.plan import Cursor, Plan, Segment
from feedline.store import PartedStore, Store
from feedline.store.matrix import MatrixStore
from feedline.words import shown


@dataclass(frozen=True, kw_only=True, repr=False)
class DataPlan(Plan):
    """The order of `plan`, bound to the samples of `store` or the rows of a matrix.

    The fingerprint of the data is part of the description, so a cursor that was saved for other
    data is refused. It is looked up when a cursor is made or loaded, not before.

    With `takes_any`, a cursor that names no data is left to `plan`: a chunk sampler alone, which
    does not know what is read, saved it.

    Args:
        plan: Which sample comes when.
        store: The data.
        takes_any: Whether a cursor that names no data is left to `plan`.
    """

    plan: Plan
    store: Store | MatrixStore
    takes_any: bool = False

    def __post_init__(self) -> None:
        if not isinstance(self.plan, Plan):
            raise InvalidValueError(f"plan={self.plan!r:.80} must be a Plan, such as WindowPlan")
        # Not isinstance: asking for a protocol looks at properties, and these open files.
        if callable(getattr(type(self.store), "read", None)):
            num_samples = int(cast(Store, self.store).num_samples)
        elif callable(getattr(type(self.store), "fetch", None)):
            num_samples = int(cast(MatrixStore, self.store).shape[0])
        else:
            raise InvalidValueError(f"store={self.store!r:.80} must be a Store or a MatrixStore")
        if self.plan.num_indices > num_samples:
            raise InvalidValueError(
                f"plan.num_indices={self.plan.num_indices} must be at most {num_samples}, the "
                "number of samples in the store; make the plan for this store"
            )

    def __repr__(self) -> str:
        # Not the store's own: that may open files.
        return f"DataPlan(plan={shown(self.plan, 130)}, store={type(self.store).__name__})"

    # What does not depend on the data is the plan's to answer.
    num_indices = asked_of("plan", "num_indices")
    is_selection = asked_of("plan", "is_selection")
    begin = asked_of("plan", "begin")
    epoch_order = asked_of("plan", "epoch_order")
    tail = asked_of("plan", "tail")
    chunks = asked_of("plan", "chunks")
    preload = asked_of("plan", "preload")
    buckets = asked_of("plan", "buckets")
    largest_batch = asked_of("plan", "largest_batch")
    bucket_batch_size = asked_of("plan", "bucket_batch_size")
    target_samples = asked_of("plan", "target_samples")
    has_equal_batches = asked_of("plan", "has_equal_batches")
    ignores_batch_size = asked_of("plan", "ignores_batch_size")
    mixture = asked_of("plan", "mixture")
    num_listed = asked_of("plan", "num_listed")
    changes = asked_of("plan", "changes")
    weights_now = asked_of("plan", "weights_now")
    main_seed = asked_of("plan", "main_seed")

    def describe(self) -> dict[str, Any]:
        return {"kind": "data", "data": self._describe_data(), "plan": self.plan.describe()}

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
                    f"start a new run without the cursor{self._hint(saved)}",
                    {"data": (saved, current)},
                )
        elif self.takes_any:
            segment = self.plan.resume(cursor, world_size=world_size, batch_size=batch_size)
            return replace(segment, plan=replace(self, plan=segment.plan))
        return super().resume(cursor, world_size=world_size, batch_size=batch_size)

    def _describe_data(self) -> dict[str, Any]:
        parted = self._parted
        parts = {} if parted is None else {"parts": list(parted.part_digests)}
        return {"fingerprint": self.store.fingerprint, **parts}

    @property
    def _parted(self) -> PartedStore | None:
        has_parts = hasattr(type(self.store), "part_digests")
        return cast(PartedStore, self.store) if has_parts else None

    def _hint(self, saved: Mapping[str, Any]) -> str:
        before, now = saved.get("parts"), self._parted.part_digests if self._parted else ()
        if not isinstance(before, list) or set(map(str, before)) & set(now):
            return ""
        # What tells data apart on a disk is not what tells it apart at a URL.
        return (
            ". If it is a copy: data on a disk and the same data at a URL count as different, so "
            "resume from where it was"
        )

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
        return f"{listed or 'the data'}{more} {'have' if len(changed) > 1 else 'has'}"
