"""A mixture sampler, with weights that may change during a run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

from feedline.compat.distributed_sampler import SkippingSampler
from feedline.compat.torch_mixture import TorchMixturePlan
from feedline.errors import (
    InvalidValueError,
    check_choice,
    check_flag,
    check_integer,
    check_sequence,
)
from feedline.feed import Peers
from feedline.plan import Cursor, Mixture, Phase, Plan, SamplePlan
from feedline.plan.seeds import check_seed

PhaseLike = Phase | tuple[int, Sequence[float]]


class MixtureSampler(SkippingSampler):
    """Samples of several datasets in exact proportions, over any number of ranks.

    Indices are those of the concatenated datasets, as for `MixtureDataset`. The epoch is as long as
    all datasets together. A dataset whose share exceeds its size restarts, in a new order on each
    pass.

    Args:
        cumulative_sizes: `[0, len(ds0), len(ds0) + len(ds1), …]`, see `MixtureDataset`.
        weights: One weight per dataset.
        num_replicas: The number of ranks; by default that of the process group, else 1.
        rank: The rank of this process; by default that in the process group, else 0.
        shuffle: Shuffle datasets and samples.
        seed: Any integer or string.
        drop_last: Drop the positions that do not divide evenly over ranks; otherwise the first
            ones are repeated to fill up.
        temperature: Weights count as `weight ** (1 / temperature)`: above 1 they become more alike.
        phases: Other weights from a given place on: `Phase` objects, or pairs `(step, weights)`
            together with `global_batch_size`. Steps count on through the epochs; the last step of
            an epoch may be short.
        global_batch_size: The number of samples in a step over all ranks, for phases at steps.
        order: `"feedline"`, or `"torch"` for the order of the system that this replaces.
        process_group: The group of ranks that get different data, if not all.
        peers: The ranks, where no other argument says who they are.
        desync_guard: Compare the ranks before each pass, where they come from a process group.
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
        peers: Peers | str = "auto",
        desync_guard: bool = True,
        desync_timeout: float = 60.0,
    ) -> None:
        check_choice("order", order, ("feedline", "torch"))
        sizes = _sizes_of(cumulative_sizes)
        described: dict[str, Any] = {
            "sizes": sizes,
            "weights": weights,
            "temperature": temperature,
            "shuffle": shuffle,
            "seed": seed,
        }
        plan: Plan
        if order == "torch":
            if phases:
                raise InvalidValueError("phases need order='feedline'; use update_weights instead")
            plan = TorchMixturePlan(**described, drop_last=drop_last)
        else:
            at = _as_phases(phases, global_batch_size, sum(sizes))
            plan = SamplePlan(
                order=Mixture(**described, phases=at), tail="drop" if drop_last else "pad"
            )
        super().__init__(
            plan,
            num_replicas=num_replicas,
            rank=rank,
            process_group=process_group,
            peers=peers,
            desync_guard=desync_guard,
            desync_timeout=desync_timeout,
        )
        self.cumulative_sizes = list(cumulative_sizes)
        self.shuffle = check_flag("shuffle", shuffle)
        self.seed = check_seed(seed)
        self.drop_last = check_flag("drop_last", drop_last)

    @property
    def weights(self) -> list[float]:
        """The weights, as given or as last updated."""
        return list(self.position.weights[0])

    @property
    def temperature(self) -> float:
        """The temperature that belongs to `weights`."""
        return self.position.weights[1]

    def update_weights(self, weights: Sequence[float], temperature: float = 1.0) -> None:
        """Use other weights from the next pass on; a running pass keeps its weights.

        The state contains the change: a resumed run uses the new weights at once. Phases planned
        for later are dropped.
        """
        self.position.reweight(weights, temperature)

    def state_dict(self) -> dict[str, Any]:
        """Return the state; save it on any rank, load it on any number of ranks."""
        weights = {"weights": self.weights, "temperature": self.temperature}
        return {**super().state_dict(), **weights}

    def _cursor_of_documented(self, state: Mapping[str, Any]) -> Cursor:
        cursor = super()._cursor_of_documented(state)
        if "weights" not in state:
            return cursor
        changed = self.plan.reweighted(
            state["weights"], state.get("temperature", 1.0), epoch=cursor.epoch, position=0
        )
        return replace(cursor, changes=changed.changes)


def _sizes_of(cumulative_sizes: Sequence[int]) -> list[int]:
    edges = [
        check_integer(f"cumulative_sizes[{i}]", edge, 0) for i, edge in enumerate(cumulative_sizes)
    ]
    if len(edges) < 2 or edges[0] != 0 or any(low > high for low, high in pairwise(edges)):
        raise InvalidValueError(
            f"cumulative_sizes={list(cumulative_sizes)} must begin with 0 and increase, as in [0, "
            "len(ds0), len(ds0) + len(ds1)]"
        )
    return [high - low for low, high in pairwise(edges)]


def _as_phases(
    phases: Sequence[PhaseLike], global_batch_size: int | None, epoch_size: int
) -> list[Phase]:
    """Return phases by position; steps count through the epochs."""
    phases = check_sequence("phases", phases)
    for number, phase in enumerate(phases):
        if not isinstance(phase, Phase) and not (
            isinstance(phase, tuple | list) and len(phase) == 2
        ):
            raise InvalidValueError(
                f"phases[{number}]={phase!r:.80} must be a Phase, or the step at which it begins "
                "and its weights, such as (1000, [1, 3])"
            )
    if global_batch_size is not None:
        check_integer("global_batch_size", global_batch_size, 1, epoch_size)
    if all(isinstance(phase, Phase) for phase in phases):
        return list(phases)
    if global_batch_size is None:
        raise InvalidValueError(
            "global_batch_size is required when phases begin at steps; pass the number of samples "
            "in a step over all ranks"
        )
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
