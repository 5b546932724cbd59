"""One epoch of a mixture: its phases, and the map from a position to an index."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise, zip_longest
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from feedline.errors import check_integer
from feedline.plan.apportion import (
    apportion,
    check_temperature,
    check_weights,
    longest_without_repeat,
    shares_of,
)
from feedline.plan.draws import Draws
from feedline.plan.frozen import described, store, store_integers
from feedline.plan.interleave import Consecutive, Interleave, Layout
from feedline.plan.laid_out import Carry, LaidOut
from feedline.plan.many_permutations import permute_each, permute_runs
from feedline.plan.orders import Indices
from feedline.plan.permutation import Permutation, permute_numbered
from feedline.plan.seeds import derive_key, derive_keys
from feedline.plan.stacked_tables import LatestPasses
from feedline.plan.strided_layout import StridedLayout
from feedline.words import one_line

if TYPE_CHECKING:
    from feedline.plan.mixture import Mixture

# Up to this many positions draws are strictly in order, at a cost per position of the whole run.
# Above, they are shuffled inside larger blocks, so that a rank pays for its own positions only.
_STRICT_LIMIT = 2**22
_STRICT_BLOCK = 4000
_LOOSE_BLOCK = 2**17
_FEW_SOURCES = 16


@one_line
@dataclass(frozen=True, kw_only=True)
class Phase:
    """Weights from a position of an epoch on, until the next phase begins.

    The start is a position, so it does not depend on the number of ranks.

    Args:
        weights: One weight for each source.
        epoch: The epoch in which the phase begins.
        position: The position of that epoch from which on the weights hold.
        temperature: Weights count as `weight ** (1 / temperature)`: above 1 they become more alike.

    Examples:
        >>> Phase.at_step((1, 3), step=100, world_size=8, batch_size=4, num_batches=1000).position
        3200
    """

    weights: Sequence[float]
    epoch: int = 0
    position: int = 0
    temperature: float = 1.0

    def __post_init__(self) -> None:
        store_integers(self, "epoch", "position", low=0)
        store(
            self,
            weights=check_weights(self.weights),
            temperature=check_temperature(self.temperature),
        )

    @classmethod
    def at_step(
        cls,
        weights: Sequence[float],
        *,
        step: int,
        world_size: int,
        batch_size: int,
        num_batches: int,
        grad_acc_steps: int = 1,
        temperature: float = 1.0,
    ) -> Phase:
        """Return the phase that begins at an optimizer step of a run.

        `num_batches` is the number of batches per epoch and rank. An epoch's last step may be
        shorter than `grad_acc_steps` batches.
        """
        step = check_integer("step", step, 0)
        num_batches = check_integer("num_batches", num_batches, 1)
        grad_acc_steps = check_integer("grad_acc_steps", grad_acc_steps, 1)
        epoch, position = divmod(step, -(-num_batches // grad_acc_steps))
        position *= grad_acc_steps
        position *= check_integer("world_size", world_size, 1)
        position *= check_integer("batch_size", batch_size, 1)
        return cls(weights=weights, epoch=epoch, position=position, temperature=temperature)

    @property
    def place(self) -> tuple[int, int]:
        """The epoch and the position at which the phase begins."""
        return self.epoch, self.position

    def describe(self) -> dict[str, Any]:
        """Return the phase as JSON values."""
        return described(self)


class MixtureEpoch:
    """The order of one epoch of a mixture."""

    def __init__(self, mixture: Mixture, epoch: int) -> None:
        self._sizes, self._starts = mixture.sizes, mixture.cumulative_sizes
        self._shuffle, self._seed, self._epoch = mixture.shuffle, mixture.seed, epoch
        self._keys = derive_keys(self._seed, "mixture source", epoch, len(self._sizes))
        # An empty source is never drawn.
        self._size_of = np.maximum(np.array(self._sizes, dtype=np.int64), 1)
        self._start_of = np.array(self._starts[:-1], dtype=np.int64)
        # The current pass over each source.
        permutation_of = lru_cache(maxsize=2 * _FEW_SOURCES)(Permutation)
        sizes, keys = self._sizes, self._keys

        def pass_over(source: int, number: int) -> Permutation:
            return permutation_of(sizes[source], keys[source], number)

        # Not a method, because that would be a cycle of references.
        self._pass_over = pass_over
        self._latest_passes = LatestPasses(self._sizes, self._pass_over)
        self._phases = self._lay_out(mixture)
        self._phase_starts = np.array([phase.start for phase in self._phases])
        self._strided = StridedLayout.of(self._phases[0].layout)
        # Where the next block of a rank begins, and the latest block of the layout, all drawn.
        self._next = -1
        self._drawn_block: tuple[int, Indices] = (-1, self._start_of)
        last = self._phases[-1]
        self.num_positions = last.start + last.length

    def indices(self, positions: Indices) -> Indices:
        if len(self._phases) == 1:
            return self._indices_in(self._phases[0], positions)
        which = np.searchsorted(self._phase_starts, positions, side="right") - 1
        result = np.empty(len(positions), dtype=np.int64)
        for number in np.unique(which):
            chosen = np.flatnonzero(which == number)
            result[chosen] = self._indices_in(self._phases[number], positions[chosen])
        return result

    def indices_every(self, first: int, step: int, count: int) -> Indices:
        """Return the index at each position `first + i * step`, `count` of them."""
        phase = self._phases[0]
        if len(self._phases) > 1 or self._strided is None:
            return self.indices(np.arange(count, dtype=np.int64) * step + first)
        follows, self._next = first == self._next, first + count * step
        if step == 1 and (follows or self._strided.is_in(self._drawn_block[0], first)):
            return self._densely(phase, self._strided, first, count)
        lows, highs = self._strided.ordinals_around(first, first + (count - 1) * step)
        stacked = self._latest_passes.stacked(lows, highs, count)
        if stacked is None:
            return self._by_source(phase, *self._strided.locate(first, step, count))
        tables, draws_before = stacked
        labels, draws = self._strided.locate(first, step, count, draws_before)
        sources = labels.astype(np.int64)
        indices: Indices = self._start_of.take(sources)
        indices += tables.forward(sources, draws.astype(np.uint32, copy=False))
        return indices

    def _densely(self, phase: LaidOut, layout: StridedLayout, first: int, count: int) -> Indices:
        """Return the same for every position, with whole blocks of the layout drawn and kept."""
        result = np.empty(count, dtype=np.int64)
        for block, part, slots in layout.slots(first, 1, count):
            number, indices = self._drawn_block
            if number != block.number:
                draws = np.repeat(block.ordinals - block.edges[:-1], np.diff(block.edges))
                draws += np.arange(len(draws))
                indices = self._samples(phase, block.labels.tolist(), block.edges.tolist(), draws)
                self._drawn_block = block.number, indices
            # No slot is outside; without "clip", numpy would make a copy to check that.
            indices.take(slots, None, result[part], "clip")
        return result

    def draws(self, positions: Indices) -> Draws:
        """Return the source at each position, and the pass over it that the draw is part of."""
        draws = Draws(np.empty_like(positions), np.empty_like(positions))
        which = np.searchsorted(self._phase_starts, positions, side="right") - 1
        for number in np.unique(which):
            phase, chosen = self._phases[number], np.flatnonzero(which == number)
            sources, ordinals = phase.layout.locate(positions[chosen] - phase.start)
            draws.sources[chosen] = sources
            draws.numbers[chosen] = phase.draws(sources, ordinals) // self._size_of.take(sources)
        return draws

    def find(self, index: int) -> Indices:
        source = int(np.searchsorted(self._starts, index, side="right")) - 1
        size = self._sizes[source]
        end = max(phase.carries[source].next + phase.counts[source] for phase in self._phases)
        passes = np.arange(-(-end // size), dtype=np.int64)
        places = np.full(len(passes), index - self._starts[source], dtype=np.int64)
        if self._shuffle:
            places = permute_numbered(size, self._keys[source], passes, places, inverse=True)
        draws = passes * size + places
        found = [phase.find(source, draws) for phase in self._phases]
        return np.sort(np.concatenate(found))

    def _lay_out(self, mixture: Mixture) -> list[LaidOut]:
        phases = _phases_of_epoch(mixture.planned, mixture.changes, self._epoch)
        carries = [Carry(np.empty(0, dtype=np.int64), 0) for _ in self._sizes]
        used = [0] * len(self._sizes)
        laid_out: list[LaidOut] = []
        for number, (phase, fixed_end) in enumerate(phases):
            start = phase.position if number else 0
            shares = shares_of(phase.weights, phase.temperature)
            ends = (fixed_end, mixture.longest_epoch)
            limits = [max(0, end - start) for end in ends if end is not None]
            if mixture.strategy == "stop":
                capacities = [size - gone for size, gone in zip(self._sizes, used, strict=True)]
                limits.append(longest_without_repeat(capacities, shares))
            length = min(limits)
            counts = apportion(length, shares)
            layout = self._make_layout(counts, start)
            follower = phases[number + 1][0].position - start if number + 1 < len(phases) else None
            cut = length if follower is None else min(length, follower)
            laid_out.append(LaidOut(start, cut, counts, layout, carries))
            if follower is None or follower > length:
                break
            used = [a + b for a, b in zip(used, layout.counts_before(cut).tolist(), strict=True)]
            skipped, ordinals = layout.cut(cut)
            carries = [
                carry.after(skip, ordinal)
                for carry, skip, ordinal in zip(carries, skipped, ordinals, strict=True)
            ]
        return laid_out

    def _make_layout(self, counts: list[int], start: int) -> Layout:
        if not self._shuffle:
            return Consecutive(counts, range(len(counts)))
        strict = sum(counts) <= _STRICT_LIMIT
        return Interleave(
            counts,
            key=derive_key(self._seed, "mixture layout", self._epoch, start),
            block_length=max(_STRICT_BLOCK if strict else _LOOSE_BLOCK, 8 * len(counts)),
            in_order=strict,
        )

    def _indices_in(self, phase: LaidOut, positions: Indices) -> Indices:
        places = positions - phase.start if phase.start else positions
        if isinstance(phase.layout, Interleave) and len(self._sizes) <= _FEW_SOURCES:
            return self._by_source(phase, *phase.layout.locate_small(places))
        sources, ordinals = phase.layout.locate(places)
        draws = phase.draws(sources, ordinals)
        sizes = self._size_of.take(sources)
        passes = draws // sizes
        values = draws - passes * sizes
        starts = self._start_of.take(sources)
        if not self._shuffle or not len(positions):
            return values + starts
        # One permutation for each pass over each source.
        num_passes = int(passes.max()) + 1
        groups = sources * num_passes + passes if num_passes > 1 else sources
        # numpy sorts 16-bit keys by radix, several times faster than wider ones.
        keys = groups.astype(np.uint16) if len(self._sizes) * num_passes <= 2**16 else groups
        by_group = np.argsort(keys, kind="stable")
        groups = groups[by_group]
        edges = np.flatnonzero(np.diff(groups, prepend=-1, append=-1))
        firsts = by_group[edges[:-1]]
        own = sources[firsts]
        result = np.empty(len(positions), dtype=np.int64)
        result[by_group] = permute_each(
            self._size_of[own],
            [self._keys[source] for source in own.tolist()],
            passes[firsts],
            np.diff(edges),
            values[by_group],
        )
        result += starts
        return result

    def _by_source(self, phase: LaidOut, labels: NDArray[Any], ordinals: NDArray[Any]) -> Indices:
        """Return the same, grouped by source, which is faster if there are few."""
        if not len(labels):
            return np.empty(0, dtype=np.int64)
        # numpy sorts bytes by radix, several times faster than wider keys.
        by_source = np.argsort(labels.astype(np.uint8, copy=False), kind="stable")
        every = np.arange(len(self._sizes) + 1).astype(labels.dtype)
        cuts = labels.searchsorted(every, sorter=by_source)
        here = np.flatnonzero(cuts[1:] > cuts[:-1])
        edges: list[int] = [*cuts.take(here).tolist(), len(labels)]
        result = np.empty(len(labels), dtype=np.int64)
        result[by_source] = self._samples(phase, here.tolist(), edges, ordinals.take(by_source))
        return result

    def _samples(
        self, phase: LaidOut, sources: list[int], edges: list[int], draws: NDArray[Any]
    ) -> Indices:
        """Return the indices that ordinals `[edges[i], edges[i + 1])` of source i stand for."""
        parts = [slice(*run) for run in pairwise(edges)]
        carries = [phase.carries[source] for source in sources]
        if any(carry.next or len(carry.pending) for carry in carries):
            draws = draws.astype(np.int64, copy=False)
            for carry, part in zip(carries, parts, strict=True):
                draws[part] = carry.draws(draws[part])
        indices = self._drawn(sources, edges, draws)
        for source, part in zip(sources, parts, strict=True):
            indices[part] += self._starts[source]
        return indices

    def _drawn(self, sources: list[int], edges: list[int], draws: NDArray[Any]) -> Indices:
        """Return the samples that draws `[edges[i], edges[i + 1])` take from source i."""
        sizes = [self._sizes[source] for source in sources]
        lows, highs = (
            extreme.reduceat(draws, edges[:-1]).tolist() for extreme in (np.minimum, np.maximum)
        )
        firsts = [low // size for low, size in zip(lows, sizes, strict=True)]
        lasts = [high // size for high, size in zip(highs, sizes, strict=True)]
        if firsts == lasts:
            for first, size, run in zip(firsts, sizes, pairwise(edges), strict=True):
                if first:
                    draws[slice(*run)] -= first * size
            return permute_runs([*map(self._pass_over, sources, firsts)], edges, draws)
        values, draws = np.empty(len(draws), dtype=np.int64), draws.astype(np.int64, copy=False)
        for source, size, run in zip(sources, sizes, pairwise(edges), strict=True):
            part = slice(*run)
            passes = draws[part] // size
            values[part] = permute_numbered(
                size, self._keys[source], passes, draws[part] - passes * size
            )
        return values


def _phases_of_epoch(
    planned: Sequence[Phase], changes: Sequence[Phase], epoch: int
) -> list[tuple[Phase, int | None]]:
    """Return the phases of one epoch, and where each was planned to end (None: with the epoch).

    A change made while running replaces every phase that was planned for later, and cuts the phase
    it falls into: that one keeps the layout it had, because part of it has been consumed.
    """
    # Each phase with the one that was planned to follow it.
    followed: list[tuple[Phase, Phase | None]] = list(zip_longest(planned, planned[1:]))
    if changes:
        followed = [pair for pair in followed if pair[0].place < changes[0].place]
        followed += [(change, None) for change in changes]
    opening = max(i for i, (phase, _) in enumerate(followed) if phase.place <= (epoch, 0))
    later = [pair for pair in followed[opening + 1 :] if pair[0].epoch == epoch]
    return [
        (phase, then.position if then is not None and then.epoch == epoch else None)
        for phase, then in (followed[opening], *later)
    ]
