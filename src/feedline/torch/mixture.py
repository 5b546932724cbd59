"""A mixture sampler that begins anywhere, with weights that may change on the way."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

from feedline.errors import InvalidValueError, check_choice, check_integer
from feedline.plan import Cursor, Mixture, Phase, Plan, SamplePlan, Segment
from feedline.torch.distributed import SampleSampler
from feedline.torch.peers import Peers
from feedline.torch.torch_mixture import TorchMixturePlan

__all__ = ["MixtureSampler"]

PhaseLike = Phase | tuple[int, Sequence[float]]


class MixtureSampler(SampleSampler):
    """Samples of several datasets in exact proportions, over any number of ranks.

    Indices are those of the concatenated datasets, as `MixtureDataset` takes them. The epoch is as
    long as all datasets together. A dataset whose share exceeds its size is gone through again, in
    a new order on each pass.

    Args:
        cumulative_sizes: `[0, len(ds0), len(ds0) + len(ds1), …]`, see `MixtureDataset`.
        weights: One weight per dataset.
        num_replicas: The number of ranks; by default that of the process group, else 1.
        rank: The rank of this process; by default that in the process group, else 0.
        shuffle: Whether datasets and samples are shuffled.
        seed: Any integer or string.
        drop_last: Drop the positions that do not divide evenly over ranks; otherwise the first
            ones are repeated to fill up.
        temperature: Weights count as `weight ** (1 / temperature)`: above 1 they become more alike.
        phases: Other weights from a given place on: `Phase` objects, or pairs `(step, weights)`
            together with `global_batch_size`, the number of samples in a step over all ranks.
            Steps count on through the epochs; the last step of an epoch may be short.
        order: `"feedline"`, or `"torch"` for the order of the system that this replaces.
        process_group: The group of ranks that get different data, if not all.
        desync_guard: Compare the ranks before each epoch, where they come from a process group.
        desync_timeout: How many seconds the guard waits for the other ranks.

    Examples:
        >>> sampler = MixtureSampler([0, 1000, 1010], [1, 1], num_replicas=2, rank=0)
        >>> small = sum(index >= 1000 for index in sampler)
        >>> len(sampler), 200 < small < 300
        (505, True)
    """

    def __init__(
        self,
        cumulative_sizes: Sequence[int],
        weights: Sequence[float],
        num_replicas: int | None = None,
        rank: int | None = None,
        shuffle: bool = True,
        seed: int = 0,
        drop_last: bool = True,
        temperature: float = 1.0,
        *,
        phases: Sequence[PhaseLike] = (),
        global_batch_size: int | None = None,
        order: str = "feedline",
        process_group: Any | None = None,
        desync_guard: bool = True,
        desync_timeout: float = 60.0,
    ) -> None:
        check_choice("order", order, ("feedline", "torch"))
        sizes = _sizes_of(cumulative_sizes)
        super().__init__(
            peers=Peers(num_replicas, rank, process_group),
            entry_size=1,
            seed=seed,
            desync_guard=desync_guard,
            desync_timeout=desync_timeout,
        )
        self.cumulative_sizes = list(cumulative_sizes)
        self.shuffle = shuffle
        self.drop_last = drop_last
        self._pending: tuple[Sequence[float], float] | None = None
        self._plan: SamplePlan | TorchMixturePlan
        if order == "torch":
            if phases:
                raise InvalidValueError("phases need order='feedline'; use update_weights instead")
            self._plan = TorchMixturePlan(
                sizes=sizes,
                weights=weights,
                temperature=temperature,
                shuffle=shuffle,
                drop_last=drop_last,
                seed=seed,
            )
        else:
            mixture = Mixture(
                sizes=sizes,
                weights=weights,
                temperature=temperature,
                phases=_as_phases(phases, global_batch_size, sum(sizes)),
                shuffle=shuffle,
                seed=seed,
            )
            self._plan = SamplePlan(order=mixture, tail="drop" if drop_last else "pad")

    @property
    def plan(self) -> Plan:
        return self._plan

    @property
    def weights(self) -> list[float]:
        """The weights, as given or as last updated."""
        return list(self._latest_weights()[0])

    @property
    def temperature(self) -> float:
        """The temperature that belongs to `weights`."""
        return self._latest_weights()[1]

    def update_weights(self, weights: Sequence[float], temperature: float = 1.0) -> None:
        """Use other weights from the next pass on; a pass that is running goes on as it was.

        The state carries the change along: loaded, it goes on with the new weights at once. Phases
        that were planned for later no longer count.
        """
        self._changed(self._plan, weights, temperature, epoch=0, position=0)
        self._pending = (tuple(float(weight) for weight in weights), float(temperature))

    def _latest_weights(self) -> tuple[Sequence[float], float]:
        if self._pending is not None:
            return self._pending
        if isinstance(self._plan, TorchMixturePlan):
            return self._plan.current_weights, self._plan.current_temperature
        mixture = self._plan.order
        assert isinstance(mixture, Mixture)
        if mixture.changes:
            return mixture.changes[-1].weights, mixture.changes[-1].temperature
        return mixture.weights, mixture.temperature

    def _begin_segment(self) -> Segment:
        segment = super()._begin_segment()
        if self._pending is None:
            return segment
        self._plan = self._plan_with_pending(segment, segment.num_done)
        self._pending = None
        return replace(segment, plan=self._plan)

    def _cursor_of(self, segment: Segment, num_entries: int) -> Cursor:
        cursor = super()._cursor_of(segment, num_entries)
        if self._pending is None:
            return cursor
        return replace(cursor, changes=self._plan_with_pending(segment, num_entries).changes)

    def _current_cursor(self) -> Cursor:
        if self._pending is None or (self._pass is not None and self._loaded is None):
            return super()._current_cursor()
        segment = self._segment_at(self._loaded)
        return self._cursor_of(segment, segment.num_done)

    def _plan_with_pending(
        self, segment: Segment, num_entries: int
    ) -> SamplePlan | TorchMixturePlan:
        """Return the plan with the pending weights from this place on."""
        assert self._pending is not None
        plan = segment.plan
        assert isinstance(plan, SamplePlan | TorchMixturePlan)
        total = plan.begin(segment.epoch).num_left
        position = total - segment.num_left_after(num_entries)
        epoch = segment.epoch
        if position >= total:
            epoch, position = epoch + 1, 0
        return self._changed(plan, *self._pending, epoch=epoch, position=position)

    @staticmethod
    def _changed(
        plan: SamplePlan | TorchMixturePlan,
        weights: Sequence[float],
        temperature: float,
        *,
        epoch: int,
        position: int,
    ) -> SamplePlan | TorchMixturePlan:
        if isinstance(plan, TorchMixturePlan):
            return plan.changed(weights, temperature)
        mixture = plan.order
        assert isinstance(mixture, Mixture)
        changed = mixture.changed(weights, temperature=temperature, epoch=epoch, position=position)
        return replace(plan, order=changed)

    def _accept(self, segment: Segment) -> None:
        assert isinstance(segment.plan, SamplePlan | TorchMixturePlan)
        self._plan = segment.plan
        self._pending = None

    def _as_state(self, cursor: Cursor) -> dict[str, Any]:
        state = super()._as_state(cursor)
        return {**state, "weights": self.weights, "temperature": self.temperature}

    def _cursor_of_documented(self, state: Mapping[str, Any]) -> Cursor:
        cursor = super()._cursor_of_documented(state)
        if "weights" not in state:
            return cursor
        temperature = state.get("temperature", 1.0)
        changed = self._changed(
            self._plan, state["weights"], temperature, epoch=cursor.epoch, position=0
        )
        return replace(cursor, changes=changed.changes)


def _sizes_of(cumulative_sizes: Sequence[int]) -> list[int]:
    edges = [
        check_integer(f"cumulative_sizes[{i}]", edge, 0) for i, edge in enumerate(cumulative_sizes)
    ]
    if len(edges) < 2 or edges[0] != 0 or any(low > high for low, high in pairwise(edges)):
        raise InvalidValueError(
            f"cumulative_sizes={list(cumulative_sizes)} must begin with 0 and grow, as in "
            "[0, len(ds0), len(ds0) + len(ds1)]"
        )
    return [high - low for low, high in pairwise(edges)]


def _as_phases(
    phases: Sequence[PhaseLike], global_batch_size: int | None, epoch_size: int
) -> list[Phase]:
    """Return phases by position; steps count through the epochs."""
    if all(isinstance(phase, Phase) for phase in phases):
        return list(phases)  # type: ignore[arg-type]
    if global_batch_size is None:
        raise InvalidValueError(
            "global_batch_size=None must be given with phases at steps: the number of samples that "
            "all ranks together consume in a step"
        )
    check_integer("global_batch_size", global_batch_size, 1, epoch_size)
    return [
        phase
        if isinstance(phase, Phase)
        else Phase.at_step(
            phase[1],
            step=phase[0],
            world_size=1,
            batch_size=global_batch_size,
            num_batches=-(-epoch_size // global_batch_size),
        )
        for phase in phases
    ]
