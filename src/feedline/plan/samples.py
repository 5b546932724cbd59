"""Plans over an order: what the run has consumed is always a prefix of the order."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from feedline.errors import InvalidValueError
from feedline.plan.deals import Remaining
from feedline.plan.mixture import Mixture
from feedline.plan.orders import EpochOrder, Order
from feedline.plan.plan import Plan
from feedline.plan.seeds import Seed
from feedline.plan.shares import PrefixRest, check_tail
from feedline.words import one_line


class OrderPlan(Plan):
    """An order and a tail policy; each kind deals the order in its own way."""

    order: Order
    kind: str

    @property
    def num_indices(self) -> int:
        return self.order.num_indices

    @property
    def is_selection(self) -> bool:
        return self.order.is_selection

    @property
    def main_seed(self) -> Seed:
        return self.order.main_seed

    def describe(self) -> dict[str, Any]:
        return {"kind": self.kind, "order": self.order.describe(), "tail": self.tail}

    @property
    def ignores_batch_size(self) -> bool:
        return True

    def epoch_order(self, epoch: int, bucket: int = 0) -> EpochOrder:
        return self.order.at(epoch)


@one_line
@dataclass(frozen=True, kw_only=True)
class SamplePlan(OrderPlan):
    """An order and a tail policy: batch k covers the next `world_size * batch_size` positions.

    Within a batch, rank r takes every `world_size`-th position from r on. So what has been consumed
    is always a prefix of the order, and a resize needs one number.

    Args:
        order: Which sample stands at which position.
        tail: What happens to the last positions, which do not fill a batch; see `Share`.

    Examples:
        >>> from feedline.plan import Sequential
        >>> plan = SamplePlan(order=Sequential(num_samples=10), tail="even")
        >>> segment = plan.segment(world_size=2, batch_size=3)
        >>> [batch.indices.tolist() for batch in segment.batches(rank=1)]
        [[1, 3, 5], [7, 9]]
    """

    order: Order
    tail: str = "drop"
    kind = "samples"

    def __post_init__(self) -> None:
        if not isinstance(self.order, Order):
            raise InvalidValueError(f"order={self.order!r} must be an Order, such as Shuffled")
        check_tail(self.tail)

    def begin(self, epoch: int) -> Remaining:
        return PrefixRest(self.order.at(epoch), self.tail)

    @property
    def changes(self) -> tuple[Mapping[str, Any], ...]:
        return () if self.mixture is None else self.mixture.changes_as_json()

    def with_changes(self, changes: tuple[Mapping[str, Any], ...]) -> Plan:
        if self.mixture is not None:
            return replace(self, order=self.mixture.with_changes(changes))
        return super().with_changes(changes)

    @property
    def mixture(self) -> Mixture | None:
        return self.order if isinstance(self.order, Mixture) else None

    @property
    def weights_now(self) -> tuple[tuple[float, ...], float] | None:
        return None if self.mixture is None else self.mixture.weights_now

    def reweighted(
        self, weights: Sequence[float], temperature: float, *, epoch: int, position: int
    ) -> Plan:
        place = {"epoch": epoch, "position": position}
        if self.mixture is None:
            return super().reweighted(weights, temperature, **place)
        changed = self.mixture.changed(weights, temperature=temperature, **place)
        return replace(self, order=changed)
