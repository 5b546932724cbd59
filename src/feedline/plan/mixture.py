"""Mixtures: several sources in exact proportions, with weights that may change during a run.

The epoch is cut into phases, one for each set of weights. In a phase every source gets an exact
count, and a layout maps each position to a source and one of its draws. Draws go through a source
pass by pass, each pass in a new order. Draw counters continue from phase to phase, so no sample is
drawn again before its pass is over.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise
from typing import Any

import numpy as np

from feedline.errors import (
    CursorFormatError,
    InvalidValueError,
    check_choice,
    check_flag,
    check_integer,
    check_sequence,
)
from feedline.plan.apportion import check_weights
from feedline.plan.frozen import described, store, store_integers
from feedline.plan.mixture_epoch import MixtureEpoch, Phase
from feedline.plan.orders import EpochOrder, Indices, SeededOrder
from feedline.plan.permutation import MAX_SIZE
from feedline.plan.seeds import Seed, check_seed
from feedline.plan.versions import of_kind
from feedline.words import one_line


@one_line
@dataclass(frozen=True, kw_only=True)
class Mixture(SeededOrder):
    """Sources of the given sizes, drawn in proportion to `weights`.

    Indices number the samples of all sources, as if the sources were concatenated.

    Args:
        sizes: The number of samples in each source.
        weights: One weight per source, not all zero; they need not add up to one.
        temperature: Each weight counts as `weight ** (1 / temperature)`; zero stays zero.
        epoch_size: The number of positions in an epoch; by default the sum of the sizes.
        strategy: What to do when a source runs out: `repeat` restarts it in a new order; `stop`
            ends the epoch there, to within one sample.
        phases: New weights from a given position on; see `Phase`.
        shuffle: Without it, sources and their samples come in order.
        seed: Any integer or string.
        changes: Weights that were changed while running; see `changed`.

    Examples:
        >>> mixture = Mixture(sizes=(1000, 10), weights=(1, 1), epoch_size=40)
        >>> sources, _ = mixture.sources_of(mixture.indices(0, range(40)))
        >>> np.bincount(sources).tolist()
        [20, 20]
    """

    sizes: Sequence[int]
    weights: Sequence[float]
    temperature: float = 1.0
    epoch_size: int | None = None
    strategy: str = "repeat"
    phases: Sequence[Phase] = ()
    shuffle: bool = True
    seed: Seed = 0
    changes: Sequence[Phase] = ()

    def __post_init__(self) -> None:
        sizes = tuple(
            check_integer(f"sizes[{source}]", size, 0, MAX_SIZE)
            for source, size in enumerate(check_sequence("sizes", self.sizes))
        )
        if not sizes:
            raise InvalidValueError("sizes=() must contain at least one source")
        check_integer("the sum of sizes", sum(sizes), 1, MAX_SIZE)
        first = Phase(weights=self.weights, temperature=self.temperature)
        store(
            self,
            sizes=sizes,
            weights=first.weights,
            temperature=first.temperature,
            phases=check_sequence("phases", self.phases),
            changes=check_sequence("changes", self.changes),
            shuffle=check_flag("shuffle", self.shuffle),
            seed=check_seed(self.seed),
        )
        if self.epoch_size is not None:
            store_integers(self, "epoch_size", low=1, high=MAX_SIZE)
        check_choice("strategy", self.strategy, ("repeat", "stop"))
        for phase in (first, *self.phases, *self.changes):
            self._check_phase(phase)
        _check_ascending("phases", (first, *self.phases))
        _check_ascending("changes", self.changes)

    def _check_phase(self, phase: Any) -> None:
        if not isinstance(phase, Phase):
            raise InvalidValueError(f"phases contains {phase!r:.80} but must contain Phase objects")
        weights = check_weights(phase.weights, len(self.sizes))
        for source, (size, weight) in enumerate(zip(self.sizes, weights, strict=True)):
            if weight and not size:
                raise InvalidValueError(
                    f"weights[{source}]={weight} must be 0 because sizes[{source}]=0: samples "
                    "cannot be drawn from an empty source"
                )
        longest = self.longest_epoch or 0
        if self.strategy == "repeat" and phase.position >= longest:
            raise InvalidValueError(
                f"position={phase.position} of a phase must be below the epoch's {longest} "
                "positions; use epoch= for later phases"
            )

    @property
    def planned(self) -> tuple[Phase, ...]:
        """The planned phases, from the start."""
        return (Phase(weights=self.weights, temperature=self.temperature), *self.phases)

    @property
    def longest_epoch(self) -> int | None:
        """The maximum number of positions in an epoch."""
        if self.epoch_size is None and self.strategy == "repeat":
            return self.num_indices
        return self.epoch_size

    @property
    def num_indices(self) -> int:
        return sum(self.sizes)

    @property
    def cumulative_sizes(self) -> tuple[int, ...]:
        """Where each source's indices begin: 0, the first size, the sum of the first two, …"""
        return (0, *accumulate(self.sizes))

    @property
    def is_changed(self) -> bool:
        return bool(self.changes)

    def at(self, epoch: int) -> EpochOrder:
        return MixtureEpoch(self, epoch)

    def sources_of(self, indices: Indices) -> tuple[Indices, Indices]:
        """Return the source of each index, and its index inside that source."""
        starts = np.array(self.cumulative_sizes)
        # Empty sources share their start with the next one; "right" skips over them.
        sources = np.searchsorted(starts, indices, side="right") - 1
        return sources, indices - starts[sources]

    def changed(
        self, weights: Sequence[float], *, epoch: int, position: int, temperature: float = 1.0
    ) -> Mixture:
        """Return this mixture with other weights from (epoch, position) on.

        Earlier positions do not change. Planned phases that would begin later are dropped.
        A cursor contains its own changes, which replace those of the plan that resumes it; to
        change
        weights at a cursor, put the changes into it: `replace(cursor, changes=plan.changes)`.

        Examples:
            >>> mixture = Mixture(sizes=(50, 50), weights=(1, 0))
            >>> later = mixture.changed((0, 1), epoch=0, position=30)
            >>> (later.indices(0, range(100)) < 50).sum().item()
            30
        """
        change = Phase(weights=weights, epoch=epoch, position=position, temperature=temperature)
        kept = (old for old in self.changes if old.place < change.place)
        return replace(self, changes=(*kept, change))

    @property
    def weights_now(self) -> tuple[tuple[float, ...], float]:
        """The weights and the temperature, as given or as last changed while running."""
        latest = self.changes[-1] if self.changes else self
        return tuple(latest.weights), latest.temperature

    def changes_as_json(self) -> tuple[Mapping[str, Any], ...]:
        """Return the changes made while running as JSON values."""
        return tuple(change.describe() for change in self.changes)

    def with_changes(self, changes: Sequence[Mapping[str, Any]]) -> Mixture:
        """Return this mixture with exactly these changes, given as JSON values."""
        if tuple(changes) == self.changes_as_json():
            return self
        try:
            phases = tuple(Phase(**change) for change in changes)
            return replace(self, changes=phases)
        except (TypeError, InvalidValueError) as error:
            raise CursorFormatError(
                f"the cursor's changes of weights do not fit this plan ({error})"
            ) from None

    def describe(self) -> dict[str, Any]:
        return described(self, "changes", **of_kind("mixture", has_changed=self.shuffle))


def _check_ascending(name: str, phases: Sequence[Phase]) -> None:
    for earlier, later in pairwise(phase.place for phase in phases):
        if later <= earlier:
            raise InvalidValueError(
                f"{name} must be in ascending order, but (epoch, position)={later} comes after "
                f"{earlier}"
            )
