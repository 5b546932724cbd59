"""The rules of the systems that order="torch" continues, stated plainly and independently.

Each function returns the whole epoch of one rank as a list, as those systems compute it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch


def plain_buckets(
    buckets: Sequence[Sequence[int]],
    *,
    batch_size_of: Callable[[int], int],
    rank: int,
    world_size: int,
    seed: int,
    epoch: int,
    drop_last: bool = True,
    shuffle_buckets: bool = True,
    shuffle_within: bool = True,
) -> list[list[int]]:
    """Bucket batches: one randperm over buckets, one per bucket, cycled, dealt and cut."""
    generator = torch.Generator()
    generator.manual_seed(seed + epoch)
    numbers = list(range(len(buckets)))
    if shuffle_buckets:
        numbers = torch.randperm(len(buckets), generator=generator).tolist()
    batches = []
    for number in numbers:
        indices = list(buckets[number])
        if shuffle_within:
            order = torch.randperm(len(indices), generator=generator).tolist()
            indices = [indices[place] for place in order]
        padded = list(indices)
        while len(padded) % world_size:
            padded.append(indices[len(padded) % len(indices)])
        own = padded[rank::world_size]
        size = batch_size_of(number)
        for start in range(0, len(own), size):
            batch = own[start : start + size]
            if len(batch) == size or not drop_last:
                batches.append(batch)
    return batches


def plain_targets(weights: Sequence[float], temperature: float, total: int) -> list[int]:
    """Rounded targets, then one up or down by descending weight until they add up."""
    powers = [float(weight) for weight in weights]
    if temperature != 1.0:
        logs = [math.log(max(weight, 1e-12)) / temperature for weight in powers]
        powers = [math.exp(log - max(logs)) for log in logs]
    shares = [power / sum(powers) for power in powers]
    targets = [round(share * total) for share in shares]
    order = sorted(range(len(shares)), key=lambda source: shares[source], reverse=True)
    turn = 0
    while sum(targets) != total:
        targets[order[turn % len(order)]] += 1 if sum(targets) < total else -1
        turn += 1
    return targets


def plain_mixture(
    sizes: Sequence[int],
    weights: Sequence[float],
    *,
    rank: int,
    world_size: int,
    seed: int,
    epoch: int,
    drop_last: bool = True,
    temperature: float = 1.0,
) -> list[int]:
    """A mixture: per source one randperm, dealt, cycled to its target; one randperm at the end."""
    generator = torch.Generator()
    generator.manual_seed(seed + epoch)
    per_rank = [size // world_size if drop_last else math.ceil(size / world_size) for size in sizes]
    targets = plain_targets(weights, temperature, sum(per_rank))
    drawn: list[int] = []
    offset = 0
    for size, own_size, target in zip(sizes, per_rank, targets, strict=True):
        if size and target:
            order = torch.randperm(size, generator=generator).tolist()
            even = [order[place % size] for place in range(own_size * world_size)]
            own = even[rank::world_size]
            drawn += [offset + own[place % len(own)] for place in range(target)]
        offset += size
    final = torch.randperm(len(drawn), generator=generator).tolist()
    return [drawn[place] for place in final]
