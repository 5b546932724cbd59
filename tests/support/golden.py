"""What the golden vectors hold: orders that must never change without a new version.

`compute_vectors` works them out; `scripts/make_golden_vectors.py` writes them to VECTORS_FILE and
`tests/plan/test_golden.py` compares. A change in any of them is a breaking change.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from feedline.plan import (
    BucketPlan,
    Concatenated,
    EqualChunks,
    FileSharesPlan,
    Mixture,
    Order,
    Permutation,
    Phase,
    Plan,
    SamplePlan,
    Sequential,
    Shuffled,
    Subset,
    UnequalChunks,
    Weighted,
    WindowOrder,
    WindowPlan,
    derive_key,
)
from golden_chunks import CHUNK_ORDERS, CHUNK_PLANS, NUM_ROWS, SAMPLERS

__all__ = ["SECTIONS", "VECTORS_FILE", "compute_vectors"]

VECTORS_FILE = Path(__file__).resolve().parent.parent / "plan" / "golden_vectors.json"

KEY = 0x0123456789ABCDEFFEDCBA9876543210

KEY_ARGUMENTS: list[list[Any]] = [
    [0, "order"],
    [0, "order", 1],
    [1, "order", 0],
    [-1, "order", 0],
    [2**70, "order", 3],
    ["seed", "order", 0],
    ["é\U0001f600", "mixture source", 7, 2],
    [0, "names", 0, "a", "bc"],
    [0, "names", 0, "ab", "c"],
]

# Tables up to 4096, 32-bit lanes up to 2**32, 64-bit lanes above.
SIZES = (1, 2, 7, 100, 4096, 4097, 10**6, 2**26 + 1, 2**32 - 1, 2**32, 2**32 + 1, 10**12, 2**63 - 1)

ORDERS: dict[str, Order] = {
    "sequential": Sequential(num_samples=1000),
    "shuffled small": Shuffled(num_samples=1000, seed=1),
    "shuffled": Shuffled(num_samples=10**9, seed=1),
    "shuffled text seed": Shuffled(num_samples=10**9, seed="run"),
    "shuffled huge": Shuffled(num_samples=2**63 - 1, seed=-5),
    "concatenated": Concatenated([Shuffled(num_samples=500), Sequential(num_samples=70)]),
    "subset range": Subset(range(5, 3005, 3), order=Shuffled(num_samples=1000)),
    "subset list": Subset([9, 4, 7, 0, 100], order=Shuffled(num_samples=5)),
    "mixture": Mixture(sizes=(300, 20, 5), weights=(3, 2, 1), epoch_size=600),
    "mixture blocks": Mixture(sizes=(3000, 20, 0), weights=(3, 2, 0), epoch_size=20_000, seed=3),
    "mixture shuffled blocks": Mixture(sizes=(10**7, 1000), weights=(9, 1), epoch_size=6 * 10**6),
    "mixture huge": Mixture(sizes=(10**12, 10**11), weights=(1, 1)),
    "mixture temperature": Mixture(
        sizes=(300, 200, 100), weights=(100, 10, 1), temperature=3.3, epoch_size=500
    ),
    "mixture phases": Mixture(
        sizes=(300, 200),
        weights=(1, 1),
        epoch_size=400,
        phases=[
            Phase(weights=(0, 1), position=100, temperature=0.5),
            Phase(weights=(1, 5), epoch=1, position=50),
        ],
    ),
    "mixture changed": Mixture(sizes=(10**7, 1000), weights=(9, 1), epoch_size=6 * 10**6)
    .changed((1, 1), epoch=0, position=123_457)
    .changed((1, 3), epoch=1, position=1_000_001),
    "mixture stop": Mixture(sizes=(300, 200), weights=(1, 2), strategy="stop"),
    "mixture in order": Mixture(sizes=(30, 20), weights=(1, 2), shuffle=False, epoch_size=80),
    "windows": WindowOrder(chunks=EqualChunks(num_samples=1003, chunk_size=10), preload=4),
    "windows huge": WindowOrder(chunks=EqualChunks(num_samples=10**12, chunk_size=999), preload=16),
    "windows unequal": WindowOrder(chunks=UnequalChunks([5, 0, 90, 33, 1, 47]), preload=2, seed=2),
}

# Powers of two from the smallest subnormal to the largest, squares, and one that outweighs all.
WIDE_WEIGHTS = [2.0**exponent for exponent in range(-1074, 1024, 3)]
SQUARES = [float((7 * i + 3) % 101) ** 2 for i in range(3000)]
HEAVY = [1e16, *[1.0] * 500, 0.0]

WEIGHTED_ORDERS: dict[str, Order] = {
    "drawn": Weighted(SQUARES, num_samples=20_000, seed=1),
    "drawn text seed": Weighted([1, 0, 3, 0.1], num_samples=10**9, seed="run"),
    "drawn huge": Weighted([1, 0, 3, 0.1], num_samples=2**62),
    "drawn wide": Weighted(WIDE_WEIGHTS),
    "drawn heavy": Weighted(HEAVY),
    "permuted": Weighted(SQUARES, replacement=False, seed=1),
    "permuted part": Weighted(SQUARES, num_samples=100, replacement=False, seed="run"),
    "permuted alike": Weighted([1] * 20_000, replacement=False),
    "permuted wide": Weighted(WIDE_WEIGHTS, replacement=False),
    "permuted heavy": Weighted(HEAVY, replacement=False),
    "subset": Subset(range(5, 3005, 3), order=Weighted(SQUARES[:1000])),
    "concatenated": Concatenated([Weighted([1, 2], 300), Weighted(SQUARES, replacement=False)]),
}

GROUPS = {"wide": range(40), "tall": range(40, 61), (64, 64): [90, 70, 80, 75, 61]}
LENGTHS = [1 + (7 * i * i + 3 * i) % 97 for i in range(120)]

PLANS: dict[str, Plan] = {
    "samples drop": SamplePlan(order=Shuffled(num_samples=50, seed=1)),
    "samples pad": SamplePlan(order=Shuffled(num_samples=50, seed=1), tail="pad"),
    "samples even": SamplePlan(order=Mixture(sizes=(30, 20), weights=(1, 3)), tail="even"),
    "buckets sequential": BucketPlan.from_groups(GROUPS, tail="even", seed=1),
    "buckets interleaved": BucketPlan.from_groups(GROUPS, mode="interleaved", seed=1),
    "buckets cost": BucketPlan.from_groups(GROUPS, cost=lambda key: 1 + 0.5 * len(str(key))),
    "buckets blocks": BucketPlan.from_groups(
        {0: range(9000), 1: range(9000, 13000)}, mode="interleaved"
    ),
    "buckets quantiles": BucketPlan.from_lengths(LENGTHS, num_buckets=4, mode="interleaved"),
    "buckets tokens": BucketPlan.from_lengths(
        LENGTHS, edges=[10, 40, 97], batch_by="tokens", tail="even"
    ),
    "windows": WindowPlan(chunks=EqualChunks(num_samples=203, chunk_size=10), preload=3, seed=1),
    "windows unequal": WindowPlan(
        chunks=UnequalChunks([5, 0, 90, 33, 1, 47]), preload=2, tail="even"
    ),
    "windows in order": WindowPlan(
        chunks=EqualChunks(num_samples=99, chunk_size=10), shuffle=False, tail="pad"
    ),
    "files oversampling": FileSharesPlan(sizes=[30, 7, 0, 41, 5], strategy="oversampling", seed=1),
    "files undersampling": FileSharesPlan(sizes=[30, 27, 20, 41, 5, 9], strategy="undersampling"),
    "files exact": FileSharesPlan(sizes=[30, 30, 30, 30, 30, 30], strategy="exact", shuffle=False),
}

WEIGHTED_PLANS: dict[str, Plan] = {
    "drawn": SamplePlan(order=Weighted(SQUARES[:200], num_samples=150), tail="even"),
    "permuted": SamplePlan(order=Weighted(SQUARES[:200], replacement=False), tail="pad"),
}


def _digest(values: Any) -> str:
    data = np.ascontiguousarray(values, dtype="<i8").tobytes()
    return hashlib.blake2b(data, digest_size=16).hexdigest()


def _keys() -> dict[str, Any]:
    return {repr(arguments): f"{derive_key(*arguments):032x}" for arguments in KEY_ARGUMENTS}


def _permutations() -> dict[str, Any]:
    found: dict[str, Any] = {}
    for n in SIZES:
        places = np.array(sorted({0, n // 3, n // 2, n - 1}), dtype=np.int64)
        for key, number in ((KEY, None), (KEY, 0), (0, 3)):
            permutation = Permutation(n, key, number)
            suffix = "" if number is None else f" number={number}"
            found[f"n={n} key={key:x}{suffix}"] = [
                permutation.forward(places).tolist(),
                permutation.inverse(places).tolist(),
            ]
    for n in (4096, 4097, 100_000):
        found[f"n={n} whole"] = _digest(Permutation(n, KEY).forward(np.arange(n)))
        found[f"n={n} number=1 whole"] = _digest(Permutation(n, KEY, 1).forward(np.arange(n)))
    return found


def _orders(orders: dict[str, Order]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, order in orders.items():
        for epoch in (0, 1):
            n = order.num_positions(epoch)
            places = [n * part // 11 for part in range(11)] + [n - 1]
            entry: dict[str, Any] = {"some": order.indices(epoch, places).tolist()}
            if n <= 20_000:
                entry["whole"] = _digest(order.indices(epoch, np.arange(n)))
            found[f"{name}, epoch {epoch}"] = entry
    return found


def _plans(plans: dict[str, Plan]) -> dict[str, Any]:
    """The first and the last batch of a rank and a digest of all, before and after a resize."""
    found: dict[str, Any] = {}
    for name, plan in plans.items():
        budget = 200 if name == "buckets tokens" else 3
        segment = plan.segment(world_size=2, batch_size=budget, epoch=1)
        cursor = segment.cursor(segment.num_batches // 3)
        # Files that are tied to ranks cannot go on with another number of them.
        num_ranks = 2 if isinstance(plan, FileSharesPlan) else 3
        resumed = plan.resume(cursor, world_size=num_ranks, batch_size=budget + 1)
        entry: dict[str, Any] = {"fingerprint": plan.fingerprint}
        for stage, part in (("fresh", segment), ("resumed", resumed)):
            rank = part.world_size - 1
            batches = list(part.batches(rank))
            entry[stage] = {
                "counts": [part.num_batches, part.num_dropped, part.num_padded],
                "first": batches[0].indices.tolist(),
                "last": batches[-1].indices.tolist(),
                "indices": _digest(np.concatenate([batch.indices for batch in batches])),
                "is_real": _digest(np.concatenate([batch.is_real for batch in batches])),
                "buckets": _digest([-1 if b.bucket is None else b.bucket for b in batches]),
            }
        found[name] = entry
    return found


def _cursors() -> dict[str, Any]:
    mixture = Mixture(sizes=(30, 20), weights=(1, 3), phases=[Phase(weights=(1, 1), position=9)])
    plan = SamplePlan(order=mixture.changed((2, 1), epoch=0, position=12), tail="even")
    segment = plan.segment(world_size=2, batch_size=3)
    resumed = plan.resume(segment.cursor(2), world_size=1, batch_size=4)
    shuffled = SamplePlan(order=Shuffled(num_samples=50, seed=5))
    return {
        "mixture": resumed.cursor(3).to_json(),
        "shuffled": shuffled.segment(world_size=2, batch_size=3).cursor(4).to_json(),
    }


def _requests() -> dict[str, Any]:
    """The first request of a pass and a digest of all, in two epochs and after a resume."""
    found: dict[str, Any] = {}
    for name, make in SAMPLERS.items():
        sampler, resumed = make(), make()
        passes = {"epoch 0": list(sampler.sample(NUM_ROWS))}
        resumed.load_state_dict(sampler.state_dict(5))
        passes["epoch 1"] = list(sampler.sample(NUM_ROWS))
        passes["resumed"] = list(resumed.sample(NUM_ROWS))
        for stage, requests in passes.items():
            slices = [[[cut.start, cut.stop] for cut in r["requests"]] for r in requests]
            splits = [split for request in requests for split in request["splits"]]
            found[f"{name}, {stage}"] = {
                "counts": [len(requests), len(splits)],
                "first": [slices[0], splits[0].tolist()],
                "slices": _digest(np.concatenate(slices)),
                "splits": _digest(np.concatenate(splits)),
                "sizes": _digest([len(values) for values in (*slices, *splits)]),
            }
    return found


SECTIONS: dict[str, Callable[[], dict[str, Any]]] = {
    "keys": _keys,
    "permutations": _permutations,
    "orders": lambda: _orders(ORDERS),
    "plans": lambda: _plans(PLANS),
    "cursors": _cursors,
    "chunk orders": lambda: _orders(CHUNK_ORDERS),
    "chunk plans": lambda: _plans(CHUNK_PLANS),
    "chunk requests": _requests,
    "weighted orders": lambda: _orders(WEIGHTED_ORDERS),
    "weighted plans": lambda: _plans(WEIGHTED_PLANS),
}


def compute_vectors() -> dict[str, dict[str, Any]]:
    """Return all vectors, section by section, as JSON values."""
    return {name: compute() for name, compute in SECTIONS.items()}
