"""How often each source of a mixture is drawn in an epoch, without drawing."""

from __future__ import annotations

from feedline.plan import Mixture, Phase
from feedline.plan.apportion import apportion, longest_without_repeat, shares_of


def draws_of_sources(mixture: Mixture, epoch: int) -> list[int]:
    """Return the number of draws from each source in one epoch.

    Each phase gets exact counts for its length, so they are only added up.

    Examples:
        >>> draws_of_sources(Mixture(sizes=(1000, 10), weights=(1, 3)), epoch=0)
        [253, 757]
    """
    end = mixture.num_positions(epoch)
    phases = phases_of(mixture, epoch)
    drawn = [0] * len(mixture.sizes)
    for number, (start, phase) in enumerate(phases):
        stop = min(phases[number + 1][0], end) if number + 1 < len(phases) else end
        shares = shares_of(phase.weights, phase.temperature)
        length = max(0, stop - start)
        if mixture.strategy == "stop":
            left = [size - gone for size, gone in zip(mixture.sizes, drawn, strict=True)]
            length = min(length, longest_without_repeat(left, shares))
        counts = apportion(length, shares)
        drawn = [before + count for before, count in zip(drawn, counts, strict=True)]
    return drawn


def phases_of(mixture: Mixture, epoch: int) -> list[tuple[int, Phase]]:
    """Return the phases of an epoch, each with the position at which it begins there."""
    planned = [Phase(weights=mixture.weights, temperature=mixture.temperature), *mixture.phases]
    opening = [phase for phase in planned if (phase.epoch, phase.position) <= (epoch, 0)][-1]
    later = [phase for phase in planned if phase.epoch == epoch and phase.position > 0]
    return [(0, opening), *((phase.position, phase) for phase in later)]
